#include "client.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "quiet.h"

namespace torchtpu::pjrt {
namespace {

// A digest of the processor's model and features: machine code for one CPU can fault on another.
std::string cpu_features() {
  std::ifstream in("/proc/cpuinfo");
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (std::string line; std::getline(in, line) && !line.empty();) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0 &&
        line.rfind("model name", 0) != 0) {
      continue;
    }
    for (unsigned char c : line) hash = (hash ^ c) * 1099511628211ull;
  }
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

PJRT_Program program_of(std::string_view code, std::string_view format) {
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = const_cast<char*>(code.data());  // in/out in the API, only read by a compile
  program.code_size = code.size();
  program.format = format.data();
  program.format_size = format.size();
  return program;
}

}  // namespace

DeviceInfo describe(const PJRT_Api* api, PJRT_DeviceDescription* description) {
  DeviceInfo info;
  Args<PJRT_DeviceDescription_Id_Args> id;
  id.device_description = description;
  check(api, api->PJRT_DeviceDescription_Id(&id));
  info.id = id.id;
  Args<PJRT_DeviceDescription_ProcessIndex_Args> process;
  process.device_description = description;
  check(api, api->PJRT_DeviceDescription_ProcessIndex(&process));
  info.process_index = process.process_index;
  Args<PJRT_DeviceDescription_Kind_Args> kind;
  kind.device_description = description;
  check(api, api->PJRT_DeviceDescription_Kind(&kind));
  info.kind.assign(kind.device_kind, kind.device_kind_size);
  Args<PJRT_DeviceDescription_DebugString_Args> debug;
  debug.device_description = description;
  check(api, api->PJRT_DeviceDescription_DebugString(&debug));
  info.debug_string.assign(debug.debug_string, debug.debug_string_size);
  Args<PJRT_DeviceDescription_ToString_Args> text;
  text.device_description = description;
  check(api, api->PJRT_DeviceDescription_ToString(&text));
  info.to_string.assign(text.to_string, text.to_string_size);
  Args<PJRT_DeviceDescription_Attributes_Args> attributes;
  attributes.device_description = description;
  check(api, api->PJRT_DeviceDescription_Attributes(&attributes));
  info.attributes = to_map(attributes.attributes, attributes.num_attributes);
  return info;
}

std::optional<MemoryStats> Device::memory_stats() const {
  if (api->PJRT_Device_MemoryStats == nullptr) return std::nullopt;
  Args<PJRT_Device_MemoryStats_Args> args;
  args.device = raw;
  try {
    check(api, api->PJRT_Device_MemoryStats(&args));
  } catch (const Error& e) {
    if (e.code() == Code::kUnimplemented) return std::nullopt;
    throw;
  }
  const auto value = [](int64_t v, bool set) {
    return set ? std::optional<int64_t>(v) : std::nullopt;
  };
  return MemoryStats{
      .bytes_in_use = args.bytes_in_use,
      .peak_bytes_in_use = value(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set),
      .bytes_limit = value(args.bytes_limit, args.bytes_limit_is_set),
      .bytes_reserved = value(args.bytes_reserved, args.bytes_reserved_is_set),
      .largest_free_block =
          value(args.largest_free_block_bytes, args.largest_free_block_bytes_is_set),
      .num_allocs = value(args.num_allocs, args.num_allocs_is_set),
  };
}

std::shared_ptr<Client> Client::create(std::shared_ptr<const Plugin> plugin,
                                       const ValueMap& options) {
  std::shared_ptr<Client> client(new Client(std::move(plugin)));
  const PJRT_Api* api = client->api();
  const auto named = to_named_values(options);
  Args<PJRT_Client_Create_Args> args;
  args.create_options = named.data();
  args.num_options = named.size();
  try {
    const QuietStart quiet;
    check(api, api->PJRT_Client_Create(&args));
  } catch (const Error& e) {
    throw Error(e.code(), "PJRT plugin " + client->plugin().path() +
                              " failed to create a client: " + e.what());
  }
  client->client_ = args.client;

  Args<PJRT_Client_PlatformName_Args> name;
  name.client = args.client;
  check(api, api->PJRT_Client_PlatformName(&name));
  client->platform_name_.assign(name.platform_name, name.platform_name_size);
  Args<PJRT_Client_PlatformVersion_Args> version;
  version.client = args.client;
  check(api, api->PJRT_Client_PlatformVersion(&version));
  client->platform_version_.assign(version.platform_version, version.platform_version_size);
  client->read_devices();
  client->fingerprint_ = client->plugin().fingerprint_for(
      client->platform_name_, client->platform_version_,
      client->devices_.empty() ? "" : client->devices_.front().kind);
  if (client->platform_name_ == "cpu") client->fingerprint_ += ";" + cpu_features();
  return client;
}

Client::~Client() {
  if (client_ == nullptr) return;
  Args<PJRT_Client_Destroy_Args> args;
  args.client = client_;
  discard(api(), api()->PJRT_Client_Destroy(&args));
}

void Client::read_devices() {
  Args<PJRT_Client_AddressableDevices_Args> list;
  list.client = client_;
  check(api(), api()->PJRT_Client_AddressableDevices(&list));
  for (size_t i = 0; i < list.num_addressable_devices; ++i) {
    PJRT_Device* raw = list.addressable_devices[i];
    Args<PJRT_Device_GetDescription_Args> description;
    description.device = raw;
    check(api(), api()->PJRT_Device_GetDescription(&description));
    Device device;
    static_cast<DeviceInfo&>(device) = describe(api(), description.device_description);
    device.api = api();
    device.raw = raw;
    Args<PJRT_Device_DefaultMemory_Args> memory;
    memory.device = raw;
    check(api(), api()->PJRT_Device_DefaultMemory(&memory));
    device.default_memory = memory.memory;
    Args<PJRT_Device_LocalHardwareId_Args> hardware;
    hardware.device = raw;
    check(api(), api()->PJRT_Device_LocalHardwareId(&hardware));
    device.local_hardware_id = hardware.local_hardware_id;
    devices_.push_back(std::move(device));
  }
  std::sort(devices_.begin(), devices_.end(),
            [](const Device& a, const Device& b) { return a.id < b.id; });
}

const Device& Client::device(size_t index) const {
  if (index >= devices_.size()) {
    throw Error(Code::kOutOfRange, "device index " + std::to_string(index) + " of " +
                                       std::to_string(devices_.size()) + " devices");
  }
  return devices_[index];
}

int Client::process_index() const {
  Args<PJRT_Client_ProcessIndex_Args> args;
  args.client = client_;
  check(api(), api()->PJRT_Client_ProcessIndex(&args));
  return args.process_index;
}

int Client::num_global_devices() const {
  Args<PJRT_Client_Devices_Args> args;
  args.client = client_;
  check(api(), api()->PJRT_Client_Devices(&args));
  return static_cast<int>(args.num_devices);
}

std::shared_ptr<LoadedExecutable> Client::compile(std::string_view program,
                                                  const CompileOptions& options,
                                                  std::string_view format) const {
  const PJRT_Program code = program_of(program, format);
  const std::string serialized_options = options.serialize();
  Args<PJRT_Client_Compile_Args> args;
  args.client = client_;
  args.program = &code;
  args.compile_options = serialized_options.data();
  args.compile_options_size = serialized_options.size();
  check(api(), api()->PJRT_Client_Compile(&args));
  return std::make_shared<LoadedExecutable>(api(), args.executable, shared_from_this());
}

std::shared_ptr<LoadedExecutable> Client::deserialize_and_load(
    std::string_view serialized, const CompileOptions* options) const {
  Args<PJRT_Executable_DeserializeAndLoad_Args> args;
  args.client = client_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  std::string serialized_options;
  if (options != nullptr) {
    serialized_options = options->serialize();
    args.overridden_serialized_compile_options = serialized_options.data();
    args.overridden_serialized_compile_options_size = serialized_options.size();
  }
  check(api(), api()->PJRT_Executable_DeserializeAndLoad(&args));
  return std::make_shared<LoadedExecutable>(api(), args.loaded_executable, shared_from_this());
}

Buffer Client::buffer_from_host(const void* data, PJRT_Buffer_Type type,
                                std::span<const int64_t> dims, const Device& device,
                                PJRT_HostBufferSemantics semantics, Event* done,
                                std::span<const int64_t> byte_strides) const {
  Args<PJRT_Client_BufferFromHostBuffer_Args> args;
  args.client = client_;
  args.data = data;
  args.type = type;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.byte_strides = byte_strides.empty() ? nullptr : byte_strides.data();
  args.num_byte_strides = byte_strides.size();
  args.host_buffer_semantics = semantics;
  args.device = device.raw;
  check(api(), api()->PJRT_Client_BufferFromHostBuffer(&args));
  Event event(api(), args.done_with_host_buffer);
  if (done != nullptr) {
    *done = std::move(event);
  }
  return Buffer(api(), args.buffer);
}

Buffer Client::uninitialized_buffer(PJRT_Buffer_Type type, std::span<const int64_t> dims,
                                    const Device& device) const {
  Args<PJRT_Client_CreateUninitializedBuffer_Args> args;
  args.client = client_;
  args.shape_dims = dims.data();
  args.shape_num_dims = dims.size();
  args.shape_element_type = type;
  args.device = device.raw;
  args.memory = device.default_memory;
  check(api(), require(api()->PJRT_Client_CreateUninitializedBuffer,
                       "PJRT_Client_CreateUninitializedBuffer")(&args));
  return Buffer(api(), args.buffer);
}

}  // namespace torchtpu::pjrt
