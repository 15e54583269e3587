#include "native.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include "transfer.h"

namespace torchtpu {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<at::Device> device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  if (!device || !device->has_index()) return guard.getDevice();
  TORCH_CHECK(device->is_privateuseone(), "Expected a tpu device, got ", *device);
  return *device;
}

void check_factory(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "Only strided tensors can be created on tpu, got layout ",
              c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  pjrt_type(c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_factory(dtype, layout, pin_memory);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, c10::GetAllocator(c10::DeviceType::PrivateUse1), kKeys,
                                   c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_factory(dtype, layout, pin_memory);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride,
                                           c10::GetAllocator(c10::DeviceType::PrivateUse1), kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }
at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return at::native::is_set_to(self, other);
}

// Grows the storage if the tensor now reaches beyond it.
void fit_storage(const at::Tensor& self) {
  if (self.numel() == 0) return;
  const auto needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(),
                                                       self.itemsize(), self.storage_offset());
  if (needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  if (!self.sizes().equals(size)) {
    for (int64_t s : size)
      TORCH_CHECK(s >= 0, "Trying to create tensor with negative dimension ", s, ": ", size);
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    fit_storage(self);
  }
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return self.set_(std::move(source), 0, {n}, {1});
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset,
                               at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr && (stride.size() > 0 || size.empty())) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  fit_storage(self);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return self.set_(source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  at::Tensor fresh = at::empty({0}, self.options());
  return self.set_(fresh.storage(), 0, {0}, {1});
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return to_host(self).item(); }

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  target.copy_(self, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (!dst.sizes().equals(self.sizes())) dst.resize_(self.sizes());
  at::Tensor target = dst;
  target.copy_(self);
  return target;
}

// Work on a stream is ordered by its data: nothing to record.
void record_stream(at::Tensor&, at::Stream) {}

// What nn.TransformerEncoder asks before it packs padded batches into nested tensors, which this
// device does not have: no, so that it stays on its dense path.
bool nested_tensor_from_mask_left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

void register_native(torch::Library& m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("view_as_real", view_as_real);
  m.impl("view_as_complex", view_as_complex);
  m.impl("is_set_to", is_set_to);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_empty);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("record_stream", record_stream);
  m.impl("_nested_tensor_from_mask_left_aligned", nested_tensor_from_mask_left_aligned);
}

const std::unordered_set<std::string>& native_names() {
  static const std::unordered_set<std::string> names = {
      "aten::empty.memory_format",
      "aten::empty_strided",
      "aten::as_strided",
      "aten::view",
      "aten::_reshape_alias",
      "aten::unfold",
      "aten::view_as_real",
      "aten::view_as_complex",
      "aten::is_set_to",
      "aten::resize_",
      "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor",
      "aten::set_",
      "aten::_local_scalar_dense",
      "aten::_copy_from",
      "aten::_copy_from_and_resize",
      "aten::record_stream",
      "aten::_nested_tensor_from_mask_left_aligned",
      "aten::_fused_sdp_choice",
      // csrc/layouts
      "aten::_to_sparse",
      "aten::_to_sparse.sparse_dim",
      "aten::_to_sparse_csr",
      "aten::_to_sparse_csc",
      "aten::_to_sparse_bsr",
      "aten::_to_sparse_bsc",
      "aten::_nested_from_padded",
      // Composites over the above, better left to PyTorch.
      "aten::_unsafe_view",
      "aten::unsafe_chunk",
      "aten::unsafe_split.Tensor",
      "aten::unsafe_split_with_sizes",
      "aten::is_pinned",
      "aten::_pin_memory",
      "aten::_lazy_clone",
      "aten::_has_same_storage_numel",
      "aten::resize_as_",
      "aten::_resize_output_",
      "aten::set_data",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::empty_like",
      "aten::new_zeros",
      "aten::new_ones",
      "aten::new_full",
  };
  return names;
}

}  // namespace torchtpu
