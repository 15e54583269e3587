#include "plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "quiet.h"

namespace torchtpu::pjrt {
namespace {

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) == nullptr) {
    throw Error(Code::kNotFound, "PJRT plugin " + path + ": " + std::strerror(errno) +
                                     ". Check TORCHTPU_PJRT_PLUGIN, or install a plugin: pip "
                                     "install xla-cpu-pjrt (CPU) or libtpu (TPU).");
  }
  return resolved;
}

struct BuildIdQuery {
  ElfW(Addr) base;
  std::string id;
};

int find_build_id(dl_phdr_info* info, size_t, void* data) {
  auto* query = static_cast<BuildIdQuery*>(data);
  if (info->dlpi_addr != query->base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* p = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = p + header.p_memsz;
    while (p + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(p);
      const char* name = p + sizeof(*note);
      const char* desc = name + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        constexpr char kHex[] = "0123456789abcdef";
        for (size_t k = 0; k < note->n_descsz; ++k) {
          const auto byte = static_cast<unsigned char>(desc[k]);
          query->id += {kHex[byte >> 4], kHex[byte & 15]};
        }
        return 1;
      }
      p = desc + ((note->n_descsz + 3) & ~3u);
    }
  }
  return 1;
}

std::string make_fingerprint(const std::string& path, void* handle, const PJRT_Api& api,
                             const ValueMap& attributes) {
  struct stat st{};
  ::stat(path.c_str(), &st);
  std::string out = path.substr(path.rfind('/') + 1) +
                    ";api=" + std::to_string(api.pjrt_api_version.major_version) + "." +
                    std::to_string(api.pjrt_api_version.minor_version) +
                    ";size=" + std::to_string(st.st_size);
  BuildIdQuery query{};
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
    query.base = map->l_addr;
    ::dl_iterate_phdr(find_build_id, &query);
  }
  out += query.id.empty() ? ";mtime=" + std::to_string(st.st_mtim.tv_sec) + "." +
                                std::to_string(st.st_mtim.tv_nsec)
                          : ";build=" + query.id;
  for (const auto& [key, value] : attributes) out += ";" + key + "=" + to_string(value);
  return out;
}

}  // namespace

std::shared_ptr<const Plugin> Plugin::load(const std::string& path) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, std::shared_ptr<const Plugin>>;
  const std::string real = real_path(path);
  std::lock_guard lock(mutex);
  auto it = loaded.find(real);
  if (it == loaded.end()) it = loaded.emplace(real, load_new(real)).first;
  return it->second;
}

std::shared_ptr<const Plugin> Plugin::load_new(const std::string& path) {
  const QuietStart quiet;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(Code::kNotFound,
                "PJRT plugin " + path + " cannot be loaded: " + ::dlerror() +
                    ". The file may be damaged or made for another system: reinstall its package, "
                    "or name another plugin in TORCHTPU_PJRT_PLUGIN.");
  }
  auto* get_api = reinterpret_cast<const PJRT_Api* (*)()>(::dlsym(handle, "GetPjrtApi"));
  const PJRT_Api* api = get_api == nullptr ? nullptr : get_api();
  if (api == nullptr) {
    ::dlclose(handle);
    throw Error(Code::kInvalidArgument,
                path + " is not a PJRT plugin: it " +
                    (get_api == nullptr ? "has no symbol GetPjrtApi" : "returned no API") +
                    ". Check TORCHTPU_PJRT_PLUGIN.");
  }
  const auto& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR || version.minor_version < kOldestMinor) {
    throw Error(Code::kFailedPrecondition,
                "PJRT plugin " + path + " speaks version " + std::to_string(version.major_version) +
                    "." + std::to_string(version.minor_version) +
                    " of the PJRT C API; this build of torchtpu needs " +
                    std::to_string(PJRT_API_MAJOR) + "." + std::to_string(kOldestMinor) +
                    " or newer, with the same major version. Install a matching plugin.");
  }

  std::shared_ptr<Plugin> plugin(new Plugin);
  plugin->path_ = path;
  // A copy, so that functions beyond an older plugin's table read as null.
  std::memcpy(&plugin->api_, api, std::min(api->struct_size, sizeof(PJRT_Api)));

  Args<PJRT_Plugin_Initialize_Args> initialize;
  try {
    check(plugin->api(), plugin->api_.PJRT_Plugin_Initialize(&initialize));
  } catch (const Error& e) {
    throw Error(e.code(), "PJRT plugin " + path + " failed to initialise: " + e.what());
  }
  Args<PJRT_Plugin_Attributes_Args> attributes;
  check(plugin->api(), plugin->api_.PJRT_Plugin_Attributes(&attributes));
  plugin->attributes_ = to_map(attributes.attributes, attributes.num_attributes);
  plugin->fingerprint_ = make_fingerprint(path, handle, plugin->api_, plugin->attributes_);
  return plugin;
}

}  // namespace torchtpu::pjrt
