// A custom call of a program on XLA's CPU plugin, as tensors: what the handlers in this folder are
// written in.
#pragma once

#include <ATen/ATen.h>

#include <atomic>

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

  // An argument that is one f64.
  double number(int64_t i) const { return *argument(i).const_data_ptr<double>(); }

  // Attributes of type array<i64: ...> and array<f64: ...>. Throw if there is none.
  at::IntArrayRef ints(std::string_view name) const;
  c10::ArrayRef<double> doubles(std::string_view name) const;

 private:
  const pjrt::ffi::Array& array(std::string_view name, pjrt::ffi::Type type) const;
  static at::Tensor tensor(const pjrt::ffi::Buffers& buffers, int64_t i, bool channels_last);

  const pjrt::ffi::CallFrame& frame_;
};

// Whether XLA's threads wait for their kernels, and the rest of a program stays on them. As long as
// one device is all there is, it need not: with more, it may wait for a program of another device,
// whose kernels could then not run.
extern std::atomic<bool> waits;

// Runs `body` for a frame: what it throws fails the program.
pjrt::ffi::Error* run(pjrt::ffi::CallFrame* frame, void (*body)(const Call&));

// `body` as XLA calls it.
template <void (*body)(const Call&)>
pjrt::ffi::Error* handler(pjrt::ffi::CallFrame* frame) {
  return run(frame, body);
}

}  // namespace torchtpu::kernels
