// Tensors and buffers: new tensors around buffers, host to device, device to host, numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include "../device/storage.h"
#include "../pjrt/types.h"

namespace torchtpu {

PJRT_Buffer_Type pjrt_type(c10::ScalarType dtype);
c10::ScalarType torch_type(PJRT_Buffer_Type type);

// A new tensor whose storage is `buffer`, of base `dims`; `padded` as in Slot.
at::Tensor wrap_buffer(BufferPtr buffer, c10::ScalarType dtype, const Dims& dims,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, bool padded = false);

// Puts a new value into a slot: its storage's contents from now on.
void assign(Slot& slot, BufferPtr buffer, c10::ScalarType dtype, const Dims& dims,
            bool padded = false);

// Copies a CPU tensor (dense, any permutation of dims; its memory order is the base) to a device.
BufferPtr to_device(const at::Tensor& dense_cpu, const Dims& dims, c10::DeviceIndex device);

// The permutation that orders dims from slowest to fastest in memory when the tensor is
// non-overlapping and dense; else nothing.
std::optional<Dims> physical_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);
Dims permuted(c10::IntArrayRef values, const Dims& order);

// A CPU tensor with the sizes, dtype and (if dense) strides of a tpu tensor. Waits.
at::Tensor to_host(const at::Tensor& tensor);

// A number as a 0-d buffer; recent ones are kept, so that a repeated number costs nothing.
BufferPtr number_buffer(const c10::Scalar& value, c10::ScalarType dtype, c10::DeviceIndex device);
// {seed, offset} of a random program.
BufferPtr random_state_buffer(uint64_t seed, uint64_t offset, c10::DeviceIndex device);

// Changes the size of a storage, keeping its contents (PyTorch's resize_ and
// untyped_storage().resize_).
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace torchtpu
