// The hot path: runs a found program on a call's buffers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "flags.h"
#include "program.h"

namespace torchtpu {

// Launches the program: its new tensors, one an output, undefined for those that an argument's slot
// received. Does not wait, except in debug mode. Needs no GIL.
c10::SmallVector<at::Tensor, 4> launch(const char* name, const Program& program, Call& call);

// Launches the program and replaces the arguments on the stack by the results.
void execute(const char* name, const Program& program, Call& call, size_t num_args,
             torch::jit::Stack& stack);

}  // namespace torchtpu
