// Pinned host memory: aligned pages that a transfer can read or write in place, remembered so that
// `is_pinned()` can tell them from any other memory.
#pragma once

#include <c10/core/Allocator.h>

namespace torchtpu {

c10::Allocator* pinned_allocator();
// Whether `data` points into memory of `pinned_allocator()`.
bool is_pinned(const void* data);

}  // namespace torchtpu
