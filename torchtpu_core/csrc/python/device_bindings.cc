// The device's part of torchtpu_core._C: what torch.tpu is made of.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "../device/backward.h"
#include "../device/generator.h"
#include "../device/heap.h"
#include "../device/memory.h"
#include "../device/queue.h"
#include "../device/runtime.h"
#include "../device/stream.h"
#include "bindings.h"

namespace py = pybind11;

namespace torchtpu {
namespace {

using c10::DeviceIndex;
using c10::CachingDeviceAllocator::DeviceStats;

// Every binding goes through PyTorch's translation of exceptions and runs without the GIL unless
// it makes Python objects.
template <class F>
void def(py::module_& m, const char* name, F&& f) {
  m.def(name, torch::wrap_pybind_function(std::forward<F>(f)));
}

template <class F>
void def_no_gil(py::module_& m, const char* name, F&& f) {
  m.def(name, torch::wrap_pybind_function_no_gil(std::forward<F>(f)));
}

py::dict stat(const c10::CachingAllocator::Stat& s) {
  py::dict d;
  d["current"] = s.current;
  d["peak"] = s.peak;
  d["allocated"] = s.allocated;
  d["freed"] = s.freed;
  return d;
}

// The nested dictionary of torch.cuda.memory_stats_as_nested_dict.
py::dict stats_dict(const DeviceStats& stats) {
  const auto pools = [](const c10::CachingAllocator::StatArray& array) {
    py::dict d;
    const char* names[] = {"all", "small_pool", "large_pool"};
    for (size_t i = 0; i < array.size(); ++i) d[names[i]] = stat(array[i]);
    return d;
  };
  py::dict d;
  d["allocation"] = pools(stats.allocation);
  d["segment"] = pools(stats.segment);
  d["active"] = pools(stats.active);
  d["inactive_split"] = pools(stats.inactive_split);
  d["allocated_bytes"] = pools(stats.allocated_bytes);
  d["reserved_bytes"] = pools(stats.reserved_bytes);
  d["active_bytes"] = pools(stats.active_bytes);
  d["inactive_split_bytes"] = pools(stats.inactive_split_bytes);
  d["requested_bytes"] = pools(stats.requested_bytes);
  d["oversize_allocations"] = stat(stats.oversize_allocations);
  d["oversize_segments"] = stat(stats.oversize_segments);
  d["num_alloc_retries"] = stats.num_alloc_retries;
  d["num_ooms"] = stats.num_ooms;
  d["num_sync_all_streams"] = stats.num_sync_all_streams;
  d["num_device_alloc"] = stats.num_device_alloc;
  d["num_device_free"] = stats.num_device_free;
  d["max_split_size"] = stats.max_split_size;
  return d;
}

py::object to_python(const pjrt::Value& value) {
  return std::visit([](const auto& v) { return py::cast(v); }, value);
}

// What torch.tpu.get_device_properties is made from.
py::dict device_info(DeviceIndex index) {
  const pjrt::Client& client = runtime().client();
  const pjrt::Device& device = runtime().device(index);
  py::dict attributes;
  for (const auto& [name, value] : device.attributes) attributes[name.c_str()] = to_python(value);
  py::dict d;
  d["id"] = device.id;
  d["process_index"] = device.process_index;
  d["local_hardware_id"] = device.local_hardware_id;
  d["kind"] = device.kind;
  d["platform"] = client.platform_name();
  d["platform_version"] = client.platform_version();
  d["attributes"] = attributes;
  d["total_memory"] = memory_info(index).second;
  return d;
}

}  // namespace

void bind_device(py::module_& m) {
  def(m, "init", [] { runtime(); });
  def(m, "is_initialized", [] { return initialized(); });
  def(m, "is_in_bad_fork", [] { return in_bad_fork(); });
  def(m, "is_available", [] { return is_available(); });
  def(m, "device_count", [] { return device_count(); });
  def(m, "has_kernels", [] { return runtime().has_kernels(); });
  def(m, "device_info", [](DeviceIndex index) { return device_info(index); });

  def(m, "current_device", [] { return current_device(); });
  def(m, "exchange_device", [](DeviceIndex device) {
    if (device >= 0) runtime().device(device);  // refuses an index out of range
    return exchange_device(device);
  });
  def_no_gil(m, "synchronize", [](DeviceIndex device) {
    runtime().device(device);
    queue::synchronize(device);
  });
  def_no_gil(m, "drain", [] { queue::drain(); });
  def_no_gil(m, "settle_backward", [] { settle_backward(); });

  def_no_gil(m, "empty_cache", [] { heap::release(); });
  def(m, "memory_stats", [](DeviceIndex device) { return stats_dict(memory_stats(device)); });
  def(m, "reset_peak_memory_stats", [](DeviceIndex device) { reset_peak_stats(device); });
  def(m, "reset_accumulated_memory_stats",
      [](DeviceIndex device) { reset_accumulated_stats(device); });
  def(m, "memory_info", [](DeviceIndex device) { return memory_info(device); });

  def(m, "default_generator", [](DeviceIndex device) { return default_generator(device); });
  def(m, "seed_default_generators", [](uint64_t seed) { seed_default_generators(seed); });
}

}  // namespace torchtpu
