// What of the process's state shapes programs: a word in every key, so that a change finds or
// builds other programs and changing it back finds the first ones again.
#pragma once

#include <atomic>
#include <cstdint>

namespace torchtpu {

enum class Mode : uint8_t { kStrict = 0, kDebug = 1 };
Mode mode();
void set_mode(Mode mode);
// Takes effect unless the mode has been set: what the environment asks for.
void set_default_mode(Mode mode);

// The meaning of the bits is Python's (torchtpu_core/flags.py), which reads them while it lowers.
inline std::atomic<uint64_t> program_flags_word{0};

// The bit that debug mode implies.
inline constexpr uint64_t kBoundsFlag = 0x8;

// The word as programs see it.
inline uint64_t program_flags() {
  const uint64_t word = program_flags_word.load(std::memory_order_relaxed);
  return mode() == Mode::kDebug ? word | kBoundsFlag : word;
}

// Replaces the bits of `mask` by those of `value`; returns the word as it was.
inline uint64_t set_program_flags(uint64_t mask, uint64_t value) {
  uint64_t before = program_flags_word.load(std::memory_order_relaxed);
  while (!program_flags_word.compare_exchange_weak(before, (before & ~mask) | (value & mask),
                                                   std::memory_order_relaxed)) {
  }
  return before;
}

}  // namespace torchtpu
