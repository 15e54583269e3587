#include "executables.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "../device/heap.h"
#include "../device/runtime.h"
#include "program.h"
#include "stats.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

using Executable = std::shared_ptr<pjrt::LoadedExecutable>;

// What is loaded on a thread, by key. Guarded by the GIL; leaked, as its threads may run at the end
// of the process.
auto& ahead() {
  static auto& loading = *new std::unordered_map<std::string, std::future<Executable>>;
  return loading;
}

// The pieces of memory that this process maps, of which the system allows it so many.
size_t mappings() {
  std::ifstream file("/proc/self/maps");
  return static_cast<size_t>(
      std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
}

size_t most_mappings() {
  size_t most = 65530;
  if (std::ifstream file("/proc/sys/vm/max_map_count"); file) file >> most;
  return most;
}

// Before a program: of memory (heap.h), and of mappings. XLA's CPU compiler maps some pieces of
// memory for each program, three or thirty, and does not survive that the system refuses one.
// Counting them takes milliseconds, hence not every time.
void make_room() {
  constexpr uint32_t kInterval = 64;
  static std::atomic<uint32_t> built{0};
  static const size_t most = most_mappings();
  if (runtime().client().platform_name() != "cpu") return;
  heap::bound();
  if (built.fetch_add(1, std::memory_order_relaxed) % kInterval != kInterval - 1) return;
  if (mappings() > most / 2) evict_programs(0);
}

// A program's place in the persistent cache.
struct Entry {
  pjrt::CompileOptions options;
  py::object cache;
  py::object key;

  explicit Entry(const std::string& text)
      : options(compile_options(runtime().client())),
        cache(py::module_::import("torchtpu_core.cache").attr("default_cache")()),
        key(cache.attr("key")(runtime().client().fingerprint(), py::bytes(options.serialize()),
                              text)) {}

  std::optional<std::string> payload() const {
    py::object found = cache.attr("get")(key);
    if (found.is_none()) return std::nullopt;
    return found.cast<std::string>();
  }
};

// What `load` gives, without the GIL; null where the plugin does not take the entry, which is a
// miss like any other.
template <class F>
Executable loaded(F&& load) {
  py::gil_scoped_release release;
  try {
    Executable exe = load();
    stats().loaded.fetch_add(1, std::memory_order_relaxed);
    return exe;
  } catch (const pjrt::Error&) {
    return nullptr;
  }
}

}  // namespace

pjrt::CompileOptions compile_options(const pjrt::Client& client) {
  pjrt::CompileOptions options;
  if (client.platform_name() != "cpu") return options;
  // XLA's CPU compiler lets min and max drop NaN unless told otherwise; PyTorch's, and a TPU's,
  // keep it.
  options.overrides["xla_cpu_enable_fast_min_max"] = false;
  // Its schedule for concurrency puts whatever depends on arguments alone, such as the transposes
  // of all convolutions' weights, before everything else: they are out of the caches when they are
  // needed, and live until then (a forward pass of ResNet-18 takes 1.7 times as long).
  options.overrides["xla_cpu_enable_concurrency_optimized_scheduler"] = false;
  return options;
}

Executable load_or_compile(const std::string& text) {
  make_room();
  pjrt::Client& client = runtime().client();
  const Entry entry(text);
  if (auto node = ahead().extract(entry.key.cast<std::string>())) {
    if (auto exe = loaded([&] { return node.mapped().get(); })) return exe;
  }
  if (const auto payload = entry.payload()) {
    if (auto exe = loaded([&] { return client.deserialize_and_load(*payload); })) return exe;
  }
  Executable exe;
  std::string payload;
  {
    py::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    exe = client.compile(text, entry.options);
    const auto spent = std::chrono::steady_clock::now() - start;
    stats().compile_ns.fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count(),
        std::memory_order_relaxed);
    stats().compiled.fetch_add(1, std::memory_order_relaxed);
    try {
      payload = exe->serialize();
    } catch (const pjrt::Error&) {
      // A plugin that cannot serialize works without the persistent cache.
    }
  }
  if (!payload.empty()) entry.cache.attr("put")(entry.key, py::bytes(payload));
  return exe;
}

void load_ahead(const std::string& text) {
  const Entry entry(text);
  auto key = entry.key.cast<std::string>();
  if (ahead().count(key) != 0) return;
  auto payload = entry.payload();
  if (!payload) return;
  ahead().emplace(std::move(key), std::async(std::launch::async, [payload = std::move(*payload)] {
                    return runtime().client().deserialize_and_load(payload);
                  }));
}

size_t forget_ahead() {
  if (in_bad_fork()) return 0;  // the threads are the parent's
  auto loading = std::exchange(ahead(), {});
  const size_t count = loading.size();
  py::gil_scoped_release release;
  loading.clear();  // the end of a future waits for its thread
  return count;
}

}  // namespace torchtpu
