// Named values: the key-value pairs of the PJRT C API (client options, attributes, properties).
#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace torchtpu::pjrt {

using Value = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using ValueMap = std::map<std::string, Value>;

ValueMap to_map(const PJRT_NamedValue* values, size_t n);

// PJRT's view of `map`, valid while `map` lives unchanged.
std::vector<PJRT_NamedValue> to_named_values(const ValueMap& map);

std::string to_string(const Value& value);

}  // namespace torchtpu::pjrt
