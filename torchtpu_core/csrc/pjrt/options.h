// Compile options: the few fields of XLA's CompileOptionsProto that we set.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace torchtpu::pjrt {

using Override = std::variant<std::string, bool, int64_t, double>;

struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;
  // A portable executable runs on whichever device execute names. It needs one replica, one
  // partition, and no device assignment.
  bool portable = true;
  // Global device ids, replica-major; empty means the client's default.
  std::vector<int64_t> device_assignment;
  bool use_spmd_partitioning = false;
  bool use_shardy_partitioner = false;
  // XLA flags by name, such as {"xla_cpu_enable_fast_math", false}.
  std::map<std::string, Override> overrides;

  // The serialized proto. Equal options give equal bytes, so this serves in cache keys.
  std::string serialize() const;
};

}  // namespace torchtpu::pjrt
