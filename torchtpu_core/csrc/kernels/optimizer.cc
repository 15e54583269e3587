#include "call.h"
#include "kernels.h"

namespace torchtpu::kernels {

void fused_adam(const Call& call) {
  const int64_t n = call.ints("count")[0];
  const bool amsgrad = call.ints("amsgrad")[0] != 0;
  const auto betas = call.doubles("betas");
  int64_t next = 0;
  const double lr = call.number(next++);
  const double weight_decay = call.number(next++);
  const double eps = call.number(next++);
  const auto operands = [&] {
    std::vector<at::Tensor> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(call.argument(next++));
    return out;
  };
  const auto steps = operands();
  const auto grads = operands();
  // What is updated: XLA gives the result its operand's memory.
  int64_t result = 0;
  const auto updated = [&] {
    auto out = operands();
    for (at::Tensor& t : out) {
      const at::Tensor place = call.result(result++);
      if (place.const_data_ptr() != t.const_data_ptr()) place.copy_(t);
      t = place;
    }
    return out;
  };
  const auto params = updated();
  const auto exp_avgs = updated();
  const auto exp_avg_sqs = updated();
  const auto max_exp_avg_sqs = amsgrad ? updated() : std::vector<at::Tensor>();
  const bool maximize = call.ints("maximize")[0] != 0;
  const auto step = [&](auto&& update) {
    update(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, betas[0], betas[1],
           weight_decay, eps, amsgrad, maximize);
  };
  if (call.ints("decoupled")[0] != 0) {
    step([](const auto&... args) { at::_fused_adamw_(args...); });
  } else {
    step([](const auto&... args) { at::_fused_adam_(args...); });
  }
}

}  // namespace torchtpu::kernels
