// What a tpu storage holds: a Slot with the PJRT buffer that carries its bytes now.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "../pjrt/buffer.h"

namespace torchtpu {

using Dims = c10::SmallVector<int64_t, 6>;

// A PJRT buffer shared by every slot that holds its value. Immutable; counted in memory statistics
// from construction to destruction.
struct BufferRef final : c10::intrusive_ptr_target {
  BufferRef(pjrt::Buffer b, c10::DeviceIndex device, size_t nbytes);
  ~BufferRef() override;
  PJRT_Buffer* raw() const { return buffer.get(); }

  pjrt::Buffer buffer;
  const c10::DeviceIndex device;
  const size_t nbytes;
};
using BufferPtr = c10::intrusive_ptr<BufferRef>;

// One word of lock: slots are many, contention is a program's own data race.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

// The mutable cell behind a storage. `lock` guards dtype, dims, padded and buffer; the rest is set
// while nobody else knows the slot. The base (dtype, dims) describes `buffer`; with no buffer the
// contents are uninitialised. In a padded slot the buffer has more elements than `dims` says, in
// the same order of dimensions; the base is its leading corner and the rest is anything. Reading a
// tensor in one thread while another writes it is a race, as on every device.
struct Slot {
  SpinLock lock;
  c10::DeviceIndex device = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  bool padded = false;
  Dims dims;
  BufferPtr buffer;
  uint64_t address = 0;  // start of the address range behind data_ptr(), never mapped
  Slot* next_free = nullptr;
};

// The slot of a tpu storage; an error for memory that is not ours.
Slot* slot_of(const c10::StorageImpl& storage);

// A DataPtr with a fresh, uninitialised slot of `nbytes` bytes.
c10::DataPtr make_slot(c10::DeviceIndex device, size_t nbytes);

}  // namespace torchtpu
