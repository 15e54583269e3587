#include "topology.h"

#include "quiet.h"

namespace torchtpu::pjrt {

std::shared_ptr<const Topology> Topology::create(std::shared_ptr<const Plugin> plugin,
                                                 const std::string& name, const ValueMap& options) {
  const PJRT_Api* api = plugin->api();
  const auto named = to_named_values(options);
  Args<PJRT_TopologyDescription_Create_Args> args;
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = named.data();
  args.num_options = named.size();
  try {
    const QuietStart quiet;
    check(api, api->PJRT_TopologyDescription_Create(&args));
  } catch (const Error& e) {
    throw Error(e.code(), "PJRT plugin " + plugin->path() + " cannot describe the topology '" +
                              name + "': " + e.what());
  }
  return std::shared_ptr<const Topology>(new Topology(std::move(plugin), args.topology));
}

Topology::~Topology() {
  Args<PJRT_TopologyDescription_Destroy_Args> args;
  args.topology = topology_;
  discard(api(), api()->PJRT_TopologyDescription_Destroy(&args));
}

std::string Topology::platform_name() const {
  Args<PJRT_TopologyDescription_PlatformName_Args> args;
  args.topology = topology_;
  check(api(), api()->PJRT_TopologyDescription_PlatformName(&args));
  return {args.platform_name, args.platform_name_size};
}

std::string Topology::platform_version() const {
  Args<PJRT_TopologyDescription_PlatformVersion_Args> args;
  args.topology = topology_;
  check(api(), api()->PJRT_TopologyDescription_PlatformVersion(&args));
  return {args.platform_version, args.platform_version_size};
}

std::vector<DeviceInfo> Topology::devices() const {
  Args<PJRT_TopologyDescription_GetDeviceDescriptions_Args> args;
  args.topology = topology_;
  check(api(), api()->PJRT_TopologyDescription_GetDeviceDescriptions(&args));
  std::vector<DeviceInfo> out;
  for (size_t i = 0; i < args.num_descriptions; ++i) {
    out.push_back(describe(api(), args.descriptions[i]));
  }
  return out;
}

ValueMap Topology::attributes() const {
  Args<PJRT_TopologyDescription_Attributes_Args> args;
  args.topology = topology_;
  check(api(), api()->PJRT_TopologyDescription_Attributes(&args));
  return to_map(args.attributes, args.num_attributes);
}

std::string Topology::serialize() const {
  Args<PJRT_TopologyDescription_Serialize_Args> args;
  args.topology = topology_;
  check(api(), api()->PJRT_TopologyDescription_Serialize(&args));
  auto free = [&](PJRT_SerializedTopology* t) { args.serialized_topology_deleter(t); };
  const std::unique_ptr<PJRT_SerializedTopology, decltype(free)> guard(args.serialized_topology,
                                                                       free);
  return {args.serialized_bytes, args.serialized_bytes_size};
}

std::string Topology::fingerprint() const {
  const auto all = devices();
  return plugin().fingerprint_for(platform_name(), platform_version(),
                                  all.empty() ? "" : all.front().kind);
}

Executable Topology::compile(std::string_view program, const CompileOptions& options,
                             std::string_view format) const {
  PJRT_Program code{};
  code.struct_size = PJRT_Program_STRUCT_SIZE;
  code.code = const_cast<char*>(program.data());  // in/out in the API, only read by a compile
  code.code_size = program.size();
  code.format = format.data();
  code.format_size = format.size();
  const std::string serialized_options = options.serialize();
  Args<PJRT_Compile_Args> args;
  args.topology = topology_;
  args.program = &code;
  args.compile_options = serialized_options.data();
  args.compile_options_size = serialized_options.size();
  check(api(), api()->PJRT_Compile(&args));
  return Executable(api(), args.executable);
}

}  // namespace torchtpu::pjrt
