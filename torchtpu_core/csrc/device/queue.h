// The work queue of each device: the completion events of what has been launched and not yet seen
// to complete. Thread-safe; pushing allocates nothing.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "../pjrt/event.h"

namespace torchtpu::queue {

// How much may be in flight on a device: a launch beyond it first waits for the oldest.
inline constexpr uint64_t kCapacity = 256;

// Appends a launch and returns its sequence number (from 1).
uint64_t push(c10::DeviceIndex device, pjrt::Event event);
// The sequence number of the newest launch, 0 if there has been none.
uint64_t last(c10::DeviceIndex device);
// Waits for every launch up to `sequence`. The first failure of a launch that was not reported yet
// is thrown, once.
void wait(c10::DeviceIndex device, uint64_t sequence);
inline void synchronize(c10::DeviceIndex device) { wait(device, last(device)); }
// Whether every launch up to `sequence` has completed. Never waits, never throws a launch's
// failure.
bool query(c10::DeviceIndex device, uint64_t sequence);
// Calls `visit` with the event of every launch not known to have completed.
void on_each_pending(c10::DeviceIndex device, const std::function<void(pjrt::Event&)>& visit);
// Waits for all devices at the end of the process; failures are dropped.
void drain() noexcept;

}  // namespace torchtpu::queue
