// The PJRT client behind the device: created on first use, one a process, never in a forked child
// of a process that had one.
#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "../pjrt/client.h"

namespace torchtpu {

class Runtime {
 public:
  Runtime(std::shared_ptr<pjrt::Client> client, bool has_kernels)
      : client_(std::move(client)), has_kernels_(has_kernels) {}

  pjrt::Client& client() const noexcept { return *client_; }
  // Whether programs can call PyTorch's CPU kernels (kernels/kernels.h).
  bool has_kernels() const noexcept { return has_kernels_; }
  int device_count() const noexcept { return static_cast<int>(client_->devices().size()); }
  // An index out of range is an error that names the number of devices.
  const pjrt::Device& device(c10::DeviceIndex index) const;
  PJRT_Device* pjrt_device(c10::DeviceIndex index) const { return device(index).raw; }
  // {free, total} bytes, where the plugin keeps such figures.
  std::optional<std::pair<size_t, size_t>> device_memory(c10::DeviceIndex index) const;

 private:
  std::shared_ptr<pjrt::Client> client_;
  bool has_kernels_;
};

// The runtime, created by the first call. May take the GIL; callers hold no lock that a thread with
// the GIL could want.
Runtime& runtime();
bool initialized() noexcept;
// Whether this process was forked from one that had a client.
bool in_bad_fork() noexcept;

// Whether a plugin is there to load. Creates no client; false instead of an error.
bool is_available() noexcept;
// The number of devices; creates the client unless the plugin's options say the number.
int device_count();
// At least the number of devices, with no client created and no error.
c10::DeviceIndex device_count_bound() noexcept;

}  // namespace torchtpu
