#include "stream.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "queue.h"

namespace torchtpu {
namespace {

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kMaxDevices> streams_of_thread{};

// 0 is every device's default stream.
std::atomic<c10::StreamId> next_stream{1};

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) noexcept {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), id);
}

}  // namespace

c10::DeviceIndex resolve_device(c10::DeviceIndex device) noexcept {
  return device < 0 ? device_of_thread : device;
}

c10::DeviceIndex current_device() noexcept { return device_of_thread; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) noexcept {
  return std::exchange(device_of_thread, device < 0 ? device_of_thread : device);
}

c10::Stream current_stream(c10::DeviceIndex device) noexcept {
  device = resolve_device(device);
  return make_stream(device, streams_of_thread[device]);
}

c10::Stream exchange_stream(c10::Stream stream) noexcept {
  const auto device = resolve_device(stream.device_index());
  return make_stream(device, std::exchange(streams_of_thread[device], stream.id()));
}

c10::Stream default_stream(c10::DeviceIndex device) noexcept {
  return make_stream(resolve_device(device), 0);
}

c10::Stream new_stream(c10::DeviceIndex device) noexcept {
  return make_stream(resolve_device(device), next_stream.fetch_add(1, std::memory_order_relaxed));
}

void CompletionTime::done() noexcept {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  nanoseconds_.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  nanoseconds_.notify_all();
}

int64_t CompletionTime::get() const noexcept {
  nanoseconds_.wait(0);
  return nanoseconds_.load();
}

void Event::record(c10::DeviceIndex device) {
  device_ = device;
  sequence_ = queue::last(device);
  if (!timed_) return;
  static std::atomic<uint64_t> records{0};
  order_ = records.fetch_add(1, std::memory_order_relaxed);
  time_ = std::make_shared<CompletionTime>();
  queue::on_each_pending(device, [time = time_](pjrt::Event& event) {
    time->expect();
    event.on_ready([time](auto&&...) { time->done(); });
  });
  time_->done();
}

bool Event::query() const { return device_ < 0 || queue::query(device_, sequence_); }

void Event::synchronize() const {
  if (device_ >= 0) queue::wait(device_, sequence_);
}

double Event::since(const Event& start) const {
  TORCH_CHECK_VALUE(timed_ && start.timed_,
                    "Both events must be created with argument 'enable_timing=True'.");
  TORCH_CHECK_VALUE(device_ >= 0 && start.device_ >= 0,
                    "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(query() && start.query(),
              "Both events must be completed before calculating elapsed time.");
  int64_t nanoseconds = time_->get() - start.time_->get();
  // The plugin calls back in no particular order for work that completes at one moment.
  if (order_ > start.order_) nanoseconds = std::max<int64_t>(nanoseconds, 0);
  return static_cast<double>(nanoseconds) / 1e6;
}

}  // namespace torchtpu
