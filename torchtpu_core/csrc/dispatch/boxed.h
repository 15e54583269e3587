// The boxed kernel behind every operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "build.h"
#include "program.h"

namespace torchtpu {

// Runs before the program of an operator is looked up. Returns whether it has handled the call
// (results on the stack); it may also rewrite the arguments.
using Hook = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
Hook hook_for(const std::string& name);  // "aten::copy_.": name and overload; null if there is none

// One operator's kernel: its route, its programs.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const c10::OperatorName& name);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  void resolve(const c10::OperatorHandle& op);
  ProgramPtr find_or_build(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t n,
                           Call& call);

  std::string name_;
  Hook hook_;
  std::atomic<Route> route_{Route::kUnknown};  // traits_, reason_: written before
  std::mutex resolving_;
  std::vector<ArgumentTraits> traits_;
  std::string reason_;  // of an unsupported operator
  ProgramTable programs_;
};

// Runs an operator on the CPU with copies of its tensors, and copies results and writes back.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

bool cpu_fallback_enabled();
void set_cpu_fallback(bool enabled);

// What happens to an operator with no way to run on the device: the CPU, where that is allowed, or
// NotImplementedError.
void unsupported(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                 const std::string& reason);

}  // namespace torchtpu
