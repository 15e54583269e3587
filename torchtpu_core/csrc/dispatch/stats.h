// Counters that torchtpu_core.stats() reports. Relaxed atomics: exact, not ordered.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace torchtpu {

struct Stats {
  std::atomic<uint64_t> compiled{0};    // programs that the plugin compiled
  std::atomic<uint64_t> loaded{0};      // programs taken from the persistent cache
  std::atomic<uint64_t> cache_hits{0};  // calls whose program was in memory
  std::atomic<uint64_t> executions{0};  // programs launched
  std::atomic<uint64_t> to_device{0};   // transfers of tensors
  std::atomic<uint64_t> to_host{0};     //
  std::atomic<uint64_t> bytes_to_device{0};
  std::atomic<uint64_t> bytes_to_host{0};
  std::atomic<uint64_t> fallbacks{0};  // ops that ran on the CPU
  std::atomic<uint64_t> compile_ns{0};
};

Stats& stats();
void count_fallback(const std::string& op);
std::map<std::string, uint64_t> fallback_counts();
void reset_stats();

}  // namespace torchtpu
