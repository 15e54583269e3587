// One operator call, flattened: its tensors, its run-time numbers, and the key of its program.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "../device/storage.h"

namespace torchtpu {

// A tensor argument. `slot` is null for a 0-d CPU tensor, which is fed as a number.
struct TensorArg {
  const at::Tensor* tensor = nullptr;
  Slot* slot = nullptr;
  uint32_t slot_index = 0;  // the first tensor of the call with this slot
  bool padded = false;      // the slot was, when the key was made
  BufferPtr buffer;         // what the slot held when the key was made; empty in later aliases
};

using Key = c10::SmallVector<uint64_t, 64>;

// What a call looks like. Lives for one dispatch, on the stack of its thread.
struct Call {
  c10::SmallVector<TensorArg, 8> tensors;
  c10::SmallVector<const c10::IValue*, 4> scalars;  // run-time numbers
  std::optional<at::Generator> generator;
  std::optional<uint64_t> random_blocks;  // drawn, where the program does not tell
  c10::DeviceIndex device = -1;
  Key key;
  uint64_t hash = 0;
};

// What of an operator's arguments counts as a run-time number, by position.
struct ArgumentTraits {
  bool runtime = false;              // numbers of this argument are inputs of the program
  std::optional<c10::IValue> fixed;  // except this one (the default), which is a constant
};

// Fills `call` from the arguments on the stack. Throws PyTorch's error for tensors on different
// devices.
void describe(const char* name, const std::vector<ArgumentTraits>& traits,
              c10::ArrayRef<c10::IValue> args, Call& call);

// The base that a slot without a buffer would get when `tensor` is the first to use it.
Dims uninitialised_base(const at::Tensor& tensor, size_t nbytes);

}  // namespace torchtpu
