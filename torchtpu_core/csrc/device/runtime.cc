#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sched.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>

#include "../kernels/kernels.h"
#include "heap.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

std::atomic<Runtime*> instance{nullptr};  // leaked: work may be in flight until the process ends
std::atomic<bool> started{false};         // a client exists or is being made
std::atomic<bool> bad_fork{false};
std::atomic<int> last_count{0};
std::mutex creation;

// A client's threads do not survive a fork. The child may go on without the device; if it asks for
// it, runtime() explains.
void forget_in_child() {
  if (!started.load()) return;
  bad_fork.store(true);
  instance.store(nullptr);
}

struct PluginChoice {
  std::string path;
  pjrt::ValueMap options;
};

// torchtpu_core.plugin.find(). Called without any of our locks: it takes the GIL.
PluginChoice find_plugin() {
  py::gil_scoped_acquire gil;
  const py::object found = py::module_::import("torchtpu_core.plugin").attr("find")();
  PluginChoice choice{py::str(found.attr("path")), {}};
  for (const auto& [key, value] : py::dict(found.attr("options"))) {
    pjrt::Value& option = choice.options[py::str(key)];
    if (py::isinstance<py::bool_>(value)) {
      option = value.cast<bool>();
    } else if (py::isinstance<py::int_>(value)) {
      option = value.cast<int64_t>();
    } else if (py::isinstance<py::float_>(value)) {
      option = value.cast<float>();
    } else if (py::isinstance<py::str>(value)) {
      option = value.cast<std::string>();
    } else {
      option = value.cast<std::vector<int64_t>>();
    }
  }
  return choice;
}

// The number of devices that the plugin's options ask for, where they do.
std::optional<int> count_in_options(const PluginChoice& choice) {
  const auto found = choice.options.find("cpu_device_count");
  if (found == choice.options.end()) return std::nullopt;
  return static_cast<int>(std::get<int64_t>(found->second));
}

// Whether it is XLA's CPU plugin, by the option that only it has.
bool is_cpu(const PluginChoice& choice) { return count_in_options(choice).has_value(); }

// While a client of XLA's CPU plugin is created: the least size of its thread pool, which it takes
// from NPROC where that is set, else the number of cores. With fewer than four threads its matrix
// products split their work badly (on two cores a forward pass of GPT-2 takes 1.3 times as long);
// the plugin's own default, four devices, gives four threads too.
class CpuThreads {
 public:
  explicit CpuThreads(const PluginChoice& choice) {
    if (!is_cpu(choice) || std::getenv("NPROC") != nullptr) return;
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) >= kLeast) return;
    set_ = setenv("NPROC", std::to_string(kLeast).c_str(), 0) == 0;
  }
  ~CpuThreads() {
    if (set_) unsetenv("NPROC");
  }
  CpuThreads(const CpuThreads&) = delete;
  CpuThreads& operator=(const CpuThreads&) = delete;

 private:
  static constexpr int kLeast = 4;
  bool set_ = false;
};

Runtime& create() {
  TORCH_CHECK(!in_bad_fork(),
              "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, "
              "you must use the 'spawn' start method");
  const PluginChoice choice = find_plugin();
  // Creating a client can take seconds, and plugins may call back into code that wants the GIL.
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check()) no_gil.emplace();
  std::lock_guard lock(creation);
  if (Runtime* existing = instance.load()) return *existing;
  static const bool registered = pthread_atfork(nullptr, nullptr, &forget_in_child) == 0;
  TORCH_INTERNAL_ASSERT(registered);
  started.store(true);
  try {
    const CpuThreads threads(choice);
    if (is_cpu(choice)) heap::keep();
    const auto plugin = pjrt::Plugin::load(choice.path);
    const bool kernels = is_cpu(choice) && kernels::install(*plugin, *count_in_options(choice));
    auto client = pjrt::Client::create(plugin, choice.options);
    TORCH_CHECK(!client->devices().empty(), "The PJRT plugin ", choice.path, " reports no devices");
    auto* made = new Runtime(std::move(client), kernels);
    last_count.store(made->device_count());
    instance.store(made, std::memory_order_release);
    return *made;
  } catch (...) {
    started.store(false);
    throw;
  }
}

}  // namespace

const pjrt::Device& Runtime::device(c10::DeviceIndex index) const {
  TORCH_CHECK(index >= 0 && index < device_count(), "tpu: invalid device ordinal ",
              static_cast<int>(index), ", the number of tpu devices is ", device_count());
  return client_->device(static_cast<size_t>(index));
}

std::optional<std::pair<size_t, size_t>> Runtime::device_memory(c10::DeviceIndex index) const {
  const auto stats = device(index).memory_stats();
  if (!stats || !stats->bytes_limit) return std::nullopt;
  const int64_t total = *stats->bytes_limit;
  return std::pair(static_cast<size_t>(std::max<int64_t>(total - stats->bytes_in_use, 0)),
                   static_cast<size_t>(total));
}

Runtime& runtime() {
  if (Runtime* existing = instance.load(std::memory_order_acquire)) [[likely]]
    return *existing;
  return create();
}

bool initialized() noexcept { return instance.load(std::memory_order_acquire) != nullptr; }

bool in_bad_fork() noexcept { return bad_fork.load(std::memory_order_relaxed); }

bool is_available() noexcept {
  if (initialized()) return true;
  if (in_bad_fork()) return last_count.load() > 0;
  try {
    find_plugin();
    return true;
  } catch (...) {
    return false;
  }
}

int device_count() {
  if (const int known = last_count.load()) return known;
  if (const auto count = count_in_options(find_plugin())) return *count;
  return runtime().device_count();
}

c10::DeviceIndex device_count_bound() noexcept {
  // More than any TPU host has.
  constexpr c10::DeviceIndex kMost = 16;
  if (const int known = last_count.load()) return static_cast<c10::DeviceIndex>(known);
  try {
    return static_cast<c10::DeviceIndex>(count_in_options(find_plugin()).value_or(kMost));
  } catch (...) {
    return 0;
  }
}

}  // namespace torchtpu
