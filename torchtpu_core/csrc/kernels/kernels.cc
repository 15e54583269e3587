#include "kernels.h"

#include "call.h"

namespace torchtpu::kernels {

bool install(const pjrt::Plugin& plugin, int devices) {
  worker_goes_on.store(devices == 1);
  constexpr std::pair<const char*, pjrt::ffi::Handler> kHandlers[] = {
      {"torchtpu.dot_general", handler<dot_general>},
      {"torchtpu.convolution", handler<convolution, Then::kWorker>},
      {"torchtpu.convolution_input_gradient", handler<convolution_input_gradient, Then::kWorker>},
      {"torchtpu.convolution_weight_gradient", handler<convolution_weight_gradient, Then::kWorker>},
      {"torchtpu.batch_norm", handler<batch_norm, Then::kWorker>},
      {"torchtpu.batch_norm_backward", handler<batch_norm_backward, Then::kWorker>},
      {"torchtpu.max_pool2d_backward", handler<max_pool2d_backward, Then::kWorker>},
      {"torchtpu.attention", handler<attention>},
      {"torchtpu.attention_backward", handler<attention_backward>},
      {"torchtpu.fused_adam", handler<fused_adam>},
  };
  for (const auto& [name, function] : kHandlers) {
    if (!pjrt::ffi::register_handler(plugin, name, function)) return false;
  }
  return true;
}

}  // namespace torchtpu::kernels
