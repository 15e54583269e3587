// Element types: PJRT's enumeration, StableHLO's names, sizes.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <string_view>

namespace torchtpu::pjrt {

// "f32", "bf16", "i1", "ui8", "complex<f32>", "f8E5M2", ... as StableHLO spells them.
const char* type_name(PJRT_Buffer_Type type);

// The inverse of type_name; throws InvalidArgument for an unknown name.
PJRT_Buffer_Type type_from_name(std::string_view name);

// Bytes of one element in host memory, where sub-byte types take a whole byte.
size_t host_byte_size(PJRT_Buffer_Type type);

}  // namespace torchtpu::pjrt
