#pragma once

#include <ATen/ATen.h>

namespace torchtpu::kernels {

// out = x @ y, of matrices or of batches of them, by the faster of PyTorch's libraries; `out` is
// contiguous.
void product(const at::Tensor& x, const at::Tensor& y, at::Tensor out);

}  // namespace torchtpu::kernels
