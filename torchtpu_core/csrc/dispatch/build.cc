#include "build.h"

#include <ATen/ATen.h>
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "../device/errors.h"
#include "../device/runtime.h"
#include "executables.h"
#include "execute.h"
#include "transfer.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

// A Python exception that crosses C++ as PyTorch wants it: its type and traceback survive, on any
// thread.
[[noreturn]] void rethrow_python(py::error_already_set& e) {
  e.restore();
  python_error error;
  error.persist();
  throw std::move(error);
}

// What T::find() gives, found once. Not a plain static: importing lets go of the GIL, and a thread
// that then waited for the static with the GIL held would never see it made.
template <class T>
const T& once() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<T> storage;
  return storage.call_once_and_store_result([] { return T::find(); }).get_stored();
}

struct Plans {
  py::object find_route, keep_route, key, find_plan, keep;

  static Plans find() {
    // Here, since every process that runs a program asks for its first route.
    const py::object mode =
        py::module_::import("torchtpu_core.config").attr("get")("TORCHTPU_MODE");
    set_default_mode(mode.cast<std::string>() == "debug" ? Mode::kDebug : Mode::kStrict);
    py::module_ m = py::module_::import("torchtpu_core.plans");
    return {m.attr("find_route"), m.attr("keep_route"), m.attr("key"), m.attr("find"),
            m.attr("keep")};
  }
};

struct Specs {
  py::object tensor, scalar;

  static Specs find() {
    py::module_ m = py::module_::import("torchtpu_core.lowering.specs");
    return {m.attr("TensorSpec"), m.attr("ScalarSpec")};
  }
};

struct Lowering {
  py::object route, build;

  static Lowering find() {
    py::module_ m = py::module_::import("torchtpu_core.lowering.program");
    return {m.attr("route"), m.attr("build")};
  }
};

// Dynamo looks at every Python frame of a region that it compiled part of, lowerings included,
// unless told not to.
class Untraced {
 public:
  Untraced() : before_(set(py::none())) {}
  ~Untraced() {
    try {
      set(before_);
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("torchtpu: giving Dynamo its callback back");
    }
  }
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;

 private:
  static py::object set(const py::object& callback) {
    return py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")(callback);
  }

  py::object before_;
};

py::object dtype_object(c10::ScalarType t) { return py::cast(t); }

py::tuple ints(c10::IntArrayRef xs) {
  py::tuple t(xs.size());
  for (size_t i = 0; i < xs.size(); ++i) t[i] = xs[i];
  return t;
}

// Turns the arguments into what program.build takes, in the order in which describe() walked them.
class Describer {
 public:
  explicit Describer(const Call& call) : call_(call) {}

  py::object argument(const c10::IValue& v, const c10::Argument& arg) {
    const auto kind = arg.real_type()->kind();
    auto inner = kind;
    if (auto opt = arg.real_type()->cast<c10::OptionalType>())
      inner = opt->getElementType()->kind();
    if (v.isInt() && inner == c10::TypeKind::ScalarTypeType) {
      return dtype_object(static_cast<c10::ScalarType>(v.toInt()));
    }
    if (v.isInt() && inner == c10::TypeKind::LayoutType)
      return py::cast(static_cast<c10::Layout>(v.toInt()));
    if (v.isInt() && inner == c10::TypeKind::MemoryFormatType) {
      return py::cast(static_cast<c10::MemoryFormat>(v.toInt()));
    }
    if (v.isGenerator()) return py::none();
    return value(v);
  }

  py::object value(const c10::IValue& v) {
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isList()) {
      py::list out;
      for (const auto& item : v.toListRef()) out.append(value(item));
      return out;
    }
    if (next_scalar_ < call_.scalars.size() && call_.scalars[next_scalar_] == &v) {
      const size_t i = next_scalar_++;
      return once<Specs>().scalar(i, torch::jit::toPyObject(v));
    }
    return torch::jit::toPyObject(v);
  }

 private:
  py::object tensor(const at::Tensor& t) {
    if (!t.defined()) return py::none();
    const size_t i = next_tensor_++;
    const TensorArg& arg = call_.tensors[i];
    if (arg.slot == nullptr) {
      const bool weak = t.unsafeGetTensorImpl()->is_wrapped_number();
      return once<Specs>().tensor(i, i, dtype_object(t.scalar_type()), py::tuple(), py::tuple(), 0,
                                  dtype_object(t.scalar_type()), py::tuple(), true, true, weak,
                                  torch::jit::toPyObject(c10::IValue(t.item())), false, false,
                                  py::none());
    }
    const TensorArg& first = call_.tensors[arg.slot_index];
    c10::ScalarType base_dtype = t.scalar_type();
    Dims base;
    py::object room = py::none();
    const bool initialised = static_cast<bool>(first.buffer);
    if (initialised) {
      const auto dims = first.buffer->buffer.dims();
      base.append(dims.begin(), dims.end());
      if (arg.padded) {
        room = ints(base);
        std::lock_guard<SpinLock> guard(arg.slot->lock);
        base = arg.slot->dims;
      }
      base_dtype = torch_type(first.buffer->buffer.type());
    } else {
      base = uninitialised_base(t, t.storage().nbytes());
    }
    return once<Specs>().tensor(i, arg.slot_index, dtype_object(t.scalar_type()), ints(t.sizes()),
                                ints(t.strides()), t.storage_offset(), dtype_object(base_dtype),
                                ints(base), initialised, false, false, py::none(), t.is_conj(),
                                t.is_neg(), room);
  }

  const Call& call_;
  size_t next_tensor_ = 0;
  size_t next_scalar_ = 0;
};

py::bytes bytes_of(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size() * sizeof(Key::value_type)};
}

c10::ScalarType scalar_type(py::handle o) { return py::cast<c10::ScalarType>(o); }

Dims dims_of(py::handle o) {
  Dims out;
  for (auto x : o) out.push_back(x.cast<int64_t>());
  return out;
}

c10::IValue number(py::handle o) {
  if (py::isinstance<py::bool_>(o)) return o.cast<bool>();
  if (py::isinstance<py::int_>(o)) return o.cast<int64_t>();
  return o.cast<double>();
}

void read_plan(py::handle plan, Program& program) {
  for (auto in : plan.attr("inputs")) {
    const auto kind = in[py::int_(0)].cast<std::string>();
    InputPlan p{InputPlan::kRandom, 0, c10::ScalarType::Undefined};
    if (kind != "random") {
      p.kind = kind == "slot"   ? InputPlan::kSlot
               : kind == "host" ? InputPlan::kHost
                                : InputPlan::kScalar;
      p.index = in[py::int_(1)].cast<uint32_t>();
      if (p.kind != InputPlan::kSlot) p.dtype = scalar_type(in[py::int_(2)]);
    }
    program.inputs.push_back(p);
  }
  for (auto out : plan.attr("outputs")) {
    OutputPlan p;
    p.dtype = scalar_type(out[py::int_(0)]);
    p.base = dims_of(out[py::int_(1)]);
    p.sizes = dims_of(out[py::int_(2)]);
    p.strides = dims_of(out[py::int_(3)]);
    p.tensor = out[py::int_(4)].cast<int32_t>();
    p.nbytes = c10::elementSize(p.dtype);
    for (int64_t d : p.base) p.nbytes *= static_cast<size_t>(d);
    program.outputs.push_back(std::move(p));
  }
  for (auto r : plan.attr("returns")) {
    const auto kind = r[py::int_(0)].cast<std::string>();
    ReturnPlan p{ReturnPlan::kNone, 0, {}, {}};
    if (kind == "out" || kind == "arg") {
      p.kind = kind == "out" ? ReturnPlan::kOutput : ReturnPlan::kArgument;
      p.index = r[py::int_(1)].cast<uint32_t>();
    } else if (kind == "outs") {
      p.kind = ReturnPlan::kOutputs;
      for (auto i : r[py::int_(1)]) p.list.push_back(i.cast<uint32_t>());
    } else if (kind == "value") {
      p.kind = ReturnPlan::kValue;
      p.value = number(r[py::int_(1)]);
    }
    program.returns.push_back(std::move(p));
  }
  for (auto i : plan.attr("donate")) program.donate.push_back(i.cast<int64_t>());
  for (auto c : plan.attr("counted")) {
    program.counted.push_back(
        {c[py::int_(0)].cast<uint32_t>(), c[py::int_(1)].cast<int64_t>(), dims_of(c[py::int_(2)])});
  }
  for (auto c : plan.attr("checks")) {
    program.checks.push_back({c[py::int_(0)].cast<bool>(), c[py::int_(1)].cast<std::string>()});
  }
  program.random_blocks = plan.attr("random_blocks").cast<uint64_t>();
}

// The program of a plan, compiled; `text` is set before that, for errors.
std::unique_ptr<Program> program_of(const py::object& plan, std::string& text) {
  auto program = std::make_unique<Program>();
  if (plan.attr("host").cast<bool>()) {
    program->kind = Program::kHost;
    return program;
  }
  read_plan(plan, *program);
  text = plan.attr("text").cast<std::string>();
  if (program->num_results() != 0) program->executable = load_or_compile(text);
  return program;
}

}  // namespace

Routing resolve_route(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  Routing routing{Route::kUnsupported, std::vector<ArgumentTraits>(schema.arguments().size())};
  py::gil_scoped_acquire gil;
  try {
    const Untraced untraced;
    const py::str full(c10::toString(op.operator_name()));
    py::object r = once<Plans>().find_route(full);
    if (r.is_none()) {
      r = once<Lowering>().route(op.operator_name().name, op.operator_name().overload_name);
      once<Plans>().keep_route(full, r);
    }
    routing.route = static_cast<Route>(r[py::int_(0)].cast<int>());
    routing.reason = r[py::int_(2)].cast<std::string>();
    for (auto i : r[py::int_(1)]) {
      auto& traits = routing.traits[i.cast<size_t>()];
      traits.runtime = true;
      traits.fixed = schema.arguments()[i.cast<size_t>()].default_value();
    }
  } catch (py::error_already_set& e) {
    rethrow_python(e);
  }
  return routing;
}

Built build(const c10::OperatorHandle& op, const std::vector<ArgumentTraits>& traits,
            c10::ArrayRef<c10::IValue> args, const Call& call) {
  Built built;
  runtime();  // before the GIL: creating it takes the GIL itself
  py::gil_scoped_acquire gil;
  std::string text;
  try {
    const Untraced untraced;
    const py::object key = once<Plans>().key(c10::toString(op.operator_name()),
                                             runtime().client().fingerprint(), bytes_of(call.key));
    if (py::object known = once<Plans>().find_plan(key); !known.is_none()) {
      built.program = program_of(known, text);
      return built;
    }
    Describer d(call);
    py::list described;
    const auto& schema = op.schema().arguments();
    for (size_t i = 0; i < args.size(); ++i) described.append(d.argument(args[i], schema[i]));
    py::object plan = once<Lowering>().build(op.operator_name().name,
                                             op.operator_name().overload_name, described);
    for (auto r : plan.attr("resize")) {
      built.resize.emplace_back(r[py::int_(0)].cast<uint32_t>(),
                                r[py::int_(1)].cast<std::vector<int64_t>>());
    }
    if (!built.resize.empty()) return built;
    built.program = program_of(plan, text);
    once<Plans>().keep(key, plan);
  } catch (py::error_already_set& e) {
    if (e.matches(PyExc_NotImplementedError)) {
      built.program.reset();
      built.unsupported = true;
      built.reason = py::str(e.value());
      return built;
    }
    rethrow_python(e);
  } catch (const pjrt::Error&) {
    throw_translated(("compiling " + c10::toString(op.operator_name()) + "\n" + text).c_str());
  }
  return built;
}

std::unique_ptr<Program> build_graph(const std::string& name, const py::object& lower,
                                     c10::ArrayRef<c10::IValue> args, const Call& call) {
  runtime();  // before the GIL: creating it takes the GIL itself
  py::gil_scoped_acquire gil;
  std::string text;
  try {
    const Untraced untraced;
    Describer d(call);
    py::list described;
    for (const auto& arg : args) described.append(d.value(arg));
    py::object plan = lower(described);
    return program_of(plan, text);
  } catch (py::error_already_set& e) {
    rethrow_python(e);
  } catch (const pjrt::Error&) {
    throw_translated(("compiling " + name).c_str());
  }
}

}  // namespace torchtpu
