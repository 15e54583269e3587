// The rooms of torchtpu_core._C, each bound by its own file.
#pragma once

#include <pybind11/pybind11.h>

namespace torchtpu {

void bind_pjrt(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_dispatch(pybind11::module_& m);

}  // namespace torchtpu
