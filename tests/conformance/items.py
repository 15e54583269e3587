"""What can be run: an item is one operator in one variant and one dtype."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from tests.common.compare import short_dtype

VARIANTS = ("forward", "backward", "inplace", "out", "noncontiguous")
# "reference" draws the database's extended inputs: broadcasting, strides, type promotion, extremes.
EXTENDED = (*VARIANTS, "reference")
DEFAULT_DTYPES = ("float32", "bfloat16", "int64", "bool")

# (variant, dtype, samples per op) of the fast subset, which `make test` runs against expected.json.
FAST: tuple[tuple[str, str, int], ...] = (
    ("forward", "float32", 2),
    ("backward", "float32", 2),
    ("forward", "bfloat16", 1),
    ("backward", "bfloat16", 1),
    ("forward", "int64", 1),
    ("forward", "bool", 1),
)


class Item(NamedTuple):
    """One operator in one variant and one dtype, with the number of samples to draw (None: all)."""

    op: str
    variant: str
    dtype: str
    samples: int | None = None

    @property
    def key(self) -> str:
        """The item without its operator: a column of the report."""
        return f"{self.variant}/{self.dtype}"

    @property
    def name(self) -> str:
        """Operator and column, as written in expected.json and in test names."""
        return f"{self.op}[{self.key}]"


@functools.cache
def operators() -> dict[str, OpInfo]:
    """Every operator of the database by name, in the database's order."""
    return {op.full_name: op for op in op_db}


def dtype_named(name: str) -> torch.dtype:
    """`torch.float32` for `float32`; ValueError for what is no dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch")
    return dtype


def applies(op: OpInfo, variant: str, dtype: torch.dtype) -> bool:
    """Whether the database says that the CPU has this variant of the operator in this dtype."""
    if dtype not in op.supported_dtypes("cpu"):
        return False
    if variant == "backward":
        differentiable = dtype.is_floating_point or dtype.is_complex
        return (
            op.supports_autograd and differentiable and dtype in op.supported_backward_dtypes("cpu")
        )
    if variant == "inplace":
        return op.get_inplace() is not None
    if variant == "out":
        return op.supports_out
    return True


def select(
    columns: Iterable[tuple[str, str, int | None]],
    pattern: str | None = None,
    names: Sequence[str] | None = None,
) -> list[Item]:
    """Every item of the given (variant, dtype, samples) columns whose operator matches, grouped by
    operator.
    """
    matcher = re.compile(pattern) if pattern else None
    columns = [(variant, dtype_named(dtype), n) for variant, dtype, n in columns]
    items = []
    for name, op in operators().items():
        if matcher and not matcher.search(name):
            continue
        if names is not None and name not in names:
            continue
        items += [
            Item(name, variant, short_dtype(dtype), n)
            for variant, dtype, n in columns
            if applies(op, variant, dtype)
        ]
    return items
