#include "queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "../pjrt/error.h"
#include "errors.h"
#include "memory.h"
#include "runtime.h"
#include "stream.h"

namespace torchtpu::queue {
namespace {

// A ring of events, oldest at `tail_`. `mutex_` is never held while waiting: a waiter pins the
// entry it waits for, and a pinned entry is not retired. Entries retire in order.
class Ring {
 public:
  explicit Ring(c10::DeviceIndex device) : device_(device) {}

  uint64_t push(pjrt::Event event) {
    std::unique_lock lock(mutex_);
    while (head_ - tail_ == kCapacity) retire_oldest(lock);
    entry(head_).event.emplace(std::move(event));
    last_.store(++head_, std::memory_order_release);
    return head_;
  }

  uint64_t last() const { return last_.load(std::memory_order_acquire); }

  void wait(uint64_t sequence) {
    std::unique_lock lock(mutex_);
    while (tail_ < std::min(sequence, head_)) retire_oldest(lock);
    if (auto failure = std::exchange(failure_, nullptr)) {
      lock.unlock();
      try {
        std::rethrow_exception(failure);
      } catch (const pjrt::Error& e) {
        if (e.code() == pjrt::Code::kResourceExhausted) record_oom(device_, /*retried=*/false);
        throw_translated(("running work on tpu:" + std::to_string(device_)).c_str());
      }
    }
  }

  bool query(uint64_t sequence) {
    std::unique_lock lock(mutex_);
    while (tail_ < std::min(sequence, head_)) {
      if (!retire_if_complete()) return false;
    }
    return true;
  }

  void on_each_pending(const std::function<void(pjrt::Event&)>& visit) {
    std::unique_lock lock(mutex_);
    for (uint64_t i = tail_; i < head_; ++i) {
      if (!entry(i).event->is_ready()) visit(*entry(i).event);
    }
  }

 private:
  struct Entry {
    std::optional<pjrt::Event> event;
    int pins = 0;
  };

  // `index` counts from 0: the launch with sequence number s is entry s - 1.
  Entry& entry(uint64_t index) { return entries_[index % kCapacity]; }

  bool retire_if_complete() {
    Entry& oldest = entry(tail_);
    if (oldest.pins != 0 || !oldest.event->is_ready()) return false;
    try {
      oldest.event->await();  // returns at once, or throws the launch's failure
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    oldest.event.reset();
    ++tail_;
    return true;
  }

  // Waits for the oldest launch with the lock released. Another thread may retire it first.
  void retire_oldest(std::unique_lock<std::mutex>& lock) {
    if (retire_if_complete()) return;
    Entry& oldest = entry(tail_);
    if (oldest.event->is_ready()) {  // and pinned: by waiters that are about to come back
      unpinned_.wait(lock, [&, tail = tail_] { return tail_ != tail || oldest.pins == 0; });
      return;
    }
    ++oldest.pins;
    lock.unlock();
    try {
      oldest.event->await();
    } catch (...) {
      // Kept by whoever retires the entry.
    }
    lock.lock();
    if (--oldest.pins != 0) return;
    retire_if_complete();
    unpinned_.notify_all();
  }

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::condition_variable unpinned_;
  std::array<Entry, kCapacity> entries_;
  uint64_t head_ = 0;  // launches pushed
  uint64_t tail_ = 0;  // launches retired
  std::exception_ptr failure_;
  std::atomic<uint64_t> last_{0};
};

std::array<std::atomic<Ring*>, kMaxDevices> rings;

// Rings are made on a device's first launch and never freed: events may complete at exit.
Ring* find_ring(c10::DeviceIndex device) {
  return rings[device < 0 ? 0 : device].load(std::memory_order_acquire);
}

Ring& ring(c10::DeviceIndex device) {
  if (Ring* existing = find_ring(device)) [[likely]]
    return *existing;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (!find_ring(device)) rings[device].store(new Ring(device), std::memory_order_release);
  return *find_ring(device);
}

}  // namespace

uint64_t push(c10::DeviceIndex device, pjrt::Event event) {
  return ring(device).push(std::move(event));
}

uint64_t last(c10::DeviceIndex device) {
  Ring* r = find_ring(device);
  return r ? r->last() : 0;
}

void wait(c10::DeviceIndex device, uint64_t sequence) {
  if (Ring* r = find_ring(device); r && !in_bad_fork()) r->wait(sequence);
}

bool query(c10::DeviceIndex device, uint64_t sequence) {
  Ring* r = find_ring(device);
  return !r || in_bad_fork() || r->query(sequence);
}

void on_each_pending(c10::DeviceIndex device, const std::function<void(pjrt::Event&)>& visit) {
  if (Ring* r = find_ring(device); r && !in_bad_fork()) r->on_each_pending(visit);
}

void drain() noexcept {
  for (size_t device = 0; device < kMaxDevices; ++device) {
    try {
      wait(static_cast<c10::DeviceIndex>(device), std::numeric_limits<uint64_t>::max());
    } catch (...) {
      // The process is ending, and nobody asked for the result.
    }
  }
}

}  // namespace torchtpu::queue
