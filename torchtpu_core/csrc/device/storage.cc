#include "storage.h"

#include "memory.h"
#include "runtime.h"

namespace torchtpu {
namespace {

// Addresses from 2^60 up are outside what any current kernel maps for a process. Ranges are handed
// out once and never again: at 1 TB/s of allocation the space lasts for months.
constexpr uint64_t kFirstAddress = 1ull << 60;
constexpr uint64_t kAlignment = 64;
std::atomic<uint64_t> next_address{kFirstAddress};

void free_slot(void* slot) { delete static_cast<Slot*>(slot); }

}  // namespace

BufferRef::BufferRef(pjrt::Buffer b, c10::DeviceIndex d, size_t n)
    : buffer(std::move(b)), device(d), nbytes(n) {
  record_alloc(device, nbytes);
}

BufferRef::~BufferRef() {
  record_free(device, nbytes);
  // In a forked child the client's threads are gone and its locks may be held for ever: the buffer
  // belongs to the parent, and is left alone.
  if (in_bad_fork()) static_cast<void>(new pjrt::Buffer(std::move(buffer)));
}

c10::DataPtr make_slot(c10::DeviceIndex device, size_t nbytes) {
  auto slot = std::make_unique<Slot>(device);
  if (nbytes != 0) {
    const uint64_t span = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    slot->address = next_address.fetch_add(span, std::memory_order_relaxed);
  }
  void* data = reinterpret_cast<void*>(slot->address);
  return {data, slot.release(), &free_slot, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

}  // namespace torchtpu
