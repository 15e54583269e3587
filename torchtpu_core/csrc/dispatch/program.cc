#include "program.h"

#include <algorithm>
#include <mutex>

namespace torchtpu {
namespace {

// All tables, for eviction; `mutex` guards `all` and is taken before any table's own.
struct Tables {
  std::mutex mutex;
  std::vector<ProgramTable*> all;
};

Tables& tables() {
  static auto* made = new Tables;  // leaked: operators' tables live as long as the process
  return *made;
}

std::atomic<size_t> live{0};
// How many programs have been inserted: the clock of `used`, which the hot path only reads.
std::atomic<uint64_t> clock_now{1};

}  // namespace

ProgramTable::ProgramTable() {
  std::lock_guard guard(tables().mutex);
  tables().all.push_back(this);
}

ProgramTable::~ProgramTable() {
  std::lock_guard guard(tables().mutex);
  std::erase(tables().all, this);
  live.fetch_sub(entries_.size(), std::memory_order_relaxed);
}

ProgramPtr ProgramTable::find(const Call& call) const {
  std::shared_lock lock(mutex_);
  auto [at, end] = entries_.equal_range(call.hash);
  for (; at != end; ++at) {
    const Entry& entry = at->second;
    if (entry.key != call.key) continue;
    const uint64_t now = clock_now.load(std::memory_order_relaxed);
    if (entry.used.load(std::memory_order_relaxed) != now) {
      entry.used.store(now, std::memory_order_relaxed);
    }
    return entry.program;
  }
  return nullptr;
}

ProgramPtr ProgramTable::insert(const Call& call, std::unique_ptr<Program> program) {
  const uint64_t now = clock_now.fetch_add(1, std::memory_order_relaxed) + 1;
  live.fetch_add(1, std::memory_order_relaxed);
  ProgramPtr made = std::move(program);
  std::unique_lock lock(mutex_);
  entries_.emplace(std::piecewise_construct, std::forward_as_tuple(call.hash),
                   std::forward_as_tuple(call.key, made, now));
  return made;
}

size_t ProgramTable::size() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

void ProgramTable::collect(std::vector<uint64_t>& uses) const {
  std::shared_lock lock(mutex_);
  for (const auto& [hash, entry] : entries_) {
    uses.push_back(entry.used.load(std::memory_order_relaxed));
  }
}

void ProgramTable::erase_unused_since(uint64_t use) {
  std::vector<ProgramPtr> gone;  // destroyed after the lock
  std::unique_lock lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (at->second.used.load(std::memory_order_relaxed) > use) {
      ++at;
      continue;
    }
    gone.push_back(std::move(at->second.program));
    at = entries_.erase(at);
  }
  live.fetch_sub(gone.size(), std::memory_order_relaxed);
}

void evict_programs(size_t most) {
  if (live.load(std::memory_order_relaxed) <= most) return;
  std::lock_guard guard(tables().mutex);
  std::vector<uint64_t> uses;
  for (const ProgramTable* table : tables().all) table->collect(uses);
  if (uses.size() <= most) return;
  const auto middle = uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 2);
  std::nth_element(uses.begin(), middle, uses.end());
  for (ProgramTable* table : tables().all) table->erase_unused_since(*middle);
}

}  // namespace torchtpu
