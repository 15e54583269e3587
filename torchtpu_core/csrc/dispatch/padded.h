// Tensors whose buffer is larger than they are: how the programs of a bucket of sizes (see
// compile/bucketed.py) take and give them.
#pragma once

#include <ATen/core/Tensor.h>

#include "../device/storage.h"

namespace torchtpu {

// The whole buffer of `t` as a tensor of sizes `room`, sharing it; undefined unless `t` is all of
// its storage, its dims lie in memory in `order`, and its base is `base` in a buffer of dims
// `room`.
at::Tensor padded_view(const at::Tensor& t, const Dims& base, const Dims& room, const Dims& order);

// A new tensor of `sizes`, its dims in memory in `order`, whose base of dims `base` is the leading
// corner of the buffer of `all`, which is shared.
at::Tensor corner(const at::Tensor& all, const Dims& base, const Dims& sizes, const Dims& order);

// Makes the leading corner of the buffer of `all` the contents of the storage of `t`. False, and
// nothing done, unless `t` is all of its storage and its dims lie in memory in `order`.
bool adopt(const at::Tensor& t, const at::Tensor& all, const Dims& base, const Dims& order);

}  // namespace torchtpu
