#include "backward.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include "runtime.h"

namespace torchtpu {
namespace {

struct Nothing final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

}  // namespace

// `backward()` returns when its pass has ended. The device's thread frees the pass after that, with
// the Python objects that it holds, for which it takes the GIL: always the context variables, often
// nodes and tensors. Python ends a thread that asks a finalizing interpreter for the GIL, by
// unwinding its stack, and in a destructor that is std::terminate. A thread takes a pass when it is
// done with the one before, so a pass that holds nothing of Python's is what there is to wait for.
void settle_backward() noexcept {
  if (!initialized() || in_bad_fork()) return;
  try {
    auto& engine = torch::autograd::Engine::get_default_engine();
    for (int i = 0; i < runtime().device_count(); ++i) {
      const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(i));
      const at::Tensor empty = at::empty({0}, device);
      auto node = c10::make_intrusive<Nothing>();
      node->add_input_metadata(empty);
      engine.execute({{std::move(node), 0}}, {empty}, /*keep_graph=*/false, /*create_graph=*/false,
                     /*accumulate_grad=*/true);
    }
  } catch (...) {
    // A forked child without the threads has none to wait for.
  }
}

}  // namespace torchtpu
