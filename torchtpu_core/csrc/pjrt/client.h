// A PJRT client: its devices, transfers to them, and compilation for them.
#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "buffer.h"
#include "executable.h"
#include "options.h"
#include "plugin.h"

namespace torchtpu::pjrt {

struct MemoryStats {
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use;
  std::optional<int64_t> bytes_limit;
  std::optional<int64_t> bytes_reserved;
  std::optional<int64_t> largest_free_block;
  std::optional<int64_t> num_allocs;
};

// A device description, as clients and topologies have them.
struct DeviceInfo {
  int id = 0;  // unique over all processes
  int process_index = 0;
  std::string kind;
  std::string debug_string;
  std::string to_string;
  ValueMap attributes;
};
DeviceInfo describe(const PJRT_Api* api, PJRT_DeviceDescription* description);

// An addressable device; lives in its client.
struct Device : DeviceInfo {
  const PJRT_Api* api = nullptr;
  PJRT_Device* raw = nullptr;
  PJRT_Memory* default_memory = nullptr;
  int local_hardware_id = -1;

  // Nothing where the plugin keeps no statistics.
  std::optional<MemoryStats> memory_stats() const;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  // `options` are the plugin's own, such as {"cpu_device_count", int64_t{2}}.
  static std::shared_ptr<Client> create(std::shared_ptr<const Plugin> plugin,
                                        const ValueMap& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const PJRT_Api* api() const noexcept { return plugin_->api(); }
  const Plugin& plugin() const noexcept { return *plugin_; }
  PJRT_Client* get() const noexcept { return client_; }

  const std::string& platform_name() const { return platform_name_; }  // "cpu", "tpu"
  const std::string& platform_version() const { return platform_version_; }
  int process_index() const;
  // The addressable devices, in order of their id.
  const std::vector<Device>& devices() const { return devices_; }
  const Device& device(size_t index) const;  // throws OutOfRange
  int num_global_devices() const;

  // Identifies the machine code that serialized executables hold: the plugin's fingerprint, the
  // platform, the kind of device and, on CPU, the features of the processor.
  const std::string& fingerprint() const { return fingerprint_; }

  // `program` is MLIR text or bytecode ("mlir"), or a serialized HloModuleProto ("hlo").
  std::shared_ptr<LoadedExecutable> compile(std::string_view program,
                                            const CompileOptions& options = {},
                                            std::string_view format = "mlir") const;
  // The inverse of LoadedExecutable::serialize, for the same fingerprint. Options only where they
  // differ from those it was compiled with.
  std::shared_ptr<LoadedExecutable> deserialize_and_load(
      std::string_view serialized, const CompileOptions* options = nullptr) const;

  // Copies dense row-major host data (or, given `byte_strides`, strided data) to a device. With
  // the default semantics `data` is free for reuse on return; otherwise `*done` receives the event
  // that says when it is.
  Buffer buffer_from_host(
      const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims, const Device& device,
      PJRT_HostBufferSemantics semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      Event* done = nullptr, std::span<const int64_t> byte_strides = {}) const;
  // Device memory with undefined contents. Older plugins do not have it.
  bool has_uninitialized_buffers() const noexcept {
    return api()->PJRT_Client_CreateUninitializedBuffer != nullptr;
  }
  Buffer uninitialized_buffer(PJRT_Buffer_Type type, std::span<const int64_t> dims,
                              const Device& device) const;

  // Blocking copy to the host: to_host, then await.
  static void to_host_blocking(const Buffer& buffer, void* dst, size_t size) {
    buffer.to_host(dst, size).await();
  }

 private:
  explicit Client(std::shared_ptr<const Plugin> plugin) : plugin_(std::move(plugin)) {}
  void read_devices();

  std::shared_ptr<const Plugin> plugin_;
  PJRT_Client* client_ = nullptr;
  std::string platform_name_;
  std::string platform_version_;
  std::string fingerprint_;
  std::vector<Device> devices_;
};

}  // namespace torchtpu::pjrt
