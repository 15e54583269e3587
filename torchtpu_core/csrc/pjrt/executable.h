// Compiled programs: Executable (what the compiler made) and LoadedExecutable (ready to run).
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "value.h"

namespace torchtpu::pjrt {

struct OutputSpec {
  PJRT_Buffer_Type type;
  std::vector<int64_t> dims;
};

// Bytes, as the compiler planned them.
struct CompiledMemoryStats {
  int64_t generated_code = 0;
  int64_t arguments = 0;
  int64_t outputs = 0;
  int64_t alias = 0;  // part of `outputs` that reuses donated arguments
  int64_t temp = 0;
  int64_t host_arguments = 0;
  int64_t host_outputs = 0;
  int64_t host_temp = 0;
  int64_t peak = 0;  // 0 where the plugin does not tell
};

// Owns a PJRT_Executable.
class Executable {
 public:
  Executable() = default;
  Executable(const PJRT_Api* api, PJRT_Executable* executable) noexcept
      : api_(api), executable_(executable) {}
  ~Executable() { reset(); }
  Executable(Executable&& other) noexcept
      : api_(other.api_), executable_(std::exchange(other.executable_, nullptr)) {}
  Executable& operator=(Executable&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      executable_ = std::exchange(other.executable_, nullptr);
    }
    return *this;
  }

  PJRT_Executable* get() const noexcept { return executable_; }
  void reset() noexcept;

  std::string name() const;
  size_t num_outputs() const;
  std::vector<OutputSpec> outputs() const;
  // For Client::deserialize_and_load of the same plugin build.
  std::string serialize() const;
  std::string fingerprint() const;
  // The program after optimisation; `format` is "hlo" for a serialized HloModuleProto or what else
  // the plugin makes.
  struct Program {
    std::string format;
    std::string code;
  };
  Program optimized_program() const;
  CompiledMemoryStats memory_stats() const;
  ValueMap cost_analysis() const;  // "flops", "bytes accessed", ... as the plugin names them
  int64_t generated_code_size() const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Executable* executable_ = nullptr;
};

// Owns a PJRT_LoadedExecutable and keeps its client alive. Execution is thread-safe.
class LoadedExecutable {
 public:
  // `owner` is whatever must outlive the executable.
  LoadedExecutable(const PJRT_Api* api, PJRT_LoadedExecutable* loaded,
                   std::shared_ptr<const void> owner);
  ~LoadedExecutable();
  LoadedExecutable(const LoadedExecutable&) = delete;
  LoadedExecutable& operator=(const LoadedExecutable&) = delete;

  PJRT_LoadedExecutable* get() const noexcept { return loaded_; }
  size_t num_outputs() const noexcept { return num_outputs_; }
  // Everything known about the compiled program.
  const Executable& executable() const noexcept { return executable_; }
  std::vector<OutputSpec> outputs() const { return executable_.outputs(); }
  std::string serialize() const { return executable_.serialize(); }
  std::string fingerprint() const { return executable_.fingerprint(); }

  // Enqueues one execution; the host does not wait. `outs` has room for num_outputs() buffers,
  // which the caller owns afterwards. `device` may be null for an executable compiled for a
  // device. Arguments that the program donates are deleted unless their index is in
  // `non_donatable`. `*complete`, if asked for, is an event the caller owns. Allocates nothing.
  void execute_raw(PJRT_Buffer* const* args, size_t n, PJRT_Buffer** outs, PJRT_Device* device,
                   const int64_t* non_donatable, size_t n_non_donatable,
                   PJRT_Event** complete) const;

  // One launch over all the devices of the executable: args[d] and outs[d] belong to device d.
  void execute_sharded(PJRT_Buffer* const* const* args, size_t n, PJRT_Buffer** const* outs,
                       size_t num_devices, const int64_t* non_donatable, size_t n_non_donatable,
                       PJRT_Event** complete) const;

  std::vector<PJRT_Device*> devices() const;

 private:
  const PJRT_Api* api_;
  PJRT_LoadedExecutable* loaded_;
  std::shared_ptr<const void> owner_;
  Executable executable_;
  size_t num_outputs_ = 0;
};

}  // namespace torchtpu::pjrt
