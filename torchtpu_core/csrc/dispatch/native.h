// Operators that are no programs: allocation, views, sizes, reading a number.
#pragma once

#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace torchtpu {

void register_native(torch::Library& m);
// Their names with overload ("aten::empty.memory_format").
const std::unordered_set<std::string>& native_names();

}  // namespace torchtpu
