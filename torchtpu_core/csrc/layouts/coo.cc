// COO tensors: coalescing, sums and products.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/native/SparseTensorUtils.h>

#include "sparse.h"

namespace torchtpu::layouts {
namespace {

using at::Scalar;
using at::Tensor;

int64_t rows_of(const Tensor& t) {
  return c10::multiply_integers(t.sizes().slice(0, t.sparse_dim()));
}

// The entries' positions among the sparse dimensions, flattened: (nnz,) int64.
Tensor flat_positions(const Tensor& t) {
  const Tensor indices = t._indices();
  if (t.sparse_dim() == 0) return at::zeros({t._nnz()}, indices.options());
  Tensor flat = indices[0];
  for (int64_t d = 1; d < t.sparse_dim(); ++d) flat = flat.mul(t.size(d)).add(indices[d]);
  return flat;
}

std::vector<int64_t> with_rows(int64_t rows, at::IntArrayRef dense) {
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), dense.begin(), dense.end());
  return sizes;
}

// Sorts the positions, numbers the distinct ones and adds up the values of each. How many there are
// is the one number that the host reads.
Tensor coalesce(const Tensor& self) {
  const Tensor indices = self._indices();
  const Tensor values = self._values();
  const int64_t nnz = self._nnz();
  if (nnz < 2) {
    Tensor out = self.clone();
    out._coalesced_(true);
    return out;
  }
  const auto [sorted, order] = flat_positions(self).sort();
  const Tensor is_new = sorted.slice(0, 1).ne(sorted.slice(0, 0, nnz - 1));
  const Tensor segment = at::constant_pad_nd(is_new.cumsum(0), {1, 0});
  const int64_t count = segment[nnz - 1].item<int64_t>() + 1;
  const Tensor unique = at::zeros({count}, sorted.options()).scatter_(0, segment, sorted);
  Tensor summed = at::zeros(with_rows(count, values.sizes().slice(1)), values.options())
                      .index_add_(0, segment, values.index_select(0, order));
  std::vector<Tensor> columns;
  int64_t below = rows_of(self);
  for (int64_t d = 0; d < self.sparse_dim(); ++d) {
    const int64_t size = self.size(d);
    below /= std::max<int64_t>(size, 1);
    columns.push_back(unique.div(below, "floor").remainder(std::max<int64_t>(size, 1)));
  }
  Tensor positions =
      columns.empty() ? at::empty({0, count}, indices.options()) : at::stack(columns);
  return at::_sparse_coo_tensor_unsafe(positions, summed, self.sizes(), self.options(), true);
}

at::ScalarType sum_dtype(const Tensor& self, const Tensor& other, const Tensor& out) {
  const auto dtype = at::result_type(self, other);
  TORCH_CHECK(c10::canCast(dtype, out.scalar_type()), "Can't convert result type ", dtype,
              " to output ", out.scalar_type());
  return dtype;
}

Tensor add_dense(const Tensor& dense, const Tensor& t, const Scalar& alpha, at::ScalarType dtype) {
  TORCH_CHECK(dense.sizes().equals(t.sizes()),
              "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", t.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const auto inner = t.sizes().slice(t.sparse_dim());
  return dense.to(dtype)
      .reshape(with_rows(rows_of(t), inner))
      .index_add(0, flat_positions(t), t._values().to(dtype), alpha)
      .reshape(dense.sizes());
}

Tensor& add_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  const auto dtype = sum_dtype(self, other, out);
  if (!self.is_sparse()) {
    const Tensor sum = add_dense(self, other, alpha, dtype);
    out.resize_(sum.sizes());
    return out.copy_(sum);
  }
  TORCH_CHECK(self.sizes().equals(other.sizes()),
              "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(at::sparse::is_same_density(self, other),
              "add: expected 'self' and 'other' to have same density, but 'self' has ",
              self.sparse_dim(), " sparse dimensions while 'other' has ", other.sparse_dim(),
              " sparse dimensions");
  const auto entries = [dtype](const Tensor& t) { return t._values().to(dtype); };
  Tensor sum =
      at::_sparse_coo_tensor_unsafe(at::cat({self._indices(), other._indices()}, 1),
                                    at::cat({entries(self), entries(other).mul(alpha).to(dtype)}),
                                    self.sizes(), self.options().dtype(dtype));
  if (self.is_coalesced() && other.is_coalesced()) sum = sum.coalesce();
  assign(out, sum.sizes(), sum.dense_dim(), sum._indices(), sum._values(), sum.is_coalesced());
  return out;
}

// The values of a dense tensor at the entries of a sparse one of the same sizes.
Tensor dense_at(const Tensor& dense, const Tensor& t) {
  if (t.sparse_dim() == 0) return dense.unsqueeze(0).expand_as(t._values());
  c10::List<std::optional<Tensor>> at;
  for (const Tensor& column : t._indices().unbind(0)) at.push_back(column);
  return dense.index(at);
}

Tensor sparse_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.is_sparse(), "sparse_mask(): mask must be sparse, got layout ", mask.layout());
  TORCH_CHECK(self.sizes().equals(mask.sizes()),
              "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  if (self.is_sparse()) return self.cpu().sparse_mask(mask.cpu()).to(self.device());
  return at::_sparse_coo_tensor_unsafe(mask._indices().clone(), dense_at(self, mask), mask.sizes(),
                                       mask.options().dtype(self.scalar_type()),
                                       mask.is_coalesced());
}

Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  const auto dtype = sum_dtype(self, other, out);
  TORCH_CHECK(out.is_sparse(), "mul: expected a sparse out=, got layout ", out.layout());
  if (self.is_sparse() && other.is_sparse()) {
    // Whose entries meet is a join of two structures: the host's.
    const Tensor product = at::mul(self.cpu(), other.cpu()).to(self.device());
    assign(out, product.sizes(), product.dense_dim(), product._indices(), product._values(),
           product.is_coalesced());
    return out;
  }
  Tensor t = self.is_sparse() ? self : other;
  const Tensor& dense = self.is_sparse() ? other : self;
  const auto sizes = at::infer_size(t.sizes(), dense.sizes());
  if (!t.sizes().equals(sizes)) t = at::_sparse_broadcast_to(t, sizes);
  const Tensor factor = dense.dim() == 0 ? dense : dense_at(dense.expand(sizes), t);
  const Tensor values = t._values().to(dtype).mul(factor.to(dtype));
  assign(out, sizes, t.dense_dim(), t._indices().clone(), values, t.is_coalesced());
  return out;
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  const Tensor result = add_product(self, mat1, mat2, beta, alpha);
  out.resize_(result.sizes());
  return out.copy_(result);
}

Tensor& addmm_(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
  return self.copy_(add_product(self, mat1, mat2, beta, alpha));
}

// A batch of products is one, of the block-diagonal matrix.
Tensor batch_product(const Tensor& self, const Tensor& mat2) {
  TORCH_CHECK(self.is_sparse() && mat2.layout() == at::kStrided,
              "bmm: expected a sparse and a dense batch, got layouts ", self.layout(), " and ",
              mat2.layout());
  TORCH_CHECK(self.dim() == 3 && mat2.dim() == 3 && self.dense_dim() == 0,
              "bmm: expected 3 dimensions (and no dense ones), got ", self.sizes(), " and ",
              mat2.sizes());
  TORCH_CHECK(self.size(0) == mat2.size(0) && self.size(2) == mat2.size(1),
              "bmm: sizes do not fit: ", self.sizes(), " and ", mat2.sizes());
  const int64_t b = self.size(0), m = self.size(1), k = self.size(2), n = mat2.size(2);
  const Tensor at = self._indices();
  const Tensor blocks =
      at::_sparse_coo_tensor_unsafe(at::stack({at[0].mul(m).add(at[1]), at[0].mul(k).add(at[2])}),
                                    self._values(), {b * m, b * k}, self.options());
  const Tensor start = at::zeros({}, mat2.options());
  return add_product(start, blocks, mat2.reshape({b * k, n}), 0, 1).reshape({b, m, n});
}

Tensor& bmm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  const Tensor result = batch_product(self, mat2);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// Where the round trip over the host brings back what an operator wrote.
Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  if (!dst.is_sparse()) {
    Tensor target = dst;
    target.resize_(self.sizes());
    return target.copy_(self);
  }
  assign(dst, self.sizes(), self.dense_dim(), self._indices().to(dst.device()),
         self._values().to(dst.device()), self.is_coalesced());
  return dst;
}

// Rows times a dense matrix: the sum over entries (i, j, v) of v * dense[j], added to row i.
Tensor product(const Tensor& coo, const Tensor& dense, bool transposed) {
  const auto dtype = coo.scalar_type();
  const auto wide = at::toOpMathType(dtype);
  const Tensor at = coo._indices();
  const Tensor i = at[transposed ? 1 : 0], j = at[transposed ? 0 : 1];
  const Tensor terms = coo._values().to(wide).unsqueeze(1).mul(dense.index_select(0, j).to(wide));
  return at::zeros({coo.size(transposed ? 1 : 0), dense.size(1)}, dense.options().dtype(wide))
      .index_add_(0, i, terms);
}

}  // namespace

void assign(const Tensor& out, at::IntArrayRef sizes, int64_t dense_dim, Tensor indices,
            Tensor values, bool coalesced) {
  const auto sparse_dim = static_cast<int64_t>(sizes.size()) - dense_dim;
  out.sparse_resize_and_clear_(sizes, sparse_dim, dense_dim);
  at::sparse::alias_into_sparse(out, indices, values.to(out.scalar_type()));
  Tensor target = out;
  target._coalesced_(coalesced);
}

Tensor add_product(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                   const Scalar& alpha) {
  const bool left = mat1.layout() != at::kStrided;
  TORCH_CHECK(self.layout() == at::kStrided && left == (mat2.layout() == at::kStrided),
              "addmm: expected dense + one sparse @ one dense matrix, got layouts ", self.layout(),
              ", ", mat1.layout(), " and ", mat2.layout());
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2, "addmm: expected matrices, got ", mat1.sizes(),
              " and ", mat2.sizes());
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              mat1.size(0), "x", mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK(mat1.dtype() == mat2.dtype() && self.dtype() == mat1.dtype(),
              "addmm: expected equal dtypes, got ", self.dtype(), ", ", mat1.dtype(), " and ",
              mat2.dtype());
  const Tensor& matrix = left ? mat1 : mat2;
  const Tensor coo = matrix.is_sparse() ? matrix : matrix.to_sparse();
  TORCH_CHECK(coo.dense_dim() == 0, "addmm: expected no dense dimensions, got ", coo.dense_dim());
  Tensor result = left ? product(coo, mat2, false) : product(coo, mat1.t(), true).t();
  if (!alpha.equal(1)) result = result.mul(alpha);
  const Tensor start = self.expand(result.sizes());
  if (!beta.equal(0)) result = result.add(beta.equal(1) ? start : start.mul(beta));
  return result.to(self.scalar_type());
}

void register_coo(torch::Library& m) {
  m.impl("_coalesce", coalesce);
  m.impl("add.out", add_out);
  m.impl("sparse_mask", sparse_mask);
  m.impl("mul.out", mul_out);
  m.impl("addmm", add_product);
  m.impl("addmm.out", addmm_out);
  m.impl("addmm_", addmm_);
  m.impl("bmm", batch_product);
  m.impl("bmm.out", bmm_out);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

}  // namespace torchtpu::layouts
