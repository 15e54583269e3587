// Puts the boxed kernel behind every ATen operator that needs one.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <unordered_set>

#include "boxed.h"
#include "native.h"

namespace torchtpu {
namespace {

// Views are metadata, in place or not: PyTorch's own kernels make them, also those that its schemas
// do not show as views (native_names). An operator with a composite (implicit) kernel decomposes
// above the backend, where autograd sees it; so does one that answers a question about its tensors
// (is_same_size).
bool wants_boxed(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return false;
  if (op.hasTag(at::Tag::inplace_view)) return false;
  const auto& returns = op.schema().returns();
  const bool answers = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::BoolType;
  if (answers && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
    return false;
  for (const auto& r : returns) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return false;
  }
  return true;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  unsupported(op, stack, "");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_native(m);
  const auto& native = native_names();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (native.contains(full)) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !wants_boxed(*op)) continue;
    m.impl(full.c_str(),
           torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(name)));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace torchtpu
