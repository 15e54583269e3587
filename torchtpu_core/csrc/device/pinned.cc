#include "pinned.h"

// The header sizes its members by an ABI constant that GCC warns about at every use.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Winterference-size"
#include <ATen/core/CachingHostAllocator.h>
#pragma GCC diagnostic pop
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>
#include <shared_mutex>

namespace torchtpu {
namespace {

struct Blocks {
  std::shared_mutex mutex;
  std::map<uintptr_t, size_t> sizes;  // by first address
  at::HostStats stats;
};

// Leaked: tensors may outlive static objects.
Blocks& blocks() {
  static auto* instance = new Blocks;
  return *instance;
}

void free_pinned(void* data) {
  Blocks& all = blocks();
  {
    std::unique_lock lock(all.mutex);
    const auto found = all.sizes.find(reinterpret_cast<uintptr_t>(data));
    if (found == all.sizes.end()) return;
    all.stats.active_bytes.decrease(found->second);
    all.stats.allocated_bytes.decrease(found->second);
    all.stats.active_requests.decrease(1);
    all.stats.allocations.decrease(1);
    all.sizes.erase(found);
  }
  c10::free_cpu(data);
}

// Freed blocks go straight back to the system: a transfer from pinned memory keeps the tensor it
// reads alive, so there are no events to record and nothing is cached.
struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, c10::DeviceType::CPU};
    void* data = c10::alloc_cpu(nbytes);
    Blocks& all = blocks();
    std::unique_lock lock(all.mutex);
    all.sizes.emplace(reinterpret_cast<uintptr_t>(data), nbytes);
    all.stats.active_bytes.increase(nbytes);
    all.stats.allocated_bytes.increase(nbytes);
    all.stats.active_requests.increase(1);
    all.stats.allocations.increase(1);
    return {data, data, &free_pinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::shared_lock lock(blocks().mutex);
    return blocks().stats;
  }
  void reset_accumulated_stats() override {
    std::unique_lock lock(blocks().mutex);
    blocks().stats.allocations.reset_accumulated();
    blocks().stats.allocated_bytes.reset_accumulated();
    blocks().stats.active_requests.reset_accumulated();
    blocks().stats.active_bytes.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::unique_lock lock(blocks().mutex);
    blocks().stats.allocations.reset_peak();
    blocks().stats.allocated_bytes.reset_peak();
    blocks().stats.active_requests.reset_peak();
    blocks().stats.active_bytes.reset_peak();
  }
};

PinnedAllocator pinned;
at::HostAllocatorRegistry<at::kPrivateUse1> registration(&pinned);

}  // namespace

c10::Allocator* pinned_allocator() { return &pinned; }

bool is_pinned(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Blocks& all = blocks();
  std::shared_lock lock(all.mutex);
  auto after = all.sizes.upper_bound(address);
  if (after == all.sizes.begin()) return false;
  const auto& [start, size] = *--after;
  return address < start + size;
}

}  // namespace torchtpu
