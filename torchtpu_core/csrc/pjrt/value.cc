#include "value.h"

#include <type_traits>

namespace torchtpu::pjrt {

ValueMap to_map(const PJRT_NamedValue* values, size_t n) {
  ValueMap map;
  for (size_t i = 0; i < n; ++i) {
    const PJRT_NamedValue& v = values[i];
    std::string key(v.name, v.name_size);
    switch (v.type) {
      case PJRT_NamedValue_kString:
        map.emplace(std::move(key), std::string(v.string_value, v.value_size));
        break;
      case PJRT_NamedValue_kInt64:
        map.emplace(std::move(key), v.int64_value);
        break;
      case PJRT_NamedValue_kInt64List:
        map.emplace(std::move(key),
                    std::vector<int64_t>(v.int64_array_value, v.int64_array_value + v.value_size));
        break;
      case PJRT_NamedValue_kFloat:
        map.emplace(std::move(key), v.float_value);
        break;
      case PJRT_NamedValue_kBool:
        map.emplace(std::move(key), v.bool_value);
        break;
    }
  }
  return map;
}

std::vector<PJRT_NamedValue> to_named_values(const ValueMap& map) {
  std::vector<PJRT_NamedValue> out;
  out.reserve(map.size());
  for (const auto& [key, value] : map) {
    PJRT_NamedValue v{};
    v.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    v.name = key.data();
    v.name_size = key.size();
    v.value_size = 1;
    if (const auto* s = std::get_if<std::string>(&value)) {
      v.type = PJRT_NamedValue_kString;
      v.string_value = s->data();
      v.value_size = s->size();
    } else if (const auto* i = std::get_if<int64_t>(&value)) {
      v.type = PJRT_NamedValue_kInt64;
      v.int64_value = *i;
    } else if (const auto* l = std::get_if<std::vector<int64_t>>(&value)) {
      v.type = PJRT_NamedValue_kInt64List;
      v.int64_array_value = l->data();
      v.value_size = l->size();
    } else if (const auto* f = std::get_if<float>(&value)) {
      v.type = PJRT_NamedValue_kFloat;
      v.float_value = *f;
    } else {
      v.type = PJRT_NamedValue_kBool;
      v.bool_value = std::get<bool>(value);
    }
    out.push_back(v);
  }
  return out;
}

std::string to_string(const Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          std::string s;
          for (int64_t x : v) s += (s.empty() ? "" : ".") + std::to_string(x);
          return s;
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else {
          return std::to_string(v);
        }
      },
      value);
}

}  // namespace torchtpu::pjrt
