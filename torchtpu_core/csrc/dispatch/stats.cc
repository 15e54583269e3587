#include "stats.h"

#include <mutex>

namespace torchtpu {
namespace {

std::mutex fallback_mutex;
std::map<std::string, uint64_t>& fallbacks_by_op() {  // guarded by fallback_mutex
  static auto* counts = new std::map<std::string, uint64_t>();
  return *counts;
}

}  // namespace

Stats& stats() {
  static Stats s;
  return s;
}

void count_fallback(const std::string& op) {
  stats().fallbacks.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> guard(fallback_mutex);
  ++fallbacks_by_op()[op];
}

std::map<std::string, uint64_t> fallback_counts() {
  std::lock_guard<std::mutex> guard(fallback_mutex);
  return fallbacks_by_op();
}

void reset_stats() {
  Stats& s = stats();
  for (auto* c : {&s.compiled, &s.loaded, &s.cache_hits, &s.executions, &s.to_device, &s.to_host,
                  &s.bytes_to_device, &s.bytes_to_host, &s.fallbacks, &s.compile_ns}) {
    c->store(0, std::memory_order_relaxed);
  }
  std::lock_guard<std::mutex> guard(fallback_mutex);
  fallbacks_by_op().clear();
}

}  // namespace torchtpu
