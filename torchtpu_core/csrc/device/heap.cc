#include "heap.h"

#include <cstdlib>
#include <cstring>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>

#include <atomic>

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

}  // namespace

void keep() {
  if (kept.load() || set_by_user()) return;
  // No maps of their own for large pieces (the threshold has a bound of 32 MiB, buffers have not),
  // nothing given back at the end of the heap, and one heap: in the others, which threads have,
  // large pieces are always mapped.
  if (mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 &&
      mallopt(M_ARENA_MAX, 1) == 1) {
    kept.store(true);
  }
}

void release() {
  if (kept.load()) malloc_trim(0);
}

void bound() {
  constexpr size_t kLeast = size_t{2} << 30;
  if (!kept.load()) return;
#if __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 info = mallinfo2();
#else
  const struct mallinfo info = mallinfo();  // modulo 4 GiB
#endif
  const auto free = static_cast<size_t>(info.fordblks);
  if (free > kLeast && free > static_cast<size_t>(info.uordblks)) malloc_trim(0);
}

}  // namespace torchtpu::heap

#else

namespace torchtpu::heap {

void keep() {}
void release() {}
void bound() {}

}  // namespace torchtpu::heap

#endif
