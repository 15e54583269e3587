#include "padded.h"

#include <algorithm>
#include <mutex>

#include "transfer.h"

namespace torchtpu {
namespace {

Dims strides_in(const Dims& order, c10::IntArrayRef sizes) {
  Dims strides(sizes.size());
  int64_t step = 1;
  for (auto i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

bool is_all_in_order(const at::Tensor& t, const Dims& order) {
  if (t.storage_offset() != 0 || t.storage().nbytes() != t.nbytes() || t.is_conj() || t.is_neg())
    return false;
  const Dims strides = strides_in(order, t.sizes());
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != strides[d]) return false;
  }
  return t.numel() > 0;
}

bool equal(std::span<const int64_t> a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// The buffer of a tensor that is all of it.
BufferPtr whole_buffer(const at::Tensor& all) {
  Slot& slot = *slot_of(*all.storage().unsafeGetStorageImpl());
  std::lock_guard<SpinLock> guard(slot.lock);
  TORCH_INTERNAL_ASSERT(slot.buffer && !slot.padded);
  return slot.buffer;
}

}  // namespace

at::Tensor padded_view(const at::Tensor& t, const Dims& base, const Dims& room, const Dims& order) {
  if (!is_all_in_order(t, order)) return {};
  Slot& slot = *slot_of(*t.storage().unsafeGetStorageImpl());
  BufferPtr buffer;
  {
    std::lock_guard<SpinLock> guard(slot.lock);
    if (!slot.buffer || slot.dtype != t.scalar_type() || slot.dims != base) return {};
    buffer = slot.buffer;
  }
  if (!equal(buffer->buffer.dims(), room)) return {};
  Dims natural(room.size());
  for (size_t i = 0; i < natural.size(); ++i) natural[i] = static_cast<int64_t>(i);
  return wrap_buffer(std::move(buffer), t.scalar_type(), room, room, strides_in(natural, room));
}

at::Tensor corner(const at::Tensor& all, const Dims& base, const Dims& sizes, const Dims& order) {
  BufferPtr buffer = whole_buffer(all);
  const bool padded = !equal(buffer->buffer.dims(), base);
  return wrap_buffer(std::move(buffer), all.scalar_type(), base, sizes, strides_in(order, sizes),
                     padded);
}

bool adopt(const at::Tensor& t, const at::Tensor& all, const Dims& base, const Dims& order) {
  if (!is_all_in_order(t, order)) return false;
  BufferPtr buffer = whole_buffer(all);
  const bool padded = !equal(buffer->buffer.dims(), base);
  assign(*slot_of(*t.storage().unsafeGetStorageImpl()), std::move(buffer), all.scalar_type(), base,
         padded);
  return true;
}

}  // namespace torchtpu
