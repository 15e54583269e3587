// The extension module torchtpu_core._C.
#include <torch/extension.h>

#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of TorchTPU.";
  torchtpu::bind_pjrt(m);
  torchtpu::bind_device(m);
  torchtpu::bind_dispatch(m);
}
