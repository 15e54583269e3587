// XLA's foreign function interface, by which programs call functions of this process: what we use
// of its C ABI (openxla/xla: xla/ffi/api/c_api.h, xla/pjrt/c/pjrt_c_api_ffi_extension.h), major
// version 0. Field order and sizes are the contract.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin.h"

namespace torchtpu::pjrt::ffi {

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extension_start;
  int major;
  int minor;
};

struct Error;  // the plugin's

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extension_start;
  const char* message;
  int32_t code;
};

struct Future;  // the plugin's

struct FutureCreateArgs {
  size_t struct_size;
  Extension* extension_start;
  Future* future;  // out
};

struct FutureSetAvailableArgs {
  size_t struct_size;
  Extension* extension_start;
  Future* future;
};

struct FutureSetErrorArgs {
  size_t struct_size;
  Extension* extension_start;
  Future* future;
  Error* error;  // becomes the plugin's
};

// The head of the plugin's table of functions.
struct Api {
  size_t struct_size;
  Extension* extension_start;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void* between[12];
  Error* (*future_create)(FutureCreateArgs*);
  Error* (*future_set_available)(FutureSetAvailableArgs*);
  Error* (*future_set_error)(FutureSetErrorArgs*);
};

enum class Type : int32_t { kS64 = 5, kF32 = 11, kF64 = 12 };

// Row-major.
struct Buffer {
  size_t struct_size;
  Extension* extension_start;
  Type type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments, and likewise results: of kinds[i] 1 are buffers, and there are no others.
struct Buffers {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  int32_t* kinds;
  Buffer** items;
};

struct Span {
  const char* data;
  size_t size;
};

struct Array {
  Type type;
  size_t size;
  const void* data;
};

enum class AttributeKind : int32_t { kArray = 1 };

struct Attributes {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  AttributeKind* kinds;
  Span** names;
  void** items;
};

enum class Stage : int32_t { kExecute = 3 };

struct CallFrame {
  size_t struct_size;
  Extension* extension_start;
  const Api* api;
  void* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // out
};

// What XLA asks of a handler when it is registered: a frame with this extension.
constexpr int32_t kMetadataExtension = 1;
struct Metadata {
  size_t struct_size;
  Version version;  // out
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

// Null for success. Is called on threads of XLA, several at a time.
using Handler = Error* (*)(CallFrame*);

// Makes `handler` what custom calls of `name` run, in all programs that the plugin compiles or
// loads for its platform "Host", the CPU. False if the plugin takes none.
bool register_handler(const Plugin& plugin, const char* name, Handler handler);

}  // namespace torchtpu::pjrt::ffi
