#include "heap.h"

#include <cstdlib>
#include <cstring>

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>

namespace torchtpu::heap {
namespace {

std::atomic<bool> kept{false};

bool set_by_user() {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::strstr(tunables, "glibc.malloc") != nullptr) return true;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "MALLOC_", 7) == 0) return true;
  }
  return false;
}

// Where memory that is only reserved counts as used (vm.overcommit_memory = 2).
bool reserving_is_using() {
  int policy = 0;
  if (std::ifstream file("/proc/sys/vm/overcommit_memory"); file) file >> policy;
  return policy == 2;
}

// Lengthens the heap by addresses, not yet memory, that the system is asked to back with huge pages
// when they are first written: decoding, which reads all weights once, takes 0.7 times as long with
// these. Half as many as there is memory; what lies beyond has small pages.
void reserve() {
  static const bool refused = reserving_is_using();
  if (refused) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 2 * page;
  void* begin = std::malloc(size);
  if (begin == nullptr) return;  // under a limit on addresses
  const auto first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), size - page, MADV_HUGEPAGE);
  std::free(begin);  // it stays in the heap, see keep()
}

// Bytes of memory that the process has.
size_t resident() {
  size_t all = 0, here = 0;
  if (std::ifstream file("/proc/self/statm"); file) file >> all >> here;
  return here * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void keep() {
  if (kept.load() || set_by_user()) return;
  // No maps of their own for large pieces (the threshold has a bound of 32 MiB, buffers have not),
  // nothing given back at the end of the heap, and one heap: in the others, which threads have,
  // large pieces are always mapped.
  if (mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 &&
      mallopt(M_ARENA_MAX, 1) == 1) {
    kept.store(true);
    reserve();
  }
}

void release() {
  if (!kept.load()) return;
  malloc_trim(0);
  reserve();
}

void bound() {
  constexpr size_t kLeast = size_t{2} << 30;
  if (!kept.load()) return;
#if __GLIBC_PREREQ(2, 33)
  const auto used = static_cast<size_t>(mallinfo2().uordblks);
#else
  const auto used = static_cast<size_t>(static_cast<unsigned>(mallinfo().uordblks));  // of 4 GiB
#endif
  const size_t all = resident();
  if (all > used && all - used > std::max(kLeast, used)) release();
}

}  // namespace torchtpu::heap

#else

namespace torchtpu::heap {

void keep() {}
void release() {}
void bound() {}

}  // namespace torchtpu::heap

#endif
