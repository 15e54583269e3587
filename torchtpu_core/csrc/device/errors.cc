#include "errors.h"

#include <c10/util/Exception.h>

#include "../pjrt/error.h"

namespace torchtpu {

void throw_translated(const char* what) {
  try {
    throw;
  } catch (const pjrt::Error& e) {
    switch (e.code()) {
      case pjrt::Code::kResourceExhausted:
        TORCH_CHECK_WITH(OutOfMemoryError, false, "TPU out of memory while ", what, ". ", e.what());
      case pjrt::Code::kUnimplemented:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "while ", what, ": ", e.what());
      default:
        TORCH_CHECK(false, "while ", what, ": ", e.what());
    }
  }
}

}  // namespace torchtpu
