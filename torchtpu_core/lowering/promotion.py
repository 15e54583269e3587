"""PyTorch's type promotion on Values and Python numbers.

The rule is that of `torch.result_type`: operands fall into three categories - tensors with
dimensions, 0-d tensors, and numbers
(weak) - and a lower category takes part only by its kind (bool < int < float < complex) when it is
higher than the others'.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchtpu_core.lowering.dtypes import mlir, torch_dtype
from torchtpu_core.stablehlo import Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Number, Operand

#: how the compute dtype follows from the promoted one
DEFAULT = "default"  # the promoted dtype itself
FLOAT = "float"  # ints and bool become the default float dtype (PyTorch's INT_TO_FLOAT)
LONG = "long"  # bool becomes int64 (BOOL_TO_LONG)

_LOW_PRECISION = frozenset(("bf16", "f16", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"))


def number_dtype(x: Number) -> torch.dtype:
    """The dtype a Python number promotes as."""
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    if isinstance(x, complex):
        return torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64
    return torch.get_default_dtype()


def _kind(dtype: torch.dtype) -> int:
    return (
        3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1
    )


def _weak_dtype(x: Value) -> torch.dtype:
    """A weak value's dtype as an operand: its category's default."""
    if x.dtype in T.COMPLEX:
        return number_dtype(1j)
    if x.dtype in T.FLOATS:
        return torch.get_default_dtype()
    return torch_dtype(x.dtype)


def result_dtype(operands: Iterable[Operand]) -> torch.dtype:
    """torch.result_type of any number of operands."""
    groups: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Value):
            rank = 2 if x.weak else 1 if x.shape == () else 0
            dtype = _weak_dtype(x) if x.weak else torch_dtype(x.dtype)
        else:
            rank, dtype = 2, number_dtype(x)
        held = groups[rank]
        groups[rank] = dtype if held is None else torch.promote_types(held, dtype)
    result: torch.dtype | None = None
    for dtype in groups:
        if dtype is not None and (result is None or _kind(dtype) > _kind(result)):
            result = dtype if result is None else torch.promote_types(result, dtype)
    if result is None:
        raise TypeError("no operand to take a dtype from")
    return result


def compute_dtype(operands: Iterable[Operand], kind: str) -> torch.dtype:
    """The dtype an elementwise op computes in, by promotion kind."""
    dtype = result_dtype(operands)
    if kind == FLOAT and _kind(dtype) < 2:
        return torch.get_default_dtype()
    if kind == LONG and dtype == torch.bool:
        return torch.int64
    return dtype


def opmath(dtype: str) -> str:
    """The wider type that low-precision floats are computed in (PyTorch's opmath)."""
    return "f32" if dtype in _LOW_PRECISION else dtype


def promote(
    operands: list[Operand], kind: str = DEFAULT, upcast: bool = True, exact: bool = False
) -> list[Value]:
    """Operands converted to the compute dtype and broadcast together. With `upcast`, low-precision
    floats come as f32; with `exact`, not where all are tensors of bf16.
    """
    b = next(x for x in operands if isinstance(x, Value)).b
    dtype = mlir(compute_dtype(operands, kind))
    if upcast and not (exact and all(isinstance(x, Value) and x.dtype == "bf16" for x in operands)):
        dtype = opmath(dtype)
    return b.broadcast(*(b.lift(x, dtype) for x in operands))
