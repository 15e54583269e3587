#include "ffi.h"

#include <cstring>

namespace torchtpu::pjrt::ffi {
namespace {

struct RegisterArgs {
  size_t struct_size;
  const char* name;
  size_t name_size;
  void* handler;
  const char* platform;
  size_t platform_size;
  uint32_t traits;
};

struct PluginExtension {
  PJRT_Extension_Base base;
  void* register_type;
  void* add_user_data;
  PJRT_Error* (*register_handler)(RegisterArgs*);
};

const PluginExtension* find(const Plugin& plugin) {
  for (const PJRT_Extension_Base* e = plugin.api()->extension_start; e != nullptr; e = e->next) {
    if (e->type == PJRT_Extension_Type_FFI && e->struct_size >= sizeof(PluginExtension)) {
      return reinterpret_cast<const PluginExtension*>(e);
    }
  }
  return nullptr;
}

}  // namespace

bool register_handler(const Plugin& plugin, const char* name, Handler handler) {
  const PluginExtension* extension = find(plugin);
  if (extension == nullptr) return false;
  constexpr char kPlatform[] = "Host";
  RegisterArgs args{};
  args.struct_size = offsetof(RegisterArgs, traits) + sizeof args.traits;
  args.name = name;
  args.name_size = std::strlen(name);
  args.handler = reinterpret_cast<void*>(handler);
  args.platform = kPlatform;
  args.platform_size = std::strlen(kPlatform);
  // An older plugin has one field more here, and refuses the size.
  PJRT_Error* error = extension->register_handler(&args);
  discard(plugin.api(), error);
  return error == nullptr;
}

}  // namespace torchtpu::pjrt::ffi
