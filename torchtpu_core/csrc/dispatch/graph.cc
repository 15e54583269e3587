#include "graph.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "build.h"
#include "execute.h"
#include "stats.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

// The arguments as the dispatcher takes them, borrowing the tensors from their Python objects:
// owning one costs a reference to its object, which is given back under the GIL, once a tensor.
class Arguments {
 public:
  Arguments(const std::string& name, const py::tuple& objects) {
    values_.reserve(objects.size());
    for (size_t i = 0; i < objects.size(); ++i) {
      PyObject* o = PyTuple_GET_ITEM(objects.ptr(), i);
      if (THPVariable_Check(o)) {
        values_.emplace_back(Traits::createBorrow(THPVariable_Unpack(o)));
      } else if (o == Py_None) {
        values_.emplace_back();
      } else if (PyBool_Check(o)) {
        values_.emplace_back(o == Py_True);
      } else if (PyLong_Check(o)) {
        values_.emplace_back(py::handle(o).cast<int64_t>());
      } else if (PyFloat_Check(o)) {
        values_.emplace_back(PyFloat_AS_DOUBLE(o));
      } else {
        give_back();
        TORCH_CHECK_TYPE(false, name, ": argument ", i, " is a ", Py_TYPE(o)->tp_name,
                         ", not a tensor or a number");
      }
    }
  }
  ~Arguments() { give_back(); }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  c10::ArrayRef<c10::IValue> values() const { return values_; }

 private:
  using Traits = c10::MaybeOwnedTraits<at::Tensor>;

  void give_back() {
    for (auto& v : values_) {
      if (!v.isTensor()) continue;
      at::Tensor t = std::move(v).toTensor();
      Traits::destroyBorrow(t);
    }
    values_.clear();
  }

  std::vector<c10::IValue> values_;
};

py::object result(const ReturnPlan& r, c10::ArrayRef<at::Tensor> fresh, const py::tuple& objects) {
  switch (r.kind) {
    case ReturnPlan::kOutput:
      return py::reinterpret_steal<py::object>(THPVariable_Wrap(fresh[r.index]));
    case ReturnPlan::kArgument:
      return objects[r.index];
    case ReturnPlan::kValue:
      return torch::jit::toPyObject(r.value);
    default:
      return py::none();
  }
}

}  // namespace

Graph::Graph(std::string name, size_t num_inputs, py::object lower)
    : name_(std::move(name)), traits_(num_inputs), lower_(std::move(lower)) {}

py::list Graph::call(const py::list& args, const py::object& random_blocks) {
  HANDLE_TH_ERRORS
  const size_t n = args.size();
  TORCH_CHECK(n == traits_.size(), name_, " takes ", traits_.size(), " arguments, got ", n);
  const auto objects = py::reinterpret_steal<py::tuple>(PyList_AsTuple(args.ptr()));
  if (PyList_SetSlice(args.ptr(), 0, static_cast<Py_ssize_t>(n), nullptr) != 0)
    throw py::error_already_set();
  ProgramPtr program;
  c10::SmallVector<at::Tensor, 4> fresh;
  {
    const Arguments arguments(name_, objects);
    py::gil_scoped_release release;
    Call call;
    call.tensors.reserve(n);
    call.key.reserve(6 * n);
    program = find_or_build(arguments.values(), call);
    if (program->random_blocks != 0 && random_blocks.ptr() != Py_None) {
      const py::gil_scoped_acquire gil;
      call.random_blocks = random_blocks().cast<uint64_t>();
    }
    fresh = launch(name_.c_str(), *program, call);
  }
  py::list results(program->returns.size());
  Py_ssize_t i = 0;
  for (const ReturnPlan& r : program->returns) {
    PyList_SET_ITEM(results.ptr(), i++, result(r, fresh, objects).release().ptr());
  }
  return results;
  END_HANDLE_TH_ERRORS_PYBIND
}

ProgramPtr Graph::find_or_build(c10::ArrayRef<c10::IValue> args, Call& call) {
  describe(name_.c_str(), traits_, args, call);
  if (call.device < 0) {
    call.device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice().index();
  }
  if (ProgramPtr program = programs_.find(call)) {
    stats().cache_hits.fetch_add(1, std::memory_order_relaxed);
    return program;
  }
  return programs_.insert(call, build_graph(name_, lower_, args, call));
}

}  // namespace torchtpu
