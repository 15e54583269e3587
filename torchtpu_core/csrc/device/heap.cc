#include "heap.h"

#include <cstdlib>
#include <cstring>

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>

namespace torchtpu::heap {
namespace {

std::atomic<bool> is_kept{false};

bool set_by_user() {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::strstr(tunables, "glibc.malloc") != nullptr) return true;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "MALLOC_", 7) == 0) return true;
  }
  return false;
}

// The policy of the system: always, madvise or never.
bool has_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string policy;
  return std::getline(file, policy) && policy.find("[never]") == std::string::npos;
}

}  // namespace

void keep() {
  if (is_kept.load() || set_by_user()) return;
  // No maps of their own for large pieces (the threshold has a bound of 32 MiB, buffers have not),
  // nothing given back at the end of the heap, and one heap: in the others, which threads have,
  // large pieces are always mapped.
  if (mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 &&
      mallopt(M_ARENA_MAX, 1) == 1) {
    // The heap grows by more than a huge page, for back_with_huge_pages.
    mallopt(M_TOP_PAD, 64 << 20);
    is_kept.store(true);
  }
}

void release() {
  if (is_kept.load()) malloc_trim(0);
}

void bound() {
  constexpr size_t kLeast = size_t{2} << 30;
  if (!is_kept.load()) return;
#if __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 info = mallinfo2();
#else
  const struct mallinfo info = mallinfo();  // modulo 4 GiB
#endif
  const auto free = static_cast<size_t>(info.fordblks);
  if (free > kLeast && free > static_cast<size_t>(info.uordblks)) malloc_trim(0);
}

bool kept() noexcept { return is_kept.load(std::memory_order_relaxed); }

void back_with_huge_pages(void* data, size_t size) noexcept {
  constexpr uintptr_t kPage = uintptr_t{2} << 20;  // for other sizes the calls have no effect
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older C libraries have no name for
  static const bool available = has_huge_pages();
  if (!available || !kept()) return;
  // Whole pages at both ends: tensors that are copied one after another lie side by side.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size + kPage - 1) / kPage * kPage;
  auto* const first = reinterpret_cast<void*>(begin);
  madvise(first, end - begin, MADV_HUGEPAGE);  // for what is yet to be written
  madvise(first, end - begin, kCollapse);      // for what has small pages; from Linux 6.1
}

}  // namespace torchtpu::heap

#else

namespace torchtpu::heap {

void keep() {}
void release() {}
void bound() {}
bool kept() noexcept { return false; }
void back_with_huge_pages(void*, size_t) noexcept {}

}  // namespace torchtpu::heap

#endif
