#include "transfer.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <numeric>

#include "../device/errors.h"
#include "../device/heap.h"
#include "../device/runtime.h"
#include "stats.h"

namespace torchtpu {

namespace {

using S = c10::ScalarType;
constexpr std::pair<c10::ScalarType, PJRT_Buffer_Type> kTypes[] = {
    {S::Bool, PJRT_Buffer_Type_PRED},
    {S::Char, PJRT_Buffer_Type_S8},
    {S::Short, PJRT_Buffer_Type_S16},
    {S::Int, PJRT_Buffer_Type_S32},
    {S::Long, PJRT_Buffer_Type_S64},
    {S::Byte, PJRT_Buffer_Type_U8},
    {S::UInt16, PJRT_Buffer_Type_U16},
    {S::UInt32, PJRT_Buffer_Type_U32},
    {S::UInt64, PJRT_Buffer_Type_U64},
    {S::Half, PJRT_Buffer_Type_F16},
    {S::BFloat16, PJRT_Buffer_Type_BF16},
    {S::Float, PJRT_Buffer_Type_F32},
    {S::Double, PJRT_Buffer_Type_F64},
    {S::ComplexFloat, PJRT_Buffer_Type_C64},
    {S::ComplexDouble, PJRT_Buffer_Type_C128},
    {S::Float8_e5m2, PJRT_Buffer_Type_F8E5M2},
    {S::Float8_e4m3fn, PJRT_Buffer_Type_F8E4M3FN},
    {S::Float8_e5m2fnuz, PJRT_Buffer_Type_F8E5M2FNUZ},
    {S::Float8_e4m3fnuz, PJRT_Buffer_Type_F8E4M3FNUZ},
    {S::Float8_e8m0fnu, PJRT_Buffer_Type_F8E8M0FNU},
};

}  // namespace

PJRT_Buffer_Type pjrt_type(c10::ScalarType dtype) {
  for (const auto& [torch, pjrt] : kTypes) {
    if (torch == dtype) return pjrt;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "dtype ", dtype,
                              " is not supported on tpu: XLA has no such element type");
}

c10::ScalarType torch_type(PJRT_Buffer_Type type) {
  for (const auto& [torch, pjrt] : kTypes) {
    if (pjrt == type) return torch;
  }
  TORCH_CHECK(false, "a buffer of element type ", pjrt::type_name(type), " has no PyTorch dtype");
}

at::Tensor wrap_buffer(BufferPtr buffer, c10::ScalarType dtype, const Dims& dims,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, bool padded) {
  static c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  const size_t nbytes =
      padded ? static_cast<size_t>(c10::multiply_integers(dims)) * c10::elementSize(dtype)
             : buffer->nbytes;
  const c10::DeviceIndex device = buffer->device;
  c10::DataPtr data = make_slot(device, nbytes);
  auto* slot = static_cast<Slot*>(data.get_context());
  slot->dtype = dtype;
  slot->dims = dims;
  slot->padded = padded;
  slot->buffer = std::move(buffer);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data), allocator, /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void assign(Slot& slot, BufferPtr buffer, c10::ScalarType dtype, const Dims& dims, bool padded) {
  std::lock_guard<SpinLock> guard(slot.lock);
  slot.buffer.swap(buffer);  // the old one is released after the lock
  slot.dtype = dtype;
  slot.dims = dims;
  slot.padded = padded;
}

std::optional<Dims> physical_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const auto n = static_cast<int64_t>(sizes.size());
  Dims order(n);
  std::iota(order.begin(), order.end(), 0);
  // Nothing is in memory: any order will do.
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return order;
  // Sizes of 1 that follow a matrix come first (why: dense_order in stablehlo/strided.py).
  if (n > 2 && std::all_of(sizes.begin() + 2, sizes.end(), [](int64_t s) { return s == 1; }))
    std::rotate(order.begin(), order.begin() + 2, order.end());
  // Other dims of size 1 keep their place relative to their neighbours.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (sizes[a] == 1 || sizes[b] == 1) return false;
    return strides[a] > strides[b];
  });
  // With size-1 dims between, the comparison above is no strict weak order: check the outcome.
  auto dense = [&](const Dims& o) {
    int64_t expected = 1;
    for (auto i = n - 1; i >= 0; --i) {
      if (sizes[o[i]] == 1) continue;
      if (strides[o[i]] != expected) return false;
      expected *= sizes[o[i]];
    }
    return true;
  };
  if (dense(order)) return order;
  Dims moving;
  for (int64_t i = 0; i < n; ++i) {
    if (sizes[i] != 1) moving.push_back(i);
  }
  std::stable_sort(moving.begin(), moving.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  Dims second;
  for (int64_t i = 0; i < n; ++i) {
    if (sizes[i] == 1) second.push_back(i);
  }
  second.append(moving.begin(), moving.end());
  if (dense(second)) return second;
  return std::nullopt;
}

Dims permuted(c10::IntArrayRef values, const Dims& order) {
  Dims out;
  for (int64_t i : order) out.push_back(values[i]);
  return out;
}

BufferPtr to_device(const at::Tensor& dense_cpu, const Dims& dims, c10::DeviceIndex device) {
  return translated("copying a tensor to the device", [&] {
    Runtime& rt = runtime();
    const size_t nbytes = dense_cpu.nbytes();
    const void* data = dense_cpu.const_data_ptr();
    const PJRT_Buffer_Type type = pjrt_type(dense_cpu.scalar_type());
    const std::span<const int64_t> shape{dims.data(), dims.size()};
    const pjrt::Device& target = rt.device(device);
    pjrt::Buffer buffer;
    if (nbytes >= heap::kLarge && heap::kept() && rt.client().has_uninitialized_buffers()) {
      // As a rule weights. Huge pages cost least where memory has not been written yet.
      buffer = rt.client().uninitialized_buffer(type, shape, target);
      auto* const memory = reinterpret_cast<void*>(buffer.unsafe_pointer());
      heap::back_with_huge_pages(memory, nbytes);
      std::memcpy(memory, data, nbytes);
    } else {
      buffer = rt.client().buffer_from_host(data, type, shape, target);
    }
    return c10::make_intrusive<BufferRef>(std::move(buffer), device, nbytes);
  });
}

namespace {

// The base of a padded buffer, row-major.
at::Tensor padded_to_host(const pjrt::Buffer& buffer, const Dims& base) {
  at::Tensor all = at::empty(buffer.dims(), at::TensorOptions(torch_type(buffer.type())));
  if (all.nbytes() > 0) buffer.to_host(all.mutable_data_ptr(), all.nbytes()).await();
  for (size_t d = 0; d < base.size(); ++d) {
    all = all.narrow(static_cast<int64_t>(d), 0, base[d]);
  }
  return all.contiguous();
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  Slot& slot = *slot_of(*tensor.storage().unsafeGetStorageImpl());
  auto order = physical_order(tensor.sizes(), tensor.strides());
  const bool whole =
      order && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
  if (!whole) {
    if (tensor.numel() == 0)
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    return to_host(tensor.clone(at::MemoryFormat::Contiguous));
  }
  at::Tensor host =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  BufferPtr buffer;
  Dims padded_base;
  bool padded = false;
  {
    std::lock_guard<SpinLock> guard(slot.lock);
    buffer = slot.buffer;
    padded = slot.padded;
    if (padded) padded_base = slot.dims;
  }
  if (!buffer) return host;  // contents of an uninitialised tensor: any
  if (tensor.nbytes() > 0) {
    translated("copying a tensor to the host", [&] {
      if (padded) {
        const at::Tensor base = padded_to_host(buffer->buffer, padded_base);
        std::memcpy(host.mutable_data_ptr(), base.const_data_ptr(), host.nbytes());
        return 0;
      }
      buffer->buffer.to_host(host.mutable_data_ptr(), host.nbytes()).await();
      return 0;
    });
  }
  stats().to_host.fetch_add(1, std::memory_order_relaxed);
  stats().bytes_to_host.fetch_add(host.nbytes(), std::memory_order_relaxed);
  return host;
}

namespace {

// Recent numbers by value: a direct-mapped table whose entries are guarded by their own lock.
struct NumberCache {
  struct Entry {
    SpinLock lock;
    uint64_t bits[2] = {0, 0};
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    BufferPtr buffer;
  };
  std::array<Entry, 1024> entries;
};

template <class T>
BufferPtr upload(T value, c10::ScalarType dtype, c10::DeviceIndex device) {
  Runtime& rt = runtime();
  pjrt::Buffer buffer =
      rt.client().buffer_from_host(&value, pjrt_type(dtype), {}, rt.device(device));
  return c10::make_intrusive<BufferRef>(std::move(buffer), device, sizeof(T));
}

BufferPtr upload_number(const c10::Scalar& v, c10::ScalarType dtype, c10::DeviceIndex device) {
  using S = c10::ScalarType;
  switch (dtype) {
    case S::Bool:
      return upload(v.to<bool>(), dtype, device);
    case S::Char:
      return upload(v.to<int8_t>(), dtype, device);
    case S::Short:
      return upload(v.to<int16_t>(), dtype, device);
    case S::Int:
      return upload(v.to<int32_t>(), dtype, device);
    case S::Long:
      return upload(v.to<int64_t>(), dtype, device);
    case S::Byte:
      return upload(v.to<uint8_t>(), dtype, device);
    case S::UInt16:
      return upload(v.to<uint16_t>(), dtype, device);
    case S::UInt32:
      return upload(v.to<uint32_t>(), dtype, device);
    case S::UInt64:
      return upload(v.to<uint64_t>(), dtype, device);
    case S::Half:
      return upload(v.to<at::Half>(), dtype, device);
    case S::BFloat16:
      return upload(v.to<at::BFloat16>(), dtype, device);
    case S::Float:
      return upload(static_cast<float>(v.to<double>()), dtype, device);
    case S::Double:
      return upload(v.to<double>(), dtype, device);
    case S::ComplexFloat: {
      const auto z = v.to<c10::complex<double>>();
      return upload(c10::complex<float>(static_cast<float>(z.real()), static_cast<float>(z.imag())),
                    dtype, device);
    }
    case S::ComplexDouble:
      return upload(v.to<c10::complex<double>>(), dtype, device);
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "a number of dtype ", dtype,
                                  " cannot be passed to the tpu device");
  }
}

}  // namespace

BufferPtr number_buffer(const c10::Scalar& value, c10::ScalarType dtype, c10::DeviceIndex device) {
  static auto* const cache =
      new NumberCache();  // never destroyed: buffers must not outlive the plugin
  uint64_t bits[2] = {0, 0};
  if (value.isComplex()) {
    const auto z = value.toComplexDouble();
    bits[0] = std::bit_cast<uint64_t>(z.real());
    bits[1] = std::bit_cast<uint64_t>(z.imag()) ^ 3;
  } else if (value.isFloatingPoint()) {
    bits[0] = std::bit_cast<uint64_t>(value.toDouble());
    bits[1] = 1;
  } else {
    bits[0] = value.isBoolean()                         ? value.toBool()
              : value.type() == c10::ScalarType::UInt64 ? value.toUInt64()
                                                        : static_cast<uint64_t>(value.toLong());
    bits[1] = 2;
  }
  uint64_t h = (bits[0] ^ bits[1] * 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(dtype) << 8 ^
                static_cast<uint64_t>(device)) *
               0xFF51AFD7ED558CCDull;
  auto& entry = cache->entries[h >> 54];
  {
    std::lock_guard<SpinLock> guard(entry.lock);
    if (entry.buffer && entry.dtype == dtype && entry.bits[0] == bits[0] &&
        entry.bits[1] == bits[1] && entry.buffer->device == device) {
      return entry.buffer;
    }
  }
  BufferPtr buffer = upload_number(value, dtype, device);
  BufferPtr old = buffer;
  std::lock_guard<SpinLock> guard(entry.lock);
  entry.buffer.swap(old);
  entry.bits[0] = bits[0];
  entry.bits[1] = bits[1];
  entry.dtype = dtype;
  return buffer;
}

BufferPtr random_state_buffer(uint64_t seed, uint64_t offset, c10::DeviceIndex device) {
  const std::array<uint64_t, 2> state{seed, offset};
  const std::array<int64_t, 1> dims{2};
  Runtime& rt = runtime();
  pjrt::Buffer buffer =
      rt.client().buffer_from_host(state.data(), PJRT_Buffer_Type_U64, dims, rt.device(device));
  return c10::make_intrusive<BufferRef>(std::move(buffer), device, sizeof(state));
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  Slot* slot = slot_of(*impl);
  const size_t old_bytes = impl->nbytes();
  if (nbytes == old_bytes) return;
  const c10::DeviceIndex device = slot->device;
  BufferPtr buffer;
  c10::ScalarType dtype;
  {
    std::lock_guard<SpinLock> guard(slot->lock);
    buffer = slot->buffer;
    dtype = slot->dtype;
  }
  c10::DataPtr data = make_slot(device, nbytes);
  if (buffer && nbytes > 0 && old_bytes > 0) {
    auto itemsize = c10::elementSize(dtype);
    if (nbytes % itemsize != 0) {
      dtype = c10::ScalarType::Byte;
      itemsize = 1;
    }
    const auto old_n = static_cast<int64_t>(old_bytes / itemsize);
    const auto new_n = static_cast<int64_t>(nbytes / itemsize);
    const auto keep = std::min(old_n, new_n);
    auto options =
        at::TensorOptions().dtype(dtype).device(c10::Device(c10::DeviceType::PrivateUse1, device));
    at::Tensor old = at::empty({0}, options).set_(storage, 0, {old_n}, {1});
    at::Tensor fresh = at::empty({new_n}, options);
    fresh.narrow(0, 0, keep).copy_(old.narrow(0, 0, keep));
    Slot* from = slot_of(*fresh.storage().unsafeGetStorageImpl());
    auto* to = static_cast<Slot*>(data.get_context());
    to->buffer = from->buffer;
    to->dtype = from->dtype;
    to->dims = from->dims;
    to->padded = from->padded;
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(nbytes);
}

}  // namespace torchtpu
