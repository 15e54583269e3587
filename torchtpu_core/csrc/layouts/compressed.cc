// Compressed tensors (CSR and its relatives): products, by way of their COO form.
#include <ATen/OpMathType.h>

#include "../dispatch/boxed.h"
#include "sparse.h"

namespace torchtpu::layouts {
namespace {

using at::Scalar;
using at::Tensor;

// Replaces the entries of a compressed tensor by those of another.
Tensor& replace(Tensor& out, const Tensor& by) {
  out.resize_as_sparse_(by);
  return out.copy_(by);
}

Tensor& compressed_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                             const Scalar& beta, const Scalar& alpha, Tensor& out) {
  if (out.layout() != at::kStrided) {  // the structure of the result is data: the host's
    const Tensor result =
        at::addmm(self.cpu(), mat1.cpu(), mat2.cpu(), beta, alpha).to(out.device());
    return replace(out, result);
  }
  Tensor result;
  if (mat1.layout() != at::kStrided && mat2.layout() != at::kStrided) {
    result = add_product(self, mat1, mat2.to_dense(), beta, alpha);
  } else {
    result = add_product(self, mat1, mat2, beta, alpha);
  }
  out.resize_(result.sizes());
  return out.copy_(result);
}

Tensor& compressed_addmv_out(const Tensor& self, const Tensor& mat, const Tensor& vec,
                             const Scalar& beta, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(vec.dim() == 1, "addmv: expected a vector, got sizes ", vec.sizes());
  const Tensor start = self.dim() == 0 ? self : self.unsqueeze(1);
  const Tensor result = add_product(start, mat, vec.unsqueeze(1), beta, alpha).squeeze(1);
  out.resize_(result.sizes());
  return out.copy_(result);
}

Tensor& compressed_add_out(const Tensor& self, const Tensor& other, const Scalar& alpha,
                           Tensor& out) {
  if (self.layout() == at::kStrided) {
    out.resize_(self.sizes());
    return out.copy_(self.add(other.to_sparse(), alpha));
  }
  const Tensor sum = at::add(self.cpu(), other.cpu(), alpha).to(out.device());
  return replace(out, sum);
}

// alpha * (mat1 @ mat2) at the entries of a CSR matrix, plus beta * self.
Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha) {
  TORCH_CHECK(self.layout() == at::kSparseCsr,
              "sampled_addmm: Expected self to have sparse csr layout, but got ", self.layout());
  TORCH_CHECK(mat1.layout() == at::kStrided && mat2.layout() == at::kStrided,
              "sampled_addmm: Expected mat1 and mat2 to have strided layout, but got ",
              mat1.layout(), " and ", mat2.layout());
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type() && mat1.scalar_type() == self.scalar_type(),
              "sampled_addmm: Expected equal dtypes, got ", self.scalar_type(), ", ",
              mat1.scalar_type(), " and ", mat2.scalar_type());
  const int64_t m = self.size(-2), n = self.size(-1);
  const auto batch = self.sizes().slice(0, self.dim() - 2);
  TORCH_CHECK(mat1.dim() == self.dim() && mat2.dim() == self.dim() && mat1.size(-2) == m &&
                  mat2.size(-1) == n && mat1.size(-1) == mat2.size(-2) &&
                  batch.equals(mat1.sizes().slice(0, batch.size())) &&
                  batch.equals(mat2.sizes().slice(0, batch.size())),
              "sampled_addmm: sizes do not fit: ", self.sizes(), ", ", mat1.sizes(), " and ",
              mat2.sizes());
  // Entries of a batch of matrices are those of one with all rows below each other.
  const int64_t b = c10::multiply_integers(batch), k = mat1.size(-1);
  const Tensor crow = self.crow_indices().reshape({b, m + 1});
  const Tensor col = self.col_indices().reshape({b, -1});
  const Tensor which = at::arange(b, col.options()).unsqueeze(1);
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < b; ++i) {
    rows.push_back(at::_convert_indices_from_csr_to_coo(crow[i], col[i])[0]);
  }
  const Tensor row = b == 0 ? col : at::stack(rows);
  const auto wide = at::toOpMathType(self.scalar_type());
  const Tensor left = mat1.reshape({b * m, k}).index_select(0, which.mul(m).add(row).flatten());
  const Tensor right =
      mat2.transpose(-2, -1).reshape({b * n, k}).index_select(0, which.mul(n).add(col).flatten());
  Tensor values = left.to(wide).mul(right).sum(-1).mul(alpha).reshape(self.values().sizes());
  if (!beta.equal(0)) values = values.add(self.values().mul(beta));
  return at::_sparse_csr_tensor_unsafe(self.crow_indices().clone(), self.col_indices().clone(),
                                       values.to(self.scalar_type()), self.sizes(), self.options());
}

Tensor& sampled_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                          const Scalar& beta, const Scalar& alpha, Tensor& out) {
  return replace(out, sampled_addmm(self, mat1, mat2, beta, alpha));
}

Tensor compressed_copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  Tensor target = dst;
  if (dst.layout() != at::kStrided) return replace(target, self.to(dst.device()));
  target.resize_(self.sizes());
  return target.copy_(self);
}

}  // namespace

void register_compressed(torch::Library& m) {
  m.impl("add.out", compressed_add_out);
  m.impl("addmm.out", compressed_addmm_out);
  m.impl("addmv.out", compressed_addmv_out);
  m.impl("sparse_sampled_addmm", sampled_addmm);
  m.impl("sparse_sampled_addmm.out", sampled_addmm_out);
  m.impl("_copy_from_and_resize", compressed_copy_from_and_resize);
}

}  // namespace torchtpu::layouts
