// Compilation ahead of time, for hardware that is described rather than attached.
#pragma once

#include <pjrt_c_api.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client.h"
#include "executable.h"
#include "options.h"
#include "plugin.h"

namespace torchtpu::pjrt {

class Topology {
 public:
  // `name` is the plugin's name of a topology, such as libtpu's "v5e:2x2".
  static std::shared_ptr<const Topology> create(std::shared_ptr<const Plugin> plugin,
                                                const std::string& name,
                                                const ValueMap& options = {});
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  const Plugin& plugin() const noexcept { return *plugin_; }
  std::string platform_name() const;
  std::string platform_version() const;
  std::vector<DeviceInfo> devices() const;
  ValueMap attributes() const;
  // Bytes that identify the topology, for cache keys.
  std::string serialize() const;
  // What `Client::fingerprint` is where such devices are attached.
  std::string fingerprint() const;

  // The executable can be inspected and serialized, and loaded by a client on such hardware.
  Executable compile(std::string_view program, const CompileOptions& options = {},
                     std::string_view format = "mlir") const;

 private:
  Topology(std::shared_ptr<const Plugin> plugin, PJRT_TopologyDescription* topology)
      : plugin_(std::move(plugin)), topology_(topology) {}
  const PJRT_Api* api() const noexcept { return plugin_->api(); }

  std::shared_ptr<const Plugin> plugin_;
  PJRT_TopologyDescription* topology_;
};

}  // namespace torchtpu::pjrt
