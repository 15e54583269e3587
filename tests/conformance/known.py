"""Why the items of the full run that do not pass do not: shown in the report, and a test finds an
item without a reason. The fast subset, which must not change, has expected.json.
"""

from __future__ import annotations

import functools
import re

from tests.conformance import expected

_ROUNDING = "float32 rounding: the formula cancels, and the CPU's own error is of the same size"
_CHUNKS = "16-bit sums over chunks, rounded after each: within a few roundings of float64"
_TIES = "ties: among equal values, which one receives the gradient is not defined"
_ZERO = "16-bit rounding where the exact result is 0: the CPU's own is not 0 everywhere either"
_STATISTICS = (
    "saved statistics have the dtype and shape that cuda and PyTorch's meta kernels give them, not "
    "the CPU's"
)

#: (pattern of `operator[variant/dtype]`, reason); the first that matches counts
_KNOWN: tuple[tuple[str, str], ...] = (
    (r"_?(native_batch_norm(_legit)?|batch_norm_with_update)\[", _STATISTICS),
    (r"(topk|sort|msort)\[backward/b?float16", _TIES),
    (r"(logcumsumexp|cov|grid_sampler_[23]d)\[backward/float32", _ROUNDING),
    (r"logcumsumexp\[.*/complex64", "a complex logarithm's imaginary part may differ by 2 pi"),
    (r"nn.functional.normalize\[backward/bfloat16", _ZERO),
    (r"nn.functional.linear_cross_entropy.*\[backward/b?float16", _CHUNKS),
    (
        r"native_dropout_backward\[.*/bool",
        "the CPU's product of bool and a number is a bool tensor that holds the byte 2",
    ),
)


@functools.cache
def _fast() -> dict[str, expected.Group]:
    return expected.by_item(expected.load())


def reason(name: str, cause: str = "") -> str:
    """Why an item (`operator[variant/dtype]`) does not pass; "" where nothing is known. `cause`:
    what came of it.
    """
    if "ComplexHalf" in cause:
        return "dtype ComplexHalf: XLA has no such element type"
    for pattern, why in _KNOWN:
        if re.match(pattern, name):
            return why
    group = _fast().get(name)
    return group.reason if group is not None else ""
