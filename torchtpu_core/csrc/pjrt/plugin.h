// A PJRT plugin: a shared library with the symbol GetPjrtApi.
#pragma once

#include <pjrt_c_api.h>

#include <memory>
#include <string>

#include "error.h"
#include "value.h"

namespace torchtpu::pjrt {

// Plugins that speak an older minor version of the C API lack functions we cannot do without.
inline constexpr int kOldestMinor = 40;

class Plugin {
 public:
  // Loads and initialises the plugin, once per file and process; it is never unloaded. Throws
  // NotFound (no such file, not loadable), InvalidArgument (not a PJRT plugin),
  // FailedPrecondition (incompatible version) or what the plugin's initialisation reports.
  static std::shared_ptr<const Plugin> load(const std::string& path);

  // The functions of the plugin. Those that it lacks, being older than our header, are null.
  const PJRT_Api* api() const { return &api_; }
  template <class F>
  bool has(F* PJRT_Api::* function) const {
    return api_.*function != nullptr;
  }

  const std::string& path() const { return path_; }
  int major_version() const { return api_.pjrt_api_version.major_version; }
  int minor_version() const { return api_.pjrt_api_version.minor_version; }
  // xla_version, stablehlo_current_version, ...
  const ValueMap& attributes() const { return attributes_; }
  // Changes whenever the plugin's binary does: name, size, attributes, build id (or, without one,
  // modification time).
  const std::string& fingerprint() const { return fingerprint_; }
  // Of machine code for devices of a kind, attached (Client) or described (Topology).
  std::string fingerprint_for(const std::string& platform, const std::string& version,
                              const std::string& kind) const {
    return fingerprint_ + ";" + platform + ";" + version + ";" + kind;
  }

 private:
  Plugin() = default;
  static std::shared_ptr<const Plugin> load_new(const std::string& path);

  std::string path_;
  PJRT_Api api_{};
  ValueMap attributes_;
  std::string fingerprint_;
};

}  // namespace torchtpu::pjrt
