// A PJRT device buffer. Light on purpose: storage.h, and so every torch-facing file, includes it.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "event.h"

namespace torchtpu::pjrt {

// Owns a PJRT_Buffer; the client that made it must outlive it. Destruction is safe while work that
// uses the buffer is still in flight: PJRT keeps the memory until that is done.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const PJRT_Api* api, PJRT_Buffer* buffer) noexcept : api_(api), buffer_(buffer) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept
      : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      buffer_ = std::exchange(other.buffer_, nullptr);
    }
    return *this;
  }

  explicit operator bool() const noexcept { return buffer_ != nullptr; }
  const PJRT_Api* api() const noexcept { return api_; }
  PJRT_Buffer* get() const noexcept { return buffer_; }
  PJRT_Buffer* release() noexcept { return std::exchange(buffer_, nullptr); }
  void reset() noexcept;

  PJRT_Buffer_Type type() const;
  std::span<const int64_t> dims() const;  // lives as long as the buffer
  PJRT_Device* device() const;
  size_t on_device_size() const;
  // Bytes that to_host() writes: the elements, dense and row-major.
  size_t host_size() const;

  Event ready_event() const;
  // The value has been computed (or failed).
  bool is_ready() const;

  // Starts a copy of the value to `dst`, row-major whatever the layout on the device; `dst` must
  // stay valid until the event completes.
  Event to_host(void* dst, size_t size) const;
  // A copy on another device of the same client.
  Buffer copy_to(PJRT_Device* device) const;

  // Frees the device memory (when work in flight is done with it); also done by donation.
  void delete_() const;
  bool is_deleted() const;
  // The address on the device; for the CPU plugin, memory this process can read once ready.
  uintptr_t unsafe_pointer() const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

}  // namespace torchtpu::pjrt
