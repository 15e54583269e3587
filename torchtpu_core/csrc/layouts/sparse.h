// Tensors made of several strided ones: sparse and nested. PyTorch's own kernels wherever they are
// written in terms of other operators; products, sums and coalescing of sparse tensors here, out of
// dense operators of the device; by a round trip over the host what PyTorch computes with loops
// over the structure.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

namespace torchtpu::layouts {

// The operators that are written here, for SparsePrivateUse1 and SparseCsrPrivateUse1.
void register_coo(torch::Library& m);
void register_compressed(torch::Library& m);

// beta * self + alpha * (mat1 @ mat2) as a new dense (m, n) tensor, where one of the two matrices
// is sparse in any layout. beta = 0 drops `self` even if it holds NaN.
at::Tensor add_product(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                       const at::Scalar& beta, const at::Scalar& alpha);

// Replaces the entries of a COO tensor; values are converted to its dtype.
void assign(const at::Tensor& out, at::IntArrayRef sizes, int64_t dense_dim, at::Tensor indices,
            at::Tensor values, bool coalesced);

}  // namespace torchtpu::layouts
