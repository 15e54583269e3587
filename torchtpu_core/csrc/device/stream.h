// The calling thread's current device and streams, and events.
//
// PJRT orders work by the data it reads and writes, so streams need no order of their own: a stream
// is an id, every stream of a device shares its work queue, and waiting for an event on a stream is
// already implied. An event is a place in the queue.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

namespace torchtpu {

// As many devices as a DeviceIndex can name: the length of every table that is indexed by device.
inline constexpr size_t kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max() + 1;

c10::DeviceIndex current_device() noexcept;
// `device`, or the current one if it is negative.
c10::DeviceIndex resolve_device(c10::DeviceIndex device) noexcept;
// Sets the calling thread's device without a check and returns the one before.
c10::DeviceIndex exchange_device(c10::DeviceIndex device) noexcept;

c10::Stream current_stream(c10::DeviceIndex device) noexcept;
c10::Stream exchange_stream(c10::Stream stream) noexcept;
c10::Stream default_stream(c10::DeviceIndex device) noexcept;
c10::Stream new_stream(c10::DeviceIndex device) noexcept;

// When everything that was in a queue at one moment had completed, by the host's clock.
class CompletionTime {
 public:
  // Starts counting: set once `done` has been called once more than `expect`.
  void expect() noexcept { pending_.fetch_add(1, std::memory_order_relaxed); }
  void done() noexcept;
  // Nanoseconds; waits for the last `done`.
  int64_t get() const noexcept;

 private:
  std::atomic<int> pending_{1};
  std::atomic<int64_t> nanoseconds_{0};
};

class Event {
 public:
  explicit Event(bool timed) : timed_(timed) {}

  void record(c10::DeviceIndex device);
  bool query() const;
  void synchronize() const;
  c10::DeviceIndex device() const noexcept { return device_; }
  // Milliseconds from `start` to this one.
  double since(const Event& start) const;

 private:
  const bool timed_;
  c10::DeviceIndex device_ = -1;  // -1: never recorded
  uint64_t sequence_ = 0;
  uint64_t order_ = 0;  // among all timed records
  std::shared_ptr<CompletionTime> time_;
};

}  // namespace torchtpu
