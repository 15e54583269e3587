// Which kernel each operator has for sparse and nested tensors of the device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <sstream>
#include <unordered_set>

#include "../dispatch/boxed.h"
#include "../dispatch/stats.h"
#include "sparse.h"

namespace torchtpu::layouts {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;
using Names = std::unordered_set<std::string>;

Names words(const char* text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

// Operators (all overloads, in-place and out=) whose kernel in PyTorch is one for every device: it
// is made of other operators, on the indices and on the values.
constexpr const char* kStructural = R"(
  abs add any asin asinh atan atanh cat ceil clone conj_physical copy copy_sparse_to_sparse deg2rad
  dense_dim div empty empty_like erf erfinv expm1 floor floor_divide frac indices is_coalesced isinf
  isnan isneginf isposinf log1p mm mul mv nan_to_num narrow_copy native_norm neg norm permute pow
  rad2deg relu resize_as_sparse round sgn sign signbit sin sinh sparse_dim sparse_mask sparse_resize
  sparse_resize_and_clear sqrt sub sum tan tanh threshold_backward trunc unsqueeze values
  view_as_complex view_as_real zero zeros _coalesced _dimI _dimV _indices _nnz _sparse_broadcast_to
  _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _to_dense _to_sparse
  _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr _values
  angle ccol_indices col_indices crow_indices fill normal resize row_indices select select_copy
  addmm _conj_physical
)";

// Operators that PyTorch computes with loops over the structure, which is data.
constexpr const char* kHost = R"(
  hspmm index_select sspaddmm triangular_solve _sparse_csr_prod _sparse_csr_sum
  _sparse_log_softmax _sparse_log_softmax_backward_data _sparse_mask_projection
  _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _sparse_softmax
  _sparse_softmax_backward_data _sparse_sparse_matmul _sparse_sum_backward
)";

// Operators on strided nested tensors whose kernel in PyTorch reads memory or is for transformers
// on a CPU. Every other one is made of operators on the buffer or on its parts.
constexpr const char* kNestedOnCpu = R"(
  _fused_sdp_choice _native_multi_head_attention _nested_sum_backward _pin_memory
  _transform_bias_rescale_qkv _transformer_encoder_layer_fwd sum
)";

std::string stem(std::string name) {
  name.erase(0, std::string("aten::").size());
  if (name.ends_with("_")) name.pop_back();
  return name;
}

template <DispatchKey key>
void upstream(const c10::OperatorHandle& op, Stack* stack) {
  c10::Dispatcher::singleton().callBoxedForDispatchKey(op, key, stack);
}

// Some kernels ask requires_grad, to know whether a gradient will need more of their results.
at::Tensor host_copy(const at::Tensor& t) {
  return t.defined() ? t.cpu().detach().set_requires_grad(t.requires_grad()) : t;
}

c10::IValue to_host(const c10::IValue& x) {
  if (x.isTensor()) return host_copy(x.toTensor());
  if (x.isTensorList()) {
    c10::List<at::Tensor> copies;
    for (const at::Tensor& t : x.toTensorVector()) copies.push_back(host_copy(t));
    return copies;
  }
  if (x.isDevice() && x.toDevice().is_privateuseone()) return c10::Device(c10::kCPU);
  return x;
}

// Runs an operator on copies of its tensors, whatever their layouts, and brings back the results
// and what it wrote.
void on_host(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size();
  const std::vector<c10::IValue> args(stack->end() - n, stack->end());
  torch::jit::drop(*stack, n);
  const at::AutoDispatchBelowAutograd guard;
  Stack host;
  c10::Device device(c10::DeviceType::PrivateUse1, 0);
  for (const auto& x : args) {
    const auto tensors = x.isTensor()       ? std::vector<at::Tensor>{x.toTensor()}
                         : x.isTensorList() ? x.toTensorVector()
                                            : std::vector<at::Tensor>{};
    for (const at::Tensor& t : tensors) {
      if (t.defined() && t.is_privateuseone()) device = t.device();
    }
    host.push_back(to_host(x));
  }
  const Stack given = host;
  op.callBoxed(host);
  for (size_t i = 0; i < host.size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      const bool moves = host[i].isTensor() && host[i].toTensor().defined();
      stack->push_back(moves ? c10::IValue(host[i].toTensor().detach().to(device)) : host[i]);
      continue;
    }
    for (size_t a = 0; a < n; ++a) {
      const auto* written = schema.arguments()[a].alias_info();
      if (written == nullptr || *written != *alias) continue;
      at::_copy_from_and_resize(given[a].toTensor(), args[a].toTensor());
      stack->push_back(args[a]);
    }
  }
}

// Between compressed layouts: a matrix by way of its COO form, anything else by the host, since
// PyTorch's kernels read memory.
void recompress(const c10::OperatorHandle& op, Stack* stack) {
  c10::IValue& first = (*stack)[stack->size() - op.schema().arguments().size()];
  const at::Tensor self = first.toTensor();
  const bool blocks = op.operator_name().name.find("_bs") != std::string::npos;
  const auto target =
      op.operator_name().name == "aten::_to_sparse_csr" ? at::kSparseCsr : at::kSparseCsc;
  if (!blocks && self.layout() == target) {
    return upstream<DispatchKey::SparseCsrCPU>(op, stack);
  }
  if (blocks || self.dim() - self.dense_dim() > 2) return on_host(op, stack);
  first = self.to_sparse();
  op.callBoxed(*stack);
}

// What is said of an operator without a kernel for a layout: the layout, and the way out.
std::pair<const char*, const char*> lacking(DispatchKey key) {
  constexpr const char* dense = ".to_dense() it, or move it with .cpu()";
  switch (key) {
    case DispatchKey::SparsePrivateUse1:
      return {"sparse COO", dense};
    case DispatchKey::SparseCsrPrivateUse1:
      return {"sparse compressed", dense};
    case DispatchKey::NestedTensorPrivateUse1:
      return {"strided nested", "make the nested tensor with layout=torch.jagged"};
    default:
      return {"quantized", "use int8 tensors and scales (torch._int_mm, torch._scaled_mm)"};
  }
}

template <DispatchKey key>
void missing(const c10::OperatorHandle& op, Stack* stack) {
  if (cpu_fallback_enabled() && key != DispatchKey::QuantizedPrivateUse1) {
    count_fallback(op.operator_name().name);
    return on_host(op, stack);
  }
  const auto [layout, way_out] = lacking(key);
  unsupported(op, stack, std::string("it has no kernel for ") + layout + " tensors; " + way_out);
}

// Reuses the kernels of `reference`, the same layout on the CPU, as the tables say.
template <DispatchKey reference>
void register_all(torch::Library& m, const Names& own) {
  static const Names structural = words(kStructural), host = words(kHost);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(reference)) continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (own.contains(full.substr(6))) continue;
    const std::string base = stem(name.name);
    if (structural.contains(base)) {
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&upstream<reference>>());
    } else if (host.contains(base)) {
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_host>());
    }
  }
}

void register_nested(torch::Library& m) {
  const Names on_cpu = words(kNestedOnCpu);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::") || on_cpu.contains(stem(name.name))) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::NestedTensorCPU)) continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    m.impl(full.c_str(),
           torch::CppFunction::makeFromBoxedFunction<&upstream<DispatchKey::NestedTensorCPU>>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) { register_nested(m); }

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  register_coo(m);
  register_all<DispatchKey::SparseCPU>(m, {"_coalesce", "add.out", "mul.out", "sparse_mask",
                                           "addmm", "addmm.out", "addmm_", "bmm", "bmm.out"});
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  register_compressed(m);
  register_all<DispatchKey::SparseCsrCPU>(
      m, {"add.out", "addmm.out", "addmv.out", "sparse_sampled_addmm", "sparse_sampled_addmm.out",
          "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
  for (const char* name :
       {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recompress>());
  }
}

// From dense tensors: PyTorch's kernels, made of nonzero, index and views.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr",
        "_to_sparse_bsc", "_nested_view_from_buffer", "_nested_from_padded"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&upstream<DispatchKey::CPU>>());
  }
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&missing<DispatchKey::SparsePrivateUse1>>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(
      torch::CppFunction::makeFromBoxedFunction<&missing<DispatchKey::SparseCsrPrivateUse1>>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(
      torch::CppFunction::makeFromBoxedFunction<&missing<DispatchKey::NestedTensorPrivateUse1>>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(
      torch::CppFunction::makeFromBoxedFunction<&missing<DispatchKey::QuantizedPrivateUse1>>());
}

}  // namespace torchtpu::layouts
