// Memory accounting: what each device holds, counted as buffers come and go. There is no caching
// layer of our own, so reserved memory is allocated memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace torchtpu {

void record_alloc(c10::DeviceIndex device, size_t nbytes) noexcept;
void record_free(c10::DeviceIndex device, size_t nbytes) noexcept;
// An allocation that the device refused; `retried` when it is about to be tried again.
void record_oom(c10::DeviceIndex device, bool retried) noexcept;

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device);
void reset_peak_stats(c10::DeviceIndex device) noexcept;
void reset_accumulated_stats(c10::DeviceIndex device) noexcept;

// {free, total} bytes: the device's own figures, or the host's where it has none.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

}  // namespace torchtpu
