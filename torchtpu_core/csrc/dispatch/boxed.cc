#include "boxed.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>

#include "../device/runtime.h"
#include "execute.h"
#include "stats.h"

namespace torchtpu {
namespace {

std::atomic<bool> fallback_enabled{false};

std::string short_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

void call_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::Dispatcher::singleton().callBoxedForDispatchKey(
      op, c10::DispatchKey::CompositeExplicitAutograd, stack);
}

// The CPU's kernel sees copies, in which tensors that share memory do not share it any more.
void refuse_overlapping_outs(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto args = torch::jit::last(stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_out() || !args[i].isTensor()) continue;
    at::assert_no_internal_overlap(args[i].toTensor());
    for (size_t j = 0; j < i; ++j) {
      if (args[j].isTensor()) at::assert_no_overlap(args[i].toTensor(), args[j].toTensor());
    }
  }
}

}  // namespace

bool cpu_fallback_enabled() { return fallback_enabled.load(std::memory_order_relaxed); }
void set_cpu_fallback(bool enabled) { fallback_enabled.store(enabled, std::memory_order_relaxed); }

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_overlapping_outs(op, *stack);
  at::native::cpu_fallback(op, stack);
}

void unsupported(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                 const std::string& reason) {
  if (cpu_fallback_enabled()) {
    count_fallback(short_name(op.operator_name()));
    run_on_cpu(op, stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", short_name(op.operator_name()),
      "' is not implemented for the tpu device", reason.empty() ? "" : ": ", reason,
      ".\nTo run such operators on the CPU (slow, counted in torchtpu_core.stats()), call "
      "torch.tpu.set_cpu_fallback(True). To ask for it, open an issue with the operator's name and "
      "its arguments.");
}

BoxedKernel::BoxedKernel(const c10::OperatorName& name)
    : name_(short_name(name)), hook_(hook_for(name_)) {}

void BoxedKernel::resolve(const c10::OperatorHandle& op) {
  Routing routing = resolve_route(op);  // takes the GIL: not under our lock
  std::lock_guard<std::mutex> guard(resolving_);
  if (route_.load(std::memory_order_relaxed) != Route::kUnknown) return;
  traits_ = std::move(routing.traits);
  reason_ = std::move(routing.reason);
  route_.store(routing.route, std::memory_order_release);
}

void BoxedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                             torch::jit::Stack* stack) {
  if (hook_ != nullptr && hook_(op, stack)) return;
  if (route_.load(std::memory_order_acquire) == Route::kUnknown) [[unlikely]] {
    resolve(op);
  }
  switch (route_.load(std::memory_order_relaxed)) {
    case Route::kComposite:
      return call_composite(op, stack);
    case Route::kHost:
      return run_on_cpu(op, stack);
    case Route::kUnsupported:
      return unsupported(op, stack, reason_);
    default:
      break;
  }
  const size_t n = traits_.size();
  Call call;
  const ProgramPtr program = find_or_build(op, stack, n, call);
  if (program == nullptr) return;
  if (program->kind == Program::kComposite) return call_composite(op, stack);
  if (program->kind == Program::kHost) return run_on_cpu(op, stack);
  execute(name_.c_str(), *program, call, n, *stack);
}

// The program of the call on the stack; null when the call has been handled otherwise.
ProgramPtr BoxedKernel::find_or_build(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                                      size_t n, Call& call) {
  for (int attempt = 0;; ++attempt) {
    const auto args = torch::jit::last(*stack, n);
    describe(name_.c_str(), traits_, args, call);
    if (call.device < 0) {
      call.device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice().index();
    }
    if (ProgramPtr program = programs_.find(call)) [[likely]] {
      stats().cache_hits.fetch_add(1, std::memory_order_relaxed);
      return program;
    }
    Built built = build(op, traits_, args, call);
    if (built.program) return programs_.insert(call, std::move(built.program));
    if (built.unsupported) {
      if (has_composite(op)) {
        auto program = std::make_unique<Program>();
        program->kind = Program::kComposite;
        return programs_.insert(call, std::move(program));
      }
      unsupported(op, stack, built.reason);
      return nullptr;
    }
    TORCH_INTERNAL_ASSERT(attempt == 0, name_,
                          ": out= tensors still have the wrong size after resizing");
    for (const auto& [index, sizes] : built.resize) {
      const at::Tensor& out = *call.tensors[index].tensor;
      if (out.numel() != 0) {
        TORCH_WARN("An output with one or more elements was resized since it had shape ",
                   out.sizes(), ", which does not match the required output shape ",
                   c10::IntArrayRef(sizes),
                   ". This behavior is deprecated, and in a future PyTorch release outputs will "
                   "not be resized "
                   "unless they have zero elements. You can explicitly reuse an out tensor t by "
                   "resizing it, "
                   "inplace, to zero elements with t.resize_(0).");
      }
      out.resize_(sizes);
    }
    call = Call();
  }
}

}  // namespace torchtpu
