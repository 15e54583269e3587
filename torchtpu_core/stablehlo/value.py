"""SSA values, and the operators on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu_core.stablehlo.literals import Number
from torchtpu_core.stablehlo.types import TensorType

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder


class Value:
    """An SSA value: `name`, element type and shape. `weak` marks a scalar that does not take part
    in dtype promotion
    beyond its category (a Python number). `row_major` is false for a tensor argument that its owner
    calls not contiguous (few
    lowerings ask). `origin` is set on what a reshape or transpose gives: its operand, and the
    permutation or None (see origins.py). Arithmetic operators accept Values of one dtype and Python
    numbers, and broadcast as NumPy does."""

    __slots__ = ("b", "dtype", "name", "origin", "row_major", "shape", "weak")

    def __init__(
        self, b: Builder, name: str, dtype: str, shape: tuple[int, ...], weak: bool = False
    ):
        self.b, self.name, self.dtype, self.shape, self.weak = b, name, dtype, shape, weak
        self.row_major = True
        self.origin: tuple[Value, tuple[int, ...] | None] | None = None

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    def __add__(self, o: Operand) -> Value:
        return self.b.add(*self.b.broadcast(self, o))

    def __radd__(self, o: Operand) -> Value:
        return self.b.add(*self.b.broadcast(o, self))

    def __sub__(self, o: Operand) -> Value:
        return self.b.subtract(*self.b.broadcast(self, o))

    def __rsub__(self, o: Operand) -> Value:
        return self.b.subtract(*self.b.broadcast(o, self))

    def __mul__(self, o: Operand) -> Value:
        return self.b.multiply(*self.b.broadcast(self, o))

    def __rmul__(self, o: Operand) -> Value:
        return self.b.multiply(*self.b.broadcast(o, self))

    def __truediv__(self, o: Operand) -> Value:
        return self.b.divide(*self.b.broadcast(self, o))

    def __rtruediv__(self, o: Operand) -> Value:
        return self.b.divide(*self.b.broadcast(o, self))

    def __and__(self, o: Operand) -> Value:
        return self.b.and_(*self.b.broadcast(self, o))

    def __or__(self, o: Operand) -> Value:
        return self.b.or_(*self.b.broadcast(self, o))

    def __xor__(self, o: Operand) -> Value:
        return self.b.xor(*self.b.broadcast(self, o))

    def __invert__(self) -> Value:
        return self.b.not_(self)

    def __neg__(self) -> Value:
        return self.b.negate(self)

    def __lt__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "LT")

    def __le__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "LE")

    def __gt__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "GT")

    def __ge__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "GE")

    def eq(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "EQ")

    def ne(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "NE")

    def __bool__(self) -> bool:
        raise TypeError("a StableHLO value has no truth value while the program is being built")

    def to(self, dtype: str) -> Value:
        """Converted to `dtype` (the same value when it has that dtype already)."""
        return self.b.convert(self, dtype)


Operand = Value | Number


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """NumPy's rule; raises ValueError naming the shapes."""
    n = max(len(s) for s in shapes)
    out = [1] * n
    for s in shapes:
        for i, d in enumerate(s, n - len(s)):
            if d != 1 and out[i] not in (1, d):
                raise ValueError(
                    f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast"
                )
            out[i] = d if d != 1 else out[i]
    return tuple(out)
