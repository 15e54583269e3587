#include "storage.h"

#include <array>
#include <memory>

#include "memory.h"
#include "runtime.h"

namespace torchtpu {
namespace {

// Slots are kept in chunks that are never freed, and each owns the address range of its index: from
// 2^60 up, which no current kernel maps for a process, in spans larger than any device's memory.
constexpr uint64_t kFirstAddress = 1ull << 60;
constexpr unsigned kSpanBits = 37;
constexpr uint32_t kChunk = 4096;
constexpr uint32_t kMaxChunks = (1u << (60 - kSpanBits)) / kChunk;

class SlotTable {
 public:
  Slot* take(c10::DeviceIndex device) {
    Slot* slot = nullptr;
    {
      std::lock_guard<SpinLock> guard(lock_);
      if (free_ == nullptr) grow();
      slot = free_;
      free_ = slot->next_free;
    }
    slot->device = device;
    return slot;
  }

  void give_back(Slot* slot) {
    slot->buffer.reset();  // frees device memory: not under the lock
    std::lock_guard<SpinLock> guard(lock_);
    slot->next_free = free_;
    free_ = slot;
  }

  // The slot whose range starts at `address`, or null.
  Slot* at(uint64_t address) {
    if (address < kFirstAddress || (address & ((1ull << kSpanBits) - 1)) != 0) return nullptr;
    const uint64_t index = (address - kFirstAddress) >> kSpanBits;
    std::lock_guard<SpinLock> guard(lock_);
    if (index >= uint64_t{chunks_} * kChunk) return nullptr;
    return &slots_[index / kChunk][index % kChunk];
  }

 private:
  void grow() {
    TORCH_CHECK(chunks_ < kMaxChunks, "more than ", uint64_t{kMaxChunks} * kChunk,
                " live tpu storages");
    auto& chunk = slots_[chunks_];
    chunk = std::make_unique<Slot[]>(kChunk);
    for (uint32_t i = kChunk; i-- > 0;) {
      chunk[i].address = kFirstAddress + ((uint64_t{chunks_} * kChunk + i) << kSpanBits);
      chunk[i].next_free = free_;
      free_ = &chunk[i];
    }
    ++chunks_;
  }

  SpinLock lock_;  // guards everything below, not the slots' contents
  Slot* free_ = nullptr;
  uint32_t chunks_ = 0;
  std::array<std::unique_ptr<Slot[]>, kMaxChunks> slots_;
};

SlotTable& table() {
  static auto* const t = new SlotTable();  // outlives every storage
  return *t;
}

void free_slot(void* slot) { table().give_back(static_cast<Slot*>(slot)); }

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
  TORCH_CHECK_WITH(OutOfMemoryError, nbytes >> kSpanBits == 0, "TPU out of memory: a storage of ",
                   nbytes, " bytes is larger than any device");
  Slot* slot = table().take(device);
  // An empty tensor's data_ptr() is 0, as everywhere in PyTorch.
  void* data = nbytes == 0 ? nullptr : reinterpret_cast<void*>(slot->address);
  return {data, slot, &free_slot, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

Slot* slot_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &free_slot) [[likely]] {
    return static_cast<Slot*>(data.get_context());
  }
  // A storage that PyTorch made around an address of ours (at::from_blob): the same slot.
  Slot* slot = table().at(reinterpret_cast<uint64_t>(data.get()));
  TORCH_CHECK(slot != nullptr, "this tensor's memory was not allocated by the tpu device");
  return slot;
}

}  // namespace torchtpu
