// The dispatcher's part of torchtpu_core._C: modes, counters, the CPU fallback.
#include <torch/csrc/utils/pybind.h>

#include "../dispatch/boxed.h"
#include "../dispatch/executables.h"
#include "../dispatch/execute.h"
#include "../dispatch/flags.h"
#include "../dispatch/graph.h"
#include "../dispatch/native.h"
#include "../dispatch/padded.h"
#include "../dispatch/stats.h"
#include "bindings.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

py::dict stats_dict() {
  const Stats& s = stats();
  const auto get = [](const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); };
  py::dict d;
  d["programs_compiled"] = get(s.compiled);
  d["programs_loaded"] = get(s.loaded);
  d["cache_hits"] = get(s.cache_hits);
  d["executions"] = get(s.executions);
  d["host_to_device"] = get(s.to_device);
  d["device_to_host"] = get(s.to_host);
  d["bytes_host_to_device"] = get(s.bytes_to_device);
  d["bytes_device_to_host"] = get(s.bytes_to_host);
  d["fallbacks"] = get(s.fallbacks);
  d["compile_seconds"] = static_cast<double>(get(s.compile_ns)) * 1e-9;
  py::dict ops;
  for (const auto& [op, n] : fallback_counts()) ops[py::str(op)] = n;
  d["fallbacks_by_op"] = ops;
  return d;
}

Mode mode_by_name(const std::string& name) {
  if (name == "strict") return Mode::kStrict;
  if (name == "debug") return Mode::kDebug;
  throw py::value_error("mode must be 'strict' or 'debug', got '" + name + "'");
}

Dims dims(const std::vector<int64_t>& xs) { return Dims(xs.begin(), xs.end()); }

}  // namespace

void bind_dispatch(py::module_& m) {
  m.def("stats", stats_dict);
  m.def("reset_stats", reset_stats);
  m.def("set_cpu_fallback", set_cpu_fallback);
  m.def("get_cpu_fallback", cpu_fallback_enabled);
  m.def("native_operators", [] {
    std::vector<std::string> names(native_names().begin(), native_names().end());
    names.push_back("aten::equal");  // whole in its hook
    return names;
  });
  m.def("compile_options", compile_options, py::arg("client"));
  m.def("load_ahead", load_ahead, py::arg("text"));
  m.def("forget_ahead", forget_ahead);
  m.def("_evict_programs", evict_programs, py::arg("most"));
  m.def("program_flags", program_flags);
  m.def("set_program_flags", set_program_flags, py::arg("mask"), py::arg("value"));
  m.def("set_mode", [](const std::string& name) { set_mode(mode_by_name(name)); });
  m.def("_set_default_mode", [](const std::string& name) { set_default_mode(mode_by_name(name)); });
  // dynamic_attr: AOTAutograd reads `_boxed_call` off what a compiler returns.
  py::class_<Graph>(m, "Graph", py::dynamic_attr())
      .def(py::init<std::string, size_t, py::object>(), py::arg("name"), py::arg("num_inputs"),
           py::arg("lower"))
      .def("__call__", &Graph::call, py::arg("args"), py::arg("random_blocks") = py::none())
      .def_property_readonly("programs", &Graph::programs);
  using Ints = std::vector<int64_t>;
  m.def("padded_view",
        [](const at::Tensor& t, const Ints& base, const Ints& room, const Ints& order) {
          const at::Tensor all = padded_view(t, dims(base), dims(room), dims(order));
          return all.defined() ? std::optional<at::Tensor>(all) : std::nullopt;
        });
  m.def("corner",
        [](const at::Tensor& all, const Ints& base, const Ints& sizes, const Ints& order) {
          return corner(all, dims(base), dims(sizes), dims(order));
        });
  m.def("adopt", [](const at::Tensor& t, const at::Tensor& all, const Ints& base,
                    const Ints& order) { return adopt(t, all, dims(base), dims(order)); });
  m.def("get_mode", [] { return mode() == Mode::kDebug ? "debug" : "strict"; });
}

}  // namespace torchtpu
