// Which kernel torch.nn.functional.scaled_dot_product_attention takes: the one program of
// lowering/attention.py where it fits, else PyTorch's own composition of operators.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace torchtpu {
namespace {

bool same_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool grouped) {
  if (k.sym_size(-3) != v.sym_size(-3)) return false;
  if (grouped) return q.sym_size(-3) % k.sym_size(-3) == 0;
  return q.sym_size(-3) == k.sym_size(-3);
}

bool fits(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout_p,
          bool grouped) {
  if (dropout_p > 0.0 || q.is_nested() || k.is_nested() || v.is_nested()) return false;
  const auto dtype = q.scalar_type();
  if (!c10::isFloatingType(dtype) || k.scalar_type() != dtype || v.scalar_type() != dtype)
    return false;
  const int64_t n = q.dim();
  if (n != 4 || k.dim() != n || v.dim() != n) return false;
  if (q.sym_size(0) != k.sym_size(0) || q.sym_size(0) != v.sym_size(0)) return false;
  return same_heads(q, k, v, grouped) && q.sym_numel() > 0 && k.sym_numel() > 0 &&
         v.sym_numel() > 0;
}

int64_t sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const std::optional<at::Tensor>&, double dropout_p, bool, std::optional<double>,
                   bool enable_gqa) {
  const auto& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() && fits(query, key, value, dropout_p, enable_gqa)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(),
              "scaled_dot_product_attention: the device tpu has the backends OVERRIDEABLE (without "
              "dropout) and MATH, and torch.nn.attention.sdpa_kernel leaves it neither");
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice",
         [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
            const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
            std::optional<double> scale, bool enable_gqa) {
           return sdp_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
         });
}

}  // namespace torchtpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torchtpu::sdp_choice)
}  // namespace at::native
