// A custom call of a program on XLA's CPU plugin, as tensors: what the handlers in this folder are
// written in.
#pragma once

#include <ATen/ATen.h>

#include "../pjrt/ffi.h"

namespace torchtpu::kernels {

class Call {
 public:
  explicit Call(const pjrt::ffi::CallFrame& frame) : frame_(frame) {}

  // CPU tensors on XLA's memory, valid until the handler returns: contiguous, or in channels-last
  // order.
  at::Tensor argument(int64_t i, bool channels_last = false) const {
    return tensor(frame_.arguments, i, channels_last);
  }
  at::Tensor result(int64_t i, bool channels_last = false) const {
    return tensor(frame_.results, i, channels_last);
  }

  // Attributes of type array<i64: ...> and array<f64: ...>. Throw if there is none.
  at::IntArrayRef ints(std::string_view name) const;
  c10::ArrayRef<double> doubles(std::string_view name) const;

 private:
  const pjrt::ffi::Array& array(std::string_view name, pjrt::ffi::Type type) const;
  static at::Tensor tensor(const pjrt::ffi::Buffers& buffers, int64_t i, bool channels_last);

  const pjrt::ffi::CallFrame& frame_;
};

// Runs `body` for a frame: what it throws fails the program.
pjrt::ffi::Error* run(pjrt::ffi::CallFrame* frame, void (*body)(const Call&));

// `body` as XLA calls it.
template <void (*body)(const Call&)>
pjrt::ffi::Error* handler(pjrt::ffi::CallFrame* frame) {
  return run(frame, body);
}

}  // namespace torchtpu::kernels
