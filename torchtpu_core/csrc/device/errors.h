// PJRT failures as the exceptions that PyTorch's users expect.
#pragma once

#include <utility>

namespace torchtpu {

// Throws the current exception (a pjrt::Error) as c10::OutOfMemoryError, c10::NotImplementedError
// or c10::Error, saying what was being done.
[[noreturn]] void throw_translated(const char* what);

template <class F>
decltype(auto) translated(const char* what, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    throw_translated(what);
  }
}

}  // namespace torchtpu
