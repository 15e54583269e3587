// The device's c10 allocator: slots in place of memory, and the statistics behind
// torch.accelerator.memory_*.
#include <c10/core/CachingDeviceAllocator.h>

#include "heap.h"
#include "memory.h"
#include "runtime.h"
#include "storage.h"
#include "stream.h"

namespace torchtpu {
namespace {

struct SlotAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return make_slot(current_device(), nbytes); }

  // PyTorch clones allocations by address only for lazily copied storages, which are ours to make
  // and which we never make: an address says nothing about the buffer behind it.
  void copy_data(void*, const void*, std::size_t count) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu storages cannot be copied by address (", count,
                                " bytes): copy the tensor instead");
  }

  bool initialized() override { return torchtpu::initialized(); }
  // Buffers are freed with their last tensor; what may be left is the C library's.
  void emptyCache(c10::MempoolId_t) override { heap::release(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // buffers outlive their readers
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return memory_stats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_stats(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return memory_info(device);
  }
};

SlotAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

}  // namespace
}  // namespace torchtpu
