#include "options.h"

#include <bit>
#include <string_view>

#include "error.h"

namespace torchtpu::pjrt {
namespace {

// Just enough of a protobuf writer.
class Proto {
 public:
  void integer(int field, int64_t v) {
    tag(field, 0);
    varint(static_cast<uint64_t>(v));
  }
  void bytes(int field, std::string_view v) {
    tag(field, 2);
    varint(v.size());
    out_ += v;
  }
  void packed(int field, const std::vector<int64_t>& values) {
    Proto body;
    for (int64_t v : values) body.varint(static_cast<uint64_t>(v));
    bytes(field, body.out_);
  }
  void number(int field, double v) {
    tag(field, 1);
    const auto bits = std::bit_cast<uint64_t>(v);
    for (int i = 0; i < 8; ++i) out_ += static_cast<char>((bits >> (8 * i)) & 0xff);
  }
  const std::string& str() const { return out_; }

 private:
  void tag(int field, int wire) { varint(static_cast<uint64_t>(field) << 3 | wire); }
  void varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) out_ += static_cast<char>(v | 0x80);
    out_ += static_cast<char>(v);
  }

  std::string out_;
};

// Field numbers of xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
namespace options_field {
constexpr int kBuildOptions = 3, kPortable = 4, kOverrides = 7;
}
namespace build_field {
constexpr int kDeviceOrdinal = 1, kReplicas = 4, kPartitions = 5, kSpmd = 6, kAssignment = 9,
              kShardy = 19;
}
namespace assignment_field {
constexpr int kReplicas = 1, kComputations = 2, kDevices = 3, kReplicaIds = 1;
}
namespace override_field {
constexpr int kKey = 1, kValue = 2, kString = 1, kBool = 2, kInt = 3, kDouble = 4;
}

std::string assignment_proto(const CompileOptions& o) {
  const auto want = static_cast<size_t>(o.num_replicas) * static_cast<size_t>(o.num_partitions);
  if (o.device_assignment.size() != want) {
    throw Error(Code::kInvalidArgument,
                "the device assignment names " + std::to_string(o.device_assignment.size()) +
                    " devices; " + std::to_string(o.num_replicas) + " replicas of " +
                    std::to_string(o.num_partitions) + " partitions need " + std::to_string(want));
  }
  Proto proto;
  proto.integer(assignment_field::kReplicas, o.num_replicas);
  proto.integer(assignment_field::kComputations, o.num_partitions);
  for (int p = 0; p < o.num_partitions; ++p) {
    std::vector<int64_t> ids;
    for (int r = 0; r < o.num_replicas; ++r) {
      ids.push_back(o.device_assignment[static_cast<size_t>(r * o.num_partitions + p)]);
    }
    Proto computation;
    computation.packed(assignment_field::kReplicaIds, ids);
    proto.bytes(assignment_field::kDevices, computation.str());
  }
  return proto.str();
}

std::string override_proto(const std::string& key, const Override& value) {
  Proto v;
  if (const auto* s = std::get_if<std::string>(&value)) {
    v.bytes(override_field::kString, *s);
  } else if (const auto* b = std::get_if<bool>(&value)) {
    v.integer(override_field::kBool, *b ? 1 : 0);
  } else if (const auto* i = std::get_if<int64_t>(&value)) {
    v.integer(override_field::kInt, *i);
  } else {
    v.number(override_field::kDouble, std::get<double>(value));
  }
  Proto entry;
  entry.bytes(override_field::kKey, key);
  entry.bytes(override_field::kValue, v.str());
  return entry.str();
}

}  // namespace

std::string CompileOptions::serialize() const {
  if (num_replicas < 1 || num_partitions < 1) {
    throw Error(Code::kInvalidArgument, "replicas and partitions must be at least 1, got " +
                                            std::to_string(num_replicas) + " and " +
                                            std::to_string(num_partitions));
  }
  Proto build;
  build.integer(build_field::kDeviceOrdinal, -1);
  build.integer(build_field::kReplicas, num_replicas);
  build.integer(build_field::kPartitions, num_partitions);
  if (use_spmd_partitioning) build.integer(build_field::kSpmd, 1);
  if (!device_assignment.empty()) build.bytes(build_field::kAssignment, assignment_proto(*this));
  if (use_shardy_partitioner) build.integer(build_field::kShardy, 1);

  Proto options;
  options.bytes(options_field::kBuildOptions, build.str());
  const bool one = num_replicas == 1 && num_partitions == 1;
  if (portable && one && device_assignment.empty()) options.integer(options_field::kPortable, 1);
  for (const auto& [key, value] : overrides) {
    options.bytes(options_field::kOverrides, override_proto(key, value));
  }
  return options.str();
}

}  // namespace torchtpu::pjrt
