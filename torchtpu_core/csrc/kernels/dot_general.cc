#include <ATen/TensorUtils.h>

#include "call.h"
#include "kernels.h"
#include "product.h"

namespace at::native {
// oneDNN's product of float matrices, or batches of them, of any strides: result = mat1 @ mat2. No
// header of PyTorch's declares it to extensions.
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result,
                             float beta = 1, float alpha = 1);
}  // namespace at::native

namespace torchtpu::kernels {
namespace {

using Dims = c10::SmallVector<int64_t, 8>;

// The dims of an operand that are in neither list.
Dims free_dims(const at::Tensor& x, at::IntArrayRef batch, at::IntArrayRef contracting) {
  Dims out;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const auto in = [d](at::IntArrayRef dims) {
      return std::find(dims.begin(), dims.end(), d) != dims.end();
    };
    if (!in(batch) && !in(contracting)) out.push_back(d);
  }
  return out;
}

at::Tensor permuted(const at::Tensor& x, std::initializer_list<at::IntArrayRef> parts) {
  Dims order;
  for (at::IntArrayRef part : parts) order.append(part.begin(), part.end());
  return x.permute(order);
}

// x with its dims in three groups, each one dim of the result.
struct Grouped {
  at::Tensor x;
  int64_t batch;   // how many dims the first group has
  int64_t second;  // and the second

  Dims sizes() const {
    const auto sizes = x.sizes();
    const auto product = [&](int64_t from, int64_t to) {
      return c10::multiply_integers(sizes.slice(from, to - from));
    };
    return {product(0, batch), product(batch, batch + second), product(batch + second, x.dim())};
  }

  // Whether the batch is one dim of a view.
  bool has_plain_batch() const {
    Dims merged{sizes()[0]};
    merged.append(x.sizes().begin() + batch, x.sizes().end());
    return at::detail::computeStride(x.sizes(), x.strides(), merged).has_value();
  }

  at::Tensor matrices() const { return x.reshape(sizes()); }
  Grouped at(int64_t i) const { return {x.select(0, i), batch - 1, second}; }
};

// `out` [batch, rows, columns] is contiguous.
void multiply(const Grouped& x, const Grouped& y, const at::Tensor& out) {
  if (x.batch > 1 && !(x.has_plain_batch() && y.has_plain_batch())) {
    const int64_t n = x.x.size(0);
    const at::Tensor parts = out.unflatten(0, {n, -1});
    for (int64_t i = 0; i < n; ++i) multiply(x.at(i), y.at(i), parts.select(0, i));
    return;
  }
  const at::Tensor a = x.matrices();
  const at::Tensor b = y.matrices();
  if (out.size(0) == 1) {
    product(a.select(0, 0), b.select(0, 0), out.select(0, 0));
  } else {
    product(a, b, out);
  }
}

}  // namespace

void product(const at::Tensor& x, const at::Tensor& y, at::Tensor out) {
  // Multiplications from which on oneDNN, which takes longer to start, is faster than BLAS (MKL):
  // up to twice as fast on AMD's processors.
  constexpr int64_t kLarge = 1 << 22;
  const int64_t batch = out.dim() == 3 ? out.size(0) : 1;
  if (out.scalar_type() == c10::kFloat && at::hasMKLDNN() &&
      out.numel() / batch * x.size(-1) >= kLarge) {
    at::native::mkldnn_matmul(x, y, out, 0, 1);
  } else if (out.dim() == 2) {
    at::mm_out(out, x, y);
  } else {
    at::bmm_out(out, x, y);
  }
}

void dot_general(const Call& call) {
  const at::Tensor x = call.argument(0);
  const at::Tensor y = call.argument(1);
  const auto x_batch = call.ints("lhs_batching_dimensions");
  const auto y_batch = call.ints("rhs_batching_dimensions");
  const auto x_sum = call.ints("lhs_contracting_dimensions");
  const auto y_sum = call.ints("rhs_contracting_dimensions");
  const Dims rows = free_dims(x, x_batch, x_sum);
  const Dims columns = free_dims(y, y_batch, y_sum);
  const auto batch = static_cast<int64_t>(x_batch.size());
  const Grouped left{permuted(x, {x_batch, rows, x_sum}), batch, static_cast<int64_t>(rows.size())};
  const Grouped right{permuted(y, {y_batch, y_sum, columns}), batch,
                      static_cast<int64_t>(y_sum.size())};
  const Dims xs = left.sizes();
  multiply(left, right, call.result(0).view({xs[0], xs[1], right.sizes()[2]}));
}

}  // namespace torchtpu::kernels
