#include "call.h"
#include "kernels.h"

namespace torchtpu::kernels {
namespace {

// The operands of either pass, of which the mask, where there is one, and the scale are the last.
class Heads {
 public:
  Heads(const Call& call, int64_t mask) : call_(call), heads_inside_(call.ints("heads_inside")) {
    if (call.ints("masked")[0] != 0) mask_ = call.argument(mask++);
    scale_ = call.number(mask);
  }

  // Operand i as [B, H, L, E], which may lie in memory as [B, L, H, E].
  at::Tensor operator[](int64_t i) const {
    const at::Tensor x = call_.argument(i);
    return heads_inside_[static_cast<size_t>(i)] != 0 ? x.transpose(1, 2) : x;
  }

  bool causal() const { return call_.ints("causal")[0] != 0; }
  const std::optional<at::Tensor>& mask() const { return mask_; }
  double scale() const { return scale_; }

 private:
  const Call& call_;
  at::IntArrayRef heads_inside_;
  std::optional<at::Tensor> mask_;
  double scale_;
};

}  // namespace

void attention(const Call& call) {
  const Heads in(call, 3);
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      in[0], in[1], in[2], /*dropout_p=*/0, in.causal(), in.mask(), in.scale());
  call.result(0).copy_(out.transpose(1, 2));
  call.result(1).copy_(lse.transpose(1, 2));
}

void attention_backward(const Call& call) {
  const Heads in(call, 6);
  const at::Tensor lse = call.argument(5).transpose(1, 2);
  const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      in[0], in[1], in[2], in[3], in[4], lse, /*dropout_p=*/0, in.causal(), in.mask(), in.scale());
  call.result(0).copy_(q.transpose(1, 2));
  call.result(1).copy_(k.transpose(1, 2));
  call.result(2).copy_(v.transpose(1, 2));
}

}  // namespace torchtpu::kernels
