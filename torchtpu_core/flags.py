"""The process-wide switches that shape programs: one word that is part of every program's key
(csrc/dispatch/flags.h), so that what was built under other switches is kept and found again.

A lowering reads them while it runs; who changes one never recompiles what it has met before.
"""

from __future__ import annotations

import torchtpu_core._C as _C

#: how exact products are: the index in `precision.MODES` (bits 0 and 1)
PRECISION = 0x3
#: products on XLA's CPU plugin have a TPU's numerics
EMULATE = 0x4
#: indices are checked on the device, and those out of range raise
BOUNDS = 0x8
#: programs are for a TPU, whatever the device of this process (aot)
FOR_TPU = 0x10
#: programs on XLA's CPU plugin call none of PyTorch's kernels (stablehlo/host_kernels.py)
XLA_ALONE = 0x20


def get(mask: int) -> int:
    """The bits of `mask`."""
    return _C.program_flags() & mask


def put(mask: int, value: int) -> int:
    """Replaces the bits of `mask`; returns what they were."""
    return _C.set_program_flags(mask, value) & mask
