#include "memory.h"

#include <unistd.h>

#include <array>
#include <atomic>

#include "runtime.h"
#include "stream.h"

namespace torchtpu {
namespace {

using Counter = std::atomic<int64_t>;

// One figure with the four readings torch.cuda.memory_stats gives of it.
struct Gauge {
  Counter current{0}, peak{0}, allocated{0}, freed{0};

  void increase(int64_t n) noexcept {
    allocated.fetch_add(n, std::memory_order_relaxed);
    const int64_t now = current.fetch_add(n, std::memory_order_relaxed) + n;
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
  void decrease(int64_t n) noexcept {
    current.fetch_sub(n, std::memory_order_relaxed);
    freed.fetch_add(n, std::memory_order_relaxed);
  }
  void reset_peak() noexcept { peak = current.load(); }
  void reset_accumulated() noexcept { allocated = freed = 0; }
  c10::CachingAllocator::Stat read() const {
    return {current.load(), peak.load(), allocated.load(), freed.load()};
  }
};

struct alignas(64) Account {
  Gauge bytes, count;
  Counter ooms{0}, retries{0};
};

std::array<Account, kMaxDevices> accounts;

Account& account(c10::DeviceIndex device) noexcept { return accounts[device < 0 ? 0 : device]; }

}  // namespace

void record_alloc(c10::DeviceIndex device, size_t nbytes) noexcept {
  account(device).bytes.increase(static_cast<int64_t>(nbytes));
  account(device).count.increase(1);
}

void record_free(c10::DeviceIndex device, size_t nbytes) noexcept {
  account(device).bytes.decrease(static_cast<int64_t>(nbytes));
  account(device).count.decrease(1);
}

void record_oom(c10::DeviceIndex device, bool retried) noexcept {
  (retried ? account(device).retries : account(device).ooms).fetch_add(1);
}

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device) {
  using c10::CachingAllocator::StatType;
  constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
  const Account& a = account(device);
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocation[kAll] = stats.segment[kAll] = stats.active[kAll] = a.count.read();
  stats.allocated_bytes[kAll] = stats.reserved_bytes[kAll] = stats.active_bytes[kAll] =
      stats.requested_bytes[kAll] = a.bytes.read();
  stats.num_ooms = a.ooms.load();
  stats.num_alloc_retries = a.retries.load();
  stats.num_device_alloc = a.count.allocated.load();
  stats.num_device_free = a.count.freed.load();
  return stats;
}

void reset_peak_stats(c10::DeviceIndex device) noexcept {
  account(device).bytes.reset_peak();
  account(device).count.reset_peak();
}

void reset_accumulated_stats(c10::DeviceIndex device) noexcept {
  Account& a = account(device);
  a.bytes.reset_accumulated();
  a.count.reset_accumulated();
  a.ooms = a.retries = 0;
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  if (const auto figures = runtime().device_memory(device)) return *figures;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return {static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
          static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page};
}

}  // namespace torchtpu
