// What some operators need before (or instead of) a program: crossing devices, sharing a buffer,
// indices that are masks or live on the CPU.
#include <ATen/ATen.h>
#include <ATen/native/IndexingUtils.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "../device/runtime.h"
#include "boxed.h"
#include "padded.h"
#include "stats.h"
#include "transfer.h"

namespace torchtpu {
namespace {

using torch::jit::Stack;

at::Tensor& arg(Stack* stack, size_t n, size_t i) {
  return (*stack)[stack->size() - n + i].toTensor();
}

void finish(Stack* stack, size_t n, c10::IValue result) {
  torch::jit::drop(*stack, n);
  stack->push_back(std::move(result));
}

// Whether a tensor is all of its storage, in some dense order.
bool is_whole(const at::Tensor& t, const std::optional<Dims>& order) {
  return order && t.storage_offset() == 0 && t.storage().nbytes() == t.nbytes();
}

void copy_host_to_device(const at::Tensor& dst, const at::Tensor& src) {
  if (dst.numel() == 0) return;
  const auto order = physical_order(dst.sizes(), dst.strides());
  if (!is_whole(dst, order)) {
    at::Tensor staged = at::empty(dst.sizes(), dst.options());
    copy_host_to_device(staged, src);
    at::Tensor target = dst;
    target.copy_(staged);
    return;
  }
  // The values in the order of dst's memory, in dst's dtype; no copy when src is so already.
  at::Tensor host =
      src.to(dst.scalar_type()).expand(dst.sizes()).permute(c10::IntArrayRef(*order)).contiguous();
  const Dims base = permuted(dst.sizes(), *order);
  Slot& slot = *slot_of(*dst.storage().unsafeGetStorageImpl());
  assign(slot, to_device(host, base, dst.device().index()), dst.scalar_type(), base);
  stats().to_device.fetch_add(1, std::memory_order_relaxed);
  stats().bytes_to_device.fetch_add(host.nbytes(), std::memory_order_relaxed);
}

void copy_across_devices(const at::Tensor& dst, const at::Tensor& src) {
  at::Tensor dense = src.contiguous();
  Slot& from = *slot_of(*dense.storage().unsafeGetStorageImpl());
  BufferPtr buffer;
  bool padded = false;
  {
    std::lock_guard<SpinLock> guard(from.lock);
    buffer = from.buffer;
    padded = from.padded;
  }
  at::Tensor staged = at::empty(src.sizes(), src.options().device(dst.device()));
  if (buffer && dense.storage().nbytes() == dense.nbytes()) {
    pjrt::Buffer moved = buffer->buffer.copy_to(runtime().pjrt_device(dst.device().index()));
    const Dims dims(dense.sizes().begin(), dense.sizes().end());
    assign(*slot_of(*staged.storage().unsafeGetStorageImpl()),
           c10::make_intrusive<BufferRef>(std::move(moved), dst.device().index(), buffer->nbytes),
           from.dtype, from.dims, padded);
  } else if (buffer) {
    staged.copy_(dense.cpu());
  }
  at::Tensor target = dst;
  target.copy_(staged);
}

// copy_(self, src, non_blocking)
bool copy_hook(const c10::OperatorHandle&, Stack* stack) {
  at::Tensor dst = arg(stack, 3, 0);
  at::Tensor src = arg(stack, 3, 1);
  if (dst.is_same(src)) {
    finish(stack, 3, dst);
    return true;
  }
  if (dst.is_conj() || dst.is_neg() || src.is_conj() || src.is_neg()) {
    at::Tensor values = src.resolve_conj().resolve_neg();
    at::Tensor target = dst;
    if (dst.is_conj()) {
      target = target.conj();
      values = values.conj().resolve_conj();
    }
    if (target.is_neg()) {
      target = target._neg_view();
      values = values.neg();
    }
    target.copy_(values);
    finish(stack, 3, dst);
    return true;
  }
  const bool to_tpu = dst.is_privateuseone();
  const bool from_tpu = src.is_privateuseone();
  if (to_tpu && from_tpu) {
    if (dst.device() == src.device()) return false;
    copy_across_devices(dst, src);
  } else if (to_tpu) {
    TORCH_CHECK(src.is_cpu(), "Cannot copy a tensor from ", src.device(), " to ", dst.device());
    at::infer_size(dst.sizes(), src.sizes());  // PyTorch's error for shapes that do not broadcast
    TORCH_CHECK(at::is_expandable_to(src.sizes(), dst.sizes()), "output with shape ", dst.sizes(),
                " doesn't match the broadcast shape ", at::infer_size(dst.sizes(), src.sizes()));
    copy_host_to_device(dst, src);
  } else {
    TORCH_CHECK(dst.is_cpu(), "Cannot copy a tensor from ", src.device(), " to ", dst.device());
    dst.copy_(to_host(src));
  }
  finish(stack, 3, dst);
  return true;
}

// _to_copy(self, *, dtype, layout, device, pin_memory, non_blocking, memory_format): a cast on the
// device is a program; anything that crosses devices is PyTorch's composite of empty and copy_.
bool to_copy_hook(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor& self = arg(stack, 7, 0);
  const c10::IValue& device = (*stack)[stack->size() - 4];
  const bool stays =
      self.is_privateuseone() && !self.is_conj() && !self.is_neg() &&
      (device.isNone() || (device.toDevice().is_privateuseone() &&
                           (!device.toDevice().has_index() || device.toDevice() == self.device())));
  if (stays) return false;
  c10::Dispatcher::singleton().callBoxedForDispatchKey(
      op, c10::DispatchKey::CompositeExplicitAutograd, stack);
  return true;
}

// clone(self, *, memory_format): buffers are immutable, so a clone that keeps the layout shares the
// buffer.
bool clone_hook(const c10::OperatorHandle&, Stack* stack) {
  const at::Tensor& self = arg(stack, 2, 0);
  if (self.is_conj() || self.is_neg()) return false;
  const c10::IValue& format = (*stack)[stack->size() - 1];
  const auto wanted = format.isNone() ? at::MemoryFormat::Preserve : format.toMemoryFormat();
  const auto order = physical_order(self.sizes(), self.strides());
  if (!is_whole(self, order) || self.numel() == 0) return false;
  if (wanted != at::MemoryFormat::Preserve && !self.is_contiguous(wanted)) return false;
  Slot& slot = *slot_of(*self.storage().unsafeGetStorageImpl());
  BufferPtr buffer;
  c10::ScalarType dtype = self.scalar_type();
  Dims dims;
  bool padded = false;
  {
    std::lock_guard<SpinLock> guard(slot.lock);
    buffer = slot.buffer;
    padded = slot.padded;
    if (buffer) {
      dtype = slot.dtype;
      dims = slot.dims;
    }
  }
  if (buffer && dtype != self.scalar_type()) return false;
  if (!buffer) {
    finish(stack, 2, at::empty_strided(self.sizes(), self.strides(), self.options()));
    return true;
  }
  // Strides of size-1 dims may be anything; a clone has the canonical ones.
  at::Tensor out =
      wrap_buffer(std::move(buffer), dtype, dims, self.sizes(),
                  at::empty_like(self, self.options().device(at::kMeta), wanted).strides(), padded);
  finish(stack, 2, std::move(out));
  return true;
}

bool is_mask(const at::Tensor& t) {
  return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
}

// Whether one mask is all that indexes: x[mask] = v is a select, which needs no positions, and
// x[mask] a program with a bound (lowering/selection.py).
bool takes_mask(const c10::OperatorHandle& op, const c10::List<std::optional<at::Tensor>>& list) {
  size_t given = 0;
  for (const std::optional<at::Tensor>& t : list) given += t.has_value();
  const bool put = op.operator_name().name.find("index_put") != std::string::npos;
  if (given != 1 || (put && list.size() != 1) || op.operator_name().overload_name == "Tensor_out")
    return false;
  for (const std::optional<at::Tensor>& t : list) {
    if (!t) continue;
    if (!put && t->scalar_type() == at::kByte) {
      TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool",
                 " instead.");
    }
    return t->dim() > 0 && is_mask(*t);
  }
  return false;
}

// Masks become the positions they select (their number is data: one read by the host), and indices
// given on the CPU move to the device, as on cuda.
bool expand_indices(const c10::OperatorHandle& op, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  const size_t base = stack->size() - n;
  const at::Tensor self = (*stack)[base].toTensor();
  size_t at = 1;
  while (!(*stack)[base + at].isList()) ++at;
  bool changed = false;
  c10::List<std::optional<at::Tensor>> indices;
  for (const auto& item : (*stack)[base + at].toListRef()) {
    std::optional<at::Tensor> t;
    if (item.isTensor() && item.toTensor().defined()) {
      t = item.toTensor();
      if (t->is_cpu() && self.is_privateuseone()) {
        t = t->to(self.device());
        changed = true;
      }
      changed = changed || is_mask(*t);
    }
    indices.push_back(t);
  }
  if (!changed) return false;
  if (takes_mask(op, indices)) {
    (*stack)[base + at] = indices;
    return false;
  }
  const auto expanded = at::native::expandTensors(self, indices);
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& t : expanded) {
    list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
  }
  (*stack)[base + at] = list;
  return false;
}

// The size that a result of `n` places along a dimension is computed at: no program for each n.
int64_t room_for(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// The first n elements of a vector.
at::Tensor leading(const at::Tensor& all, int64_t n) {
  if (n == all.numel()) return all;
  return n == 0 ? at::empty({0}, all.options()) : corner(all, {n}, {n}, {0});
}

// repeat_interleave(repeats, *, output_size): where the size is not given, it and the least of the
// repeats are read by the host.
bool repeat_interleave_hook(const c10::OperatorHandle&, Stack* stack) {
  if (!(*stack)[stack->size() - 1].isNone()) return false;
  const at::Tensor repeats = arg(stack, 2, 0);
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) {
    finish(stack, 2, at::empty_like(repeats));
    return true;
  }
  const at::Tensor found =
      at::stack({repeats.sum(), repeats.min().to(at::kLong)}).to(at::Device(at::kCPU));
  const auto* numbers = found.const_data_ptr<int64_t>();
  TORCH_CHECK(numbers[1] >= 0, "repeats can not be negative");
  const int64_t total = numbers[0];
  finish(stack, 2,
         leading(at::repeat_interleave(repeats, std::optional<int64_t>(room_for(total))), total));
  return true;
}

// bincount(self, weights, minlength): the greatest value is read by the host, which also runs the
// calls that are wrong, or of nothing.
bool bincount_hook(const c10::OperatorHandle&, Stack* stack) {
  const at::Tensor self = arg(stack, 3, 0);
  const c10::IValue& given = (*stack)[stack->size() - 2];
  const int64_t least = (*stack)[stack->size() - 1].toInt();
  if (!c10::isIntegralType(self.scalar_type(), false) || self.dim() != 1 || self.numel() == 0 ||
      least < 0)
    return false;
  at::Tensor weights;
  if (given.isTensor() && given.toTensor().defined()) {
    weights = given.toTensor();
    if (weights.sizes() != self.sizes() || weights.is_complex() || !weights.is_privateuseone())
      return false;
    if (weights.scalar_type() != at::kFloat) weights = weights.to(at::kDouble);
  } else {
    weights = at::ones_like(self, self.options().dtype(at::kLong));
  }
  const auto [low, high] = at::aminmax(self);
  const at::Tensor found = at::stack({low, high}).to(at::kLong).to(at::Device(at::kCPU));
  const auto* numbers = found.const_data_ptr<int64_t>();
  if (numbers[0] < 0) return false;
  const int64_t n = std::max(least, numbers[1] + 1);
  const at::Tensor bins = at::zeros({room_for(n)}, weights.options());
  finish(stack, 3, leading(bins.index_add(0, self.to(at::kLong), weights), n));
  return true;
}

// equal(self, other): one reduction on the device, one read by the host.
bool equal_hook(const c10::OperatorHandle&, Stack* stack) {
  const at::Tensor a = arg(stack, 2, 0);
  const at::Tensor b = arg(stack, 2, 1);
  TORCH_CHECK(a.device() == b.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              a.device(), " and ", b.device(), "!");
  TORCH_CHECK(a.dtype() == b.dtype(), "Expected all tensors to have the same dtype, but found ",
              a.dtype(), " and ", b.dtype());
  const bool same = a.sizes().equals(b.sizes()) && (a.numel() == 0 || a.eq(b).all().item<bool>());
  finish(stack, 2, same);
  return true;
}

// _embedding_bag_backward(..., sparse, per_sample_weights, padding_idx): a sparse gradient is no
// program; PyTorch makes it of other operators.
bool embedding_bag_backward_hook(const c10::OperatorHandle& op, Stack* stack) {
  if (!(*stack)[stack->size() - 3].toBool()) return false;
  c10::Dispatcher::singleton().callBoxedForDispatchKey(op, c10::DispatchKey::CPU, stack);
  return true;
}

// The operators that would make a tensor of a quantized dtype.
bool quantize_hook(const c10::OperatorHandle& op, Stack* stack) {
  unsupported(op, stack,
              "quantized dtypes (torch.qint8, torch.quint8, ...) are not supported; keep int8 "
              "tensors beside their scales (torch._int_mm, torch._scaled_mm, "
              "torch._weight_int8pack_mm), or quantize on the CPU");
  return true;
}

// Parameters of distributions are run-time inputs of a program, so each call checks them anew (the
// arguments after self; messages as in ATen/native/DistributionTemplates.h).
bool check_distribution(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t n = op.schema().arguments().size();
  const auto number = [&](size_t i) {
    return (*stack)[stack->size() - n + i].toScalar().toDouble();
  };
  if (name == "aten::uniform_") {
    TORCH_CHECK(number(1) <= number(2),
                "uniform_ expects to return a [from, to) range, but found from=", number(1),
                " > to=", number(2));
  } else if (name == "aten::normal_") {
    TORCH_CHECK(number(2) >= 0, "normal expects std >= 0.0, but found std ", number(2));
  } else if (name == "aten::log_normal_") {
    TORCH_CHECK(number(2) > 0, "log_normal_ expects std > 0.0, but found std=", number(2));
  } else if (name == "aten::cauchy_") {
    TORCH_CHECK(number(2) > 0, "cauchy_ expects sigma > 0.0, but found sigma=", number(2));
  } else if (name == "aten::exponential_") {
    TORCH_CHECK(number(1) > 0, "exponential_ expects lambda > 0.0, but found lambda=", number(1));
  } else if (name == "aten::geometric_") {
    TORCH_CHECK(0 < number(1) && number(1) < 1,
                "geometric_ expects p to be in (0, 1), but got p=", number(1));
  } else if (name == "aten::bernoulli_") {
    TORCH_CHECK(0 <= number(1) && number(1) <= 1,
                "bernoulli_ expects p to be in [0, 1], but got p=", number(1));
  }
  return false;
}

}  // namespace

Hook hook_for(const std::string& name) {
  static const std::unordered_map<std::string, Hook> hooks = {
      {"aten::copy_", copy_hook},
      {"aten::_to_copy", to_copy_hook},
      {"aten::clone", clone_hook},
      {"aten::equal", equal_hook},
      {"aten::repeat_interleave.Tensor", repeat_interleave_hook},
      {"aten::bincount", bincount_hook},
      {"aten::_embedding_bag_backward", embedding_bag_backward_hook},
      {"aten::quantize_per_tensor", quantize_hook},
      {"aten::quantize_per_tensor.tensor_qparams", quantize_hook},
      {"aten::quantize_per_tensor.tensors", quantize_hook},
      {"aten::quantize_per_tensor_dynamic", quantize_hook},
      {"aten::quantize_per_channel", quantize_hook},
      {"aten::uniform_", check_distribution},
      {"aten::normal_", check_distribution},
      {"aten::log_normal_", check_distribution},
      {"aten::cauchy_", check_distribution},
      {"aten::exponential_", check_distribution},
      {"aten::geometric_", check_distribution},
      {"aten::bernoulli_.float", check_distribution},
      {"aten::index.Tensor", expand_indices},
      {"aten::index.Tensor_out", expand_indices},
      {"aten::_unsafe_index.Tensor", expand_indices},
      {"aten::index_put", expand_indices},
      {"aten::index_put_", expand_indices},
      {"aten::_index_put_impl_", expand_indices},
      {"aten::_unsafe_index_put", expand_indices},
  };
  const auto it = hooks.find(name);
  return it == hooks.end() ? nullptr : it->second;
}

}  // namespace torchtpu
