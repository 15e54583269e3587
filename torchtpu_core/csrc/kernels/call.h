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

// Who goes on with a program where a kernel ends.
enum class Then {
  kWaiting,  // XLA's thread, which waits: it can do what is long beside the next kernels
  kWorker,   // the kernels' thread, which needs no other to wake up: for what is short
};

// Whether kWorker is possible: not with several devices, where the rest of a program may wait for
// another device's, whose kernels could then not run.
extern std::atomic<bool> worker_goes_on;

// Runs `body` for a frame: what it throws fails the program.
pjrt::ffi::Error* run(pjrt::ffi::CallFrame* frame, void (*body)(const Call&), Then then);

// `body` as XLA calls it.
template <void (*body)(const Call&), Then then = Then::kWaiting>
pjrt::ffi::Error* handler(pjrt::ffi::CallFrame* frame) {
  return run(frame, body, then);
}

}  // namespace torchtpu::kernels
