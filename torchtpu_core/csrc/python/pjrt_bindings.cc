// torchtpu_core._C.pjrt: the PJRT client for tests, tools and ahead-of-time compilation. The path
// of eager ops does not come through here. The GIL is released around PJRT calls that can take
// time.
#include "pjrt_bindings.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "../pjrt/client.h"
#include "../pjrt/plugin.h"
#include "../pjrt/topology.h"
#include "../pjrt/types.h"
#include "bindings.h"

namespace py = pybind11;
using namespace py::literals;

namespace torchtpu {
namespace {

using pjrt::Client;
using pjrt::CompileOptions;
using pjrt::Device;
using pjrt::DeviceInfo;
using pjrt::Error;
using pjrt::Executable;
using pjrt::LoadedExecutable;
using pjrt::Plugin;
using pjrt::Topology;
using pjrt::Value;
using pjrt::ValueMap;
using NoGil = py::gil_scoped_release;

// A device buffer with the client that it must not outlive.
struct ClientBuffer {
  std::shared_ptr<const Client> client;
  pjrt::Buffer buffer;
};

// Exception classes live as long as the process.
PyObject* pjrt_error = nullptr;
PyObject* unimplemented_error = nullptr;
PyObject* out_of_range_error = nullptr;

PyObject* new_exception(py::module_& m, const char* name, py::tuple bases, const char* doc) {
  const std::string full = "torchtpu_core._C." + std::string(name);
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw py::error_already_set();
  m.attr(name) = py::handle(type);
  return type;
}

PyObject* exception_class(pjrt::Code code) {
  switch (code) {
    case pjrt::Code::kUnimplemented:
      return unimplemented_error;
    case pjrt::Code::kOutOfRange:
      return out_of_range_error;
    default:
      return pjrt_error;
  }
}

Value to_value(py::handle h) {
  if (py::isinstance<py::bool_>(h)) return h.cast<bool>();
  if (py::isinstance<py::int_>(h)) return h.cast<int64_t>();
  if (py::isinstance<py::float_>(h)) return h.cast<float>();
  if (py::isinstance<py::str>(h)) return h.cast<std::string>();
  return h.cast<std::vector<int64_t>>();
}

ValueMap to_values(const py::dict& dict) {
  ValueMap map;
  for (const auto& [key, value] : dict) map[py::str(key)] = to_value(value);
  return map;
}

py::dict to_dict(const ValueMap& map) {
  py::dict dict;
  for (const auto& [key, value] : map) {
    dict[key.c_str()] = std::visit([](const auto& v) -> py::object { return py::cast(v); }, value);
  }
  return dict;
}

pjrt::Override to_override(py::handle h) {
  if (py::isinstance<py::bool_>(h)) return h.cast<bool>();
  if (py::isinstance<py::int_>(h)) return h.cast<int64_t>();
  if (py::isinstance<py::float_>(h)) return h.cast<double>();
  return h.cast<std::string>();
}

CompileOptions make_options(int num_replicas, int num_partitions, bool portable,
                            std::vector<int64_t> device_assignment, bool use_spmd_partitioning,
                            bool use_shardy_partitioner, const py::dict& overrides) {
  CompileOptions options{.num_replicas = num_replicas,
                         .num_partitions = num_partitions,
                         .portable = portable,
                         .device_assignment = std::move(device_assignment),
                         .use_spmd_partitioning = use_spmd_partitioning,
                         .use_shardy_partitioner = use_shardy_partitioner,
                         .overrides = {}};
  for (const auto& [key, value] : overrides) options.overrides[py::str(key)] = to_override(value);
  return options;
}

py::dict to_dict(const pjrt::CompiledMemoryStats& s) {
  return py::dict("generated_code"_a = s.generated_code, "arguments"_a = s.arguments,
                  "outputs"_a = s.outputs, "alias"_a = s.alias, "temp"_a = s.temp,
                  "host_arguments"_a = s.host_arguments, "host_outputs"_a = s.host_outputs,
                  "host_temp"_a = s.host_temp, "peak"_a = s.peak);
}

py::object memory_stats(const Device& device) {
  const auto s = device.memory_stats();
  if (!s) return py::none();
  return py::dict("bytes_in_use"_a = s->bytes_in_use, "peak_bytes_in_use"_a = s->peak_bytes_in_use,
                  "bytes_limit"_a = s->bytes_limit, "bytes_reserved"_a = s->bytes_reserved,
                  "largest_free_block"_a = s->largest_free_block, "num_allocs"_a = s->num_allocs);
}

py::list outputs(const Executable& e) {
  py::list out;
  for (const auto& o : e.outputs()) {
    out.append(py::make_tuple(pjrt::type_name(o.type), py::tuple(py::cast(o.dims))));
  }
  return out;
}

py::tuple optimized_program(const Executable& e) {
  Executable::Program program;
  {
    NoGil no_gil;
    program = e.optimized_program();
  }
  return py::make_tuple(program.format, py::bytes(program.code));
}

py::bytes serialize(const Executable& e) {
  std::string bytes;
  {
    NoGil no_gil;
    bytes = e.serialize();
  }
  return bytes;
}

// The bytes of a str or bytes argument, which outlives the call.
std::string_view view(const py::object& text) {
  if (py::isinstance<py::bytes>(text)) return text.cast<std::string_view>();
  if (py::isinstance<py::str>(text)) return text.cast<std::string_view>();
  throw py::type_error("a program is str or bytes");
}

const Device& device_of(const Client& client, const py::object& device) {
  if (py::isinstance<py::int_>(device)) return client.device(device.cast<size_t>());
  return device.cast<const Device&>();
}

size_t element_count(const std::vector<int64_t>& dims) {
  size_t n = 1;
  for (int64_t d : dims) {
    if (d < 0) throw Error(pjrt::Code::kInvalidArgument, "a dimension is negative");
    n *= static_cast<size_t>(d);
  }
  return n;
}

// A C-contiguous view of an object with the buffer protocol, released on destruction.
class HostView {
 public:
  HostView(const py::object& object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~HostView() { PyBuffer_Release(&view_); }
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }
  std::vector<int64_t> dims() const { return {view_.shape, view_.shape + view_.ndim}; }

 private:
  Py_buffer view_;
};

std::unique_ptr<ClientBuffer> buffer_from_host(const std::shared_ptr<Client>& client,
                                               const py::object& data, const std::string& type,
                                               const py::object& device,
                                               std::optional<std::vector<int64_t>> dims) {
  const HostView host(data, /*writable=*/false);
  const PJRT_Buffer_Type element = pjrt::type_from_name(type);
  const std::vector<int64_t> shape = dims ? *dims : host.dims();
  const size_t need = element_count(shape) * pjrt::host_byte_size(element);
  if (host.size() != need) {
    throw Error(pjrt::Code::kInvalidArgument, "the host data has " + std::to_string(host.size()) +
                                                  " bytes; the shape and type '" + type +
                                                  "' need " + std::to_string(need));
  }
  const Device& target = device_of(*client, device);
  NoGil no_gil;
  return std::make_unique<ClientBuffer>(
      ClientBuffer{client, client->buffer_from_host(host.data(), element, shape, target)});
}

void to_host(const ClientBuffer& b, void* dst, size_t size) {
  NoGil no_gil;
  b.buffer.to_host(dst, size).await();
}

py::bytes to_bytes(const ClientBuffer& b) {
  const size_t size = b.buffer.host_size();
  py::bytes out(nullptr, size);
  to_host(b, PyBytes_AS_STRING(out.ptr()), size);
  return out;
}

// A loaded executable with its client, for the buffers that it makes.
struct ClientExecutable {
  std::shared_ptr<const Client> client;
  std::shared_ptr<LoadedExecutable> loaded;
  const Executable& executable() const { return loaded->executable(); }
};

std::vector<PJRT_Buffer*> raw(const std::vector<const ClientBuffer*>& buffers) {
  std::vector<PJRT_Buffer*> out;
  for (const ClientBuffer* b : buffers) {
    if (b == nullptr) throw py::type_error("an argument of execute is None");
    out.push_back(b->buffer.get());
  }
  return out;
}

using OwnedBuffers = std::vector<std::unique_ptr<ClientBuffer>>;

OwnedBuffers own(const ClientExecutable& e, const std::vector<PJRT_Buffer*>& buffers) {
  OwnedBuffers out;
  for (PJRT_Buffer* b : buffers) {
    out.push_back(
        std::make_unique<ClientBuffer>(ClientBuffer{e.client, pjrt::Buffer(e.client->api(), b)}));
  }
  return out;
}

OwnedBuffers execute(const ClientExecutable& e, const std::vector<const ClientBuffer*>& args,
                     const py::object& device, const std::vector<int64_t>& non_donatable) {
  const std::vector<PJRT_Buffer*> in = raw(args);
  std::vector<PJRT_Buffer*> out(e.loaded->num_outputs());
  PJRT_Device* target = device.is_none() ? nullptr : device_of(*e.client, device).raw;
  NoGil no_gil;
  e.loaded->execute_raw(in.data(), in.size(), out.data(), target, non_donatable.data(),
                        non_donatable.size(), nullptr);
  return own(e, out);
}

std::vector<OwnedBuffers> execute_sharded(
    const ClientExecutable& e, const std::vector<std::vector<const ClientBuffer*>>& args) {
  const size_t devices = args.size();
  if (devices != e.loaded->devices().size()) {
    throw Error(pjrt::Code::kInvalidArgument,
                "the executable runs on " + std::to_string(e.loaded->devices().size()) +
                    " devices, arguments were given for " + std::to_string(devices));
  }
  std::vector<std::vector<PJRT_Buffer*>> in, out;
  for (const auto& list : args) {
    in.push_back(raw(list));
    if (in.back().size() != in.front().size()) {
      throw Error(pjrt::Code::kInvalidArgument, "every device needs the same number of arguments");
    }
    out.emplace_back(e.loaded->num_outputs());
  }
  std::vector<PJRT_Buffer* const*> in_lists;
  std::vector<PJRT_Buffer**> out_lists;
  for (auto& list : in) in_lists.push_back(list.data());
  for (auto& list : out) out_lists.push_back(list.data());
  NoGil no_gil;
  e.loaded->execute_sharded(in_lists.data(), in.front().size(), out_lists.data(), devices, nullptr,
                            0, nullptr);
  std::vector<OwnedBuffers> result;
  for (const auto& list : out) result.push_back(own(e, list));
  return result;
}

// What Executable and LoadedExecutable both tell about a program; `get` finds it in a T.
template <class T, class... Extra, class Get>
void def_inspection(py::class_<T, Extra...>& c, Get get) {
  c.def_property_readonly("name", [get](const T& e) { return get(e).name(); });
  c.def_property_readonly("num_outputs", [get](const T& e) { return get(e).num_outputs(); });
  c.def_property_readonly(
      "outputs", [get](const T& e) { return outputs(get(e)); }, "[(element type, dims), ...]");
  c.def_property_readonly("fingerprint",
                          [get](const T& e) { return py::bytes(get(e).fingerprint()); });
  c.def("serialize", [get](const T& e) { return serialize(get(e)); });
  c.def(
      "optimized_program", [get](const T& e) { return optimized_program(get(e)); },
      "(format, bytes) of the program after optimisation.");
  c.def("memory_stats", [get](const T& e) { return to_dict(get(e).memory_stats()); });
  c.def("cost_analysis", [get](const T& e) { return to_dict(get(e).cost_analysis()); });
}

void bind_errors(py::module_& m) {
  pjrt_error = new_exception(m, "PjrtError", py::make_tuple(py::handle(PyExc_RuntimeError)),
                             "An error of the PJRT plugin; `code` is its code's name.");
  const py::handle base(pjrt_error);
  unimplemented_error = new_exception(m, "PjrtUnimplementedError",
                                      py::make_tuple(base, py::handle(PyExc_NotImplementedError)),
                                      "The plugin does not implement what was asked for.");
  out_of_range_error =
      new_exception(m, "PjrtOutOfRangeError", py::make_tuple(base, py::handle(PyExc_IndexError)),
                    "An index is beyond what there is.");
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      set_python_error(e);
    }
  });
}

void bind_devices(py::module_& m) {
  py::class_<DeviceInfo>(m, "DeviceInfo")
      .def_readonly("id", &DeviceInfo::id)
      .def_readonly("process_index", &DeviceInfo::process_index)
      .def_readonly("kind", &DeviceInfo::kind)
      .def_readonly("debug_string", &DeviceInfo::debug_string)
      .def_property_readonly("attributes",
                             [](const DeviceInfo& d) { return to_dict(d.attributes); })
      .def("__repr__", [](const DeviceInfo& d) { return d.to_string; });
  py::class_<Device, DeviceInfo>(m, "Device")
      .def_readonly("local_hardware_id", &Device::local_hardware_id)
      .def("memory_stats", &memory_stats, "A dict of bytes, or None where the plugin keeps none.");
}

void bind_compilation(py::module_& m) {
  py::class_<CompileOptions>(m, "CompileOptions")
      .def(py::init(&make_options), py::kw_only(), "num_replicas"_a = 1, "num_partitions"_a = 1,
           "portable"_a = true, "device_assignment"_a = std::vector<int64_t>{},
           "use_spmd_partitioning"_a = false, "use_shardy_partitioner"_a = false,
           "overrides"_a = py::dict())
      .def("serialize", [](const CompileOptions& o) { return py::bytes(o.serialize()); });

  py::class_<Executable> executable(m, "Executable");
  def_inspection(executable, [](const Executable& e) -> const Executable& { return e; });

  py::class_<ClientExecutable> loaded(m, "LoadedExecutable");
  def_inspection(loaded,
                 [](const ClientExecutable& e) -> const Executable& { return e.executable(); });
  loaded
      .def("execute", &execute, "args"_a, "device"_a = py::none(),
           "non_donatable"_a = std::vector<int64_t>{},
           "Starts the program on one device; returns its output buffers.")
      .def("execute_sharded", &execute_sharded, "args"_a,
           "Starts the program on all its devices; args[d] belongs to device d.");
}

void bind_buffer(py::module_& m) {
  py::class_<ClientBuffer>(m, "Buffer")
      .def_property_readonly("type",
                             [](const ClientBuffer& b) { return pjrt::type_name(b.buffer.type()); })
      .def_property_readonly(
          "dims",
          [](const ClientBuffer& b) {
            const auto dims = b.buffer.dims();
            return py::tuple(py::cast(std::vector<int64_t>(dims.begin(), dims.end())));
          })
      .def_property_readonly(
          "device",
          [](const ClientBuffer& b) -> const Device& {
            PJRT_Device* raw = b.buffer.device();
            for (const Device& d : b.client->devices()) {
              if (d.raw == raw) return d;
            }
            throw Error(pjrt::Code::kInternal, "the buffer is on a device that the client lacks");
          },
          py::return_value_policy::reference_internal)
      .def_property_readonly("on_device_size",
                             [](const ClientBuffer& b) { return b.buffer.on_device_size(); })
      .def_property_readonly("is_deleted",
                             [](const ClientBuffer& b) { return b.buffer.is_deleted(); })
      .def("is_ready", [](const ClientBuffer& b) { return b.buffer.is_ready(); })
      .def(
          "wait", [](const ClientBuffer& b) { b.buffer.ready_event().await(); },
          py::call_guard<NoGil>(), "Blocks until the value is there; raises what went wrong.")
      .def("to_bytes", &to_bytes, "The elements, dense and row-major.")
      .def(
          "to_host",
          [](const ClientBuffer& b, const py::object& dst) {
            const HostView host(dst, /*writable=*/true);
            to_host(b, host.data(), host.size());
          },
          "dst"_a, "Copies the elements into a writable, C-contiguous object.")
      .def(
          "copy_to",
          [](const ClientBuffer& b, const py::object& device) {
            const Device& target = device_of(*b.client, device);
            NoGil no_gil;
            return std::make_unique<ClientBuffer>(
                ClientBuffer{b.client, b.buffer.copy_to(target.raw)});
          },
          "device"_a)
      .def("delete", [](const ClientBuffer& b) { b.buffer.delete_(); }, py::call_guard<NoGil>());
}

void bind_client(py::module_& m) {
  py::class_<Client, std::shared_ptr<Client>>(m, "Client")
      .def_property_readonly("platform_name", &Client::platform_name)
      .def_property_readonly("platform_version", &Client::platform_version)
      .def_property_readonly("fingerprint", &Client::fingerprint)
      .def_property_readonly("process_index", &Client::process_index)
      .def_property_readonly("num_global_devices", &Client::num_global_devices)
      .def_property_readonly(
          "devices",
          [](py::object self) {
            py::list out;
            for (const Device& d : self.cast<Client&>().devices()) {
              out.append(py::cast(&d, py::return_value_policy::reference_internal, self));
            }
            return out;
          })
      .def(
          "compile",
          [](const std::shared_ptr<Client>& c, const py::object& program,
             const CompileOptions& options, const std::string& format) {
            const std::string_view code = view(program);
            NoGil no_gil;
            return ClientExecutable{c, c->compile(code, options, format)};
          },
          "program"_a, "options"_a = CompileOptions{}, "format"_a = "mlir")
      .def(
          "deserialize",
          [](const std::shared_ptr<Client>& c, const py::bytes& serialized,
             const CompileOptions* options) {
            const auto bytes = serialized.cast<std::string_view>();
            NoGil no_gil;
            return ClientExecutable{c, c->deserialize_and_load(bytes, options)};
          },
          "serialized"_a, "options"_a = py::none())
      .def("buffer", &buffer_from_host, "data"_a, "type"_a, "device"_a = 0, "dims"_a = py::none(),
           "Copies a C-contiguous object with the buffer protocol to a device; `type` names the "
           "element type as StableHLO does.")
      .def(
          "uninitialized_buffer",
          [](const std::shared_ptr<Client>& c, const std::string& type,
             const std::vector<int64_t>& dims, const py::object& device) {
            element_count(dims);
            const Device& target = device_of(*c, device);
            NoGil no_gil;
            return std::make_unique<ClientBuffer>(
                ClientBuffer{c, c->uninitialized_buffer(pjrt::type_from_name(type), dims, target)});
          },
          "type"_a, "dims"_a, "device"_a = 0);
}

void bind_plugin(py::module_& m) {
  py::class_<Topology, std::shared_ptr<Topology>>(m, "Topology")
      .def_property_readonly("platform_name", &Topology::platform_name)
      .def_property_readonly("platform_version", &Topology::platform_version)
      .def_property_readonly("fingerprint", &Topology::fingerprint)
      .def_property_readonly("devices", &Topology::devices)
      .def_property_readonly("attributes",
                             [](const Topology& t) { return to_dict(t.attributes()); })
      .def("serialize", [](const Topology& t) { return py::bytes(t.serialize()); })
      .def(
          "compile",
          [](const Topology& t, const py::object& program, const CompileOptions& options,
             const std::string& format) {
            const std::string_view code = view(program);
            NoGil no_gil;
            return t.compile(code, options, format);
          },
          "program"_a, "options"_a = CompileOptions{}, "format"_a = "mlir");

  py::class_<Plugin, std::shared_ptr<Plugin>>(m, "Plugin")
      .def_property_readonly("path", &Plugin::path)
      .def_property_readonly("fingerprint", &Plugin::fingerprint)
      .def_property_readonly(
          "api_version",
          [](const Plugin& p) { return py::make_tuple(p.major_version(), p.minor_version()); })
      .def_property_readonly("attributes", [](const Plugin& p) { return to_dict(p.attributes()); })
      .def(
          "create_client",
          [](const std::shared_ptr<Plugin>& p, const py::dict& options) {
            const ValueMap values = to_values(options);
            NoGil no_gil;
            return Client::create(p, values);
          },
          "options"_a = py::dict())
      .def(
          "topology",
          [](const std::shared_ptr<Plugin>& p, const std::string& name, const py::dict& options) {
            const ValueMap values = to_values(options);
            NoGil no_gil;
            return std::const_pointer_cast<Topology>(Topology::create(p, name, values));
          },
          "name"_a, "options"_a = py::dict());

  m.def(
      "load_plugin",
      [](const std::string& path) {
        NoGil no_gil;
        return std::const_pointer_cast<Plugin>(Plugin::load(path));
      },
      "path"_a, "Loads a PJRT plugin, once per process.");
}

}  // namespace

void set_python_error(const pjrt::Error& error) {
  if (error.code() == pjrt::Code::kResourceExhausted) {
    const py::object type = py::module_::import("torch").attr("OutOfMemoryError");
    PyErr_SetString(type.ptr(), error.what());
    return;
  }
  const py::handle type(exception_class(error.code()));
  const py::object exception = type(error.what());
  exception.attr("code") = pjrt::name(error.code());
  PyErr_SetObject(type.ptr(), exception.ptr());
}

void bind_pjrt(py::module_& m) {
  bind_errors(m);
  py::module_ sub = m.def_submodule("pjrt", "PJRT plugins, clients, buffers and executables.");
  bind_devices(sub);
  bind_compilation(sub);
  bind_buffer(sub);
  bind_client(sub);
  bind_plugin(sub);
}

}  // namespace torchtpu
