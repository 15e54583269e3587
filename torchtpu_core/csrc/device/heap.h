// The C library's heap, where it is the device's memory (XLA's CPU plugin). Buffers and the
// temporaries of programs come from it, and by default each one that is large is mapped anew and
// given back to the system at its end: a train step spends a fifth of its time in pages that the
// system clears. Here they stay in the process for the next step, as on other devices.
#pragma once

#include <cstddef>

namespace torchtpu::heap {

// From now on memory that is freed stays in the process. To be called before XLA starts its
// threads. Changes nothing where the user has settings for malloc in the environment
// (GLIBC_TUNABLES with glibc.malloc, MALLOC_*), or where the C library is another one.
void keep();
// Gives back what is free, if keep() was called.
void release();
// Gives back what is free where that is more than 2 GiB and more than what is in use. Takes up to
// a millisecond; for calls that are rare.
void bound();

// The least size in bytes for which asking for huge pages is worth it.
inline constexpr size_t kLarge = size_t{1} << 20;
// Whether keep() has had its effect: the device's memory is this heap.
bool kept() noexcept;
// Asks the system for huge pages behind memory of this heap, which keeps its contents: with small
// ones a program that reads all weights for each token waits for the translation of addresses. Not
// for all of the heap: where a host of virtual machines backs their memory anew, the first touch of
// a huge page is slow. Changes nothing where huge pages are switched off or unknown.
void back_with_huge_pages(void* data, size_t size) noexcept;

}  // namespace torchtpu::heap
