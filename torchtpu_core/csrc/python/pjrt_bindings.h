// How PJRT errors reach Python.
#pragma once

#include "../pjrt/error.h"

namespace torchtpu {

// Sets the Python error for `error`: torch.OutOfMemoryError for ResourceExhausted, else
// torchtpu_core._C.PjrtError, whose subclasses are also NotImplementedError (Unimplemented) and
// IndexError (OutOfRange). `.code` is the code's name. Bindings of this module need not call it:
// the registered translator does. A boxed torch kernel must not let pjrt::Error out, for PyTorch
// makes RuntimeError of everything that is not a c10::Error: see dispatch/errors.h.
void set_python_error(const pjrt::Error& error);

}  // namespace torchtpu
