// A PJRT event: the completion of asynchronous work.
#pragma once

#include <pjrt_c_api.h>

#include <functional>
#include <utility>

#include "error.h"

namespace torchtpu::pjrt {

// Owns a PJRT_Event. An empty Event counts as complete.
class Event {
 public:
  Event() = default;
  Event(const PJRT_Api* api, PJRT_Event* event) noexcept : api_(api), event_(event) {}
  ~Event() { reset(); }
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      event_ = std::exchange(other.event_, nullptr);
    }
    return *this;
  }

  explicit operator bool() const noexcept { return event_ != nullptr; }
  PJRT_Event* get() const noexcept { return event_; }
  PJRT_Event* release() noexcept { return std::exchange(event_, nullptr); }
  void reset() noexcept;

  // Blocks until complete; throws the error the work ended with, if any.
  void await() const;
  // Complete, be it with an error.
  bool is_ready() const;
  // Calls `callback` once when complete, with the error or null, on a thread of the plugin (or at
  // once on this one). The callback must not throw and must not take the GIL for long.
  void on_ready(std::function<void(const Error*)> callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace torchtpu::pjrt
