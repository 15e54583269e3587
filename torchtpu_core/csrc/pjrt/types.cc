#include "types.h"

#include <string>

#include "error.h"

namespace torchtpu::pjrt {
namespace {

struct Row {
  PJRT_Buffer_Type type;
  const char* name;
  size_t bytes;
};

constexpr Row kTypes[] = {
    {PJRT_Buffer_Type_PRED, "i1", 1},
    {PJRT_Buffer_Type_S2, "i2", 1},
    {PJRT_Buffer_Type_S4, "i4", 1},
    {PJRT_Buffer_Type_S8, "i8", 1},
    {PJRT_Buffer_Type_S16, "i16", 2},
    {PJRT_Buffer_Type_S32, "i32", 4},
    {PJRT_Buffer_Type_S64, "i64", 8},
    {PJRT_Buffer_Type_U2, "ui2", 1},
    {PJRT_Buffer_Type_U4, "ui4", 1},
    {PJRT_Buffer_Type_U8, "ui8", 1},
    {PJRT_Buffer_Type_U16, "ui16", 2},
    {PJRT_Buffer_Type_U32, "ui32", 4},
    {PJRT_Buffer_Type_U64, "ui64", 8},
    {PJRT_Buffer_Type_F16, "f16", 2},
    {PJRT_Buffer_Type_F32, "f32", 4},
    {PJRT_Buffer_Type_F64, "f64", 8},
    {PJRT_Buffer_Type_BF16, "bf16", 2},
    {PJRT_Buffer_Type_C64, "complex<f32>", 8},
    {PJRT_Buffer_Type_C128, "complex<f64>", 16},
    {PJRT_Buffer_Type_F8E5M2, "f8E5M2", 1},
    {PJRT_Buffer_Type_F8E4M3, "f8E4M3", 1},
    {PJRT_Buffer_Type_F8E3M4, "f8E3M4", 1},
    {PJRT_Buffer_Type_F8E4M3FN, "f8E4M3FN", 1},
    {PJRT_Buffer_Type_F8E4M3B11FNUZ, "f8E4M3B11FNUZ", 1},
    {PJRT_Buffer_Type_F8E5M2FNUZ, "f8E5M2FNUZ", 1},
    {PJRT_Buffer_Type_F8E4M3FNUZ, "f8E4M3FNUZ", 1},
    {PJRT_Buffer_Type_F8E8M0FNU, "f8E8M0FNU", 1},
    {PJRT_Buffer_Type_F4E2M1FN, "f4E2M1FN", 1},
    {PJRT_Buffer_Type_TOKEN, "token", 0},
};

const Row& row(PJRT_Buffer_Type type) {
  for (const Row& r : kTypes) {
    if (r.type == type) return r;
  }
  throw Error(Code::kInvalidArgument,
              "unknown PJRT element type " + std::to_string(static_cast<int>(type)));
}

}  // namespace

const char* type_name(PJRT_Buffer_Type type) { return row(type).name; }

PJRT_Buffer_Type type_from_name(std::string_view name) {
  std::string known;
  for (const Row& r : kTypes) {
    if (name == r.name) return r.type;
    known += std::string(known.empty() ? "" : ", ") + r.name;
  }
  throw Error(Code::kInvalidArgument,
              "unknown element type '" + std::string(name) + "'; the known ones are " + known);
}

size_t host_byte_size(PJRT_Buffer_Type type) { return row(type).bytes; }

}  // namespace torchtpu::pjrt
