// What of the process's state shapes programs: a word in every key, so that a change finds or
// builds other programs and changing it back finds the first ones again.
#pragma once

#include <atomic>
#include <cstdint>

namespace torchtpu {

// The meaning of the bits is Python's (torchtpu_core/flags.py), which reads them while it lowers.
inline std::atomic<uint64_t> program_flags_word{0};

inline uint64_t program_flags() { return program_flags_word.load(std::memory_order_relaxed); }

// Replaces the bits of `mask` by those of `value`; returns the word as it was.
inline uint64_t set_program_flags(uint64_t mask, uint64_t value) {
  uint64_t before = program_flags();
  while (!program_flags_word.compare_exchange_weak(before, (before & ~mask) | (value & mask),
                                                   std::memory_order_relaxed)) {
  }
  return before;
}

}  // namespace torchtpu
