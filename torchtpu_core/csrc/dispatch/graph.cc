#include "graph.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "build.h"
#include "execute.h"
#include "stats.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

c10::IValue argument(const std::string& name, size_t i, PyObject* o) {
  if (THPVariable_Check(o)) return THPVariable_Unpack(o);
  if (o == Py_None) return {};
  if (PyBool_Check(o)) return o == Py_True;
  if (PyLong_Check(o)) return py::handle(o).cast<int64_t>();
  if (PyFloat_Check(o)) return PyFloat_AS_DOUBLE(o);
  TORCH_CHECK_TYPE(false, name, ": argument ", i, " is a ", Py_TYPE(o)->tp_name, ", not a tensor or a number");
}

py::object result(const c10::IValue& v) {
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    return t.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(t)) : py::none();
  }
  if (v.isBool()) return py::bool_(v.toBool());
  if (v.isInt()) return py::int_(v.toInt());
  if (v.isDouble()) return py::float_(v.toDouble());
  return py::none();
}

}  // namespace

Graph::Graph(std::string name, size_t num_inputs, py::object lower)
    : name_(std::move(name)), traits_(num_inputs), lower_(std::move(lower)) {}

py::list Graph::call(const py::list& args) {
  HANDLE_TH_ERRORS
  const size_t n = args.size();
  TORCH_CHECK(n == traits_.size(), name_, " takes ", traits_.size(), " arguments, got ", n);
  torch::jit::Stack stack;
  stack.reserve(n);
  for (size_t i = 0; i < n; ++i) stack.push_back(argument(name_, i, PyList_GET_ITEM(args.ptr(), i)));
  if (PyList_SetSlice(args.ptr(), 0, static_cast<Py_ssize_t>(n), nullptr) != 0) throw py::error_already_set();
  {
    py::gil_scoped_release release;
    run(stack);
  }
  py::list results(stack.size());
  for (size_t i = 0; i < stack.size(); ++i) {
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), result(stack[i]).release().ptr());
  }
  return results;
  END_HANDLE_TH_ERRORS_PYBIND
}

void Graph::run(torch::jit::Stack& stack) {
  const size_t n = traits_.size();
  const auto args = torch::jit::last(stack, n);
  Call call;
  describe(name_.c_str(), traits_, args, call);
  if (call.device < 0) {
    call.device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice().index();
  }
  const Program* program = programs_.find(call);
  if (program != nullptr) {
    stats().cache_hits.fetch_add(1, std::memory_order_relaxed);
  } else {
    program = programs_.insert(call, build_graph(name_, lower_, args, call));
  }
  execute(name_.c_str(), *program, call, n, stack);
}

}  // namespace torchtpu
