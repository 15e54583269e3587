"""Reductions, windows and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtpu_core.stablehlo import literals as lit
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.elementwise import Elementwise
from torchtpu_core.stablehlo.literals import Number
from torchtpu_core.stablehlo.origins import split
from torchtpu_core.stablehlo.types import TensorType
from torchtpu_core.stablehlo.value import Value


class Reductions(Elementwise):
    """Reductions, windows and sorting."""

    def reduce(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        dims: Sequence[int],
        body: Callable[..., Any],
    ) -> list[Value]:
        """body(acc_0.., x_0..) -> new accumulators, on scalars."""
        dims = sorted(d % xs[0].ndim for d in dims)
        shape = tuple(s for i, s in enumerate(xs[0].shape) if i not in dims)
        scalars = [TensorType(x.dtype, ()) for x in xs]
        region = self.region(scalars + scalars, body)
        results = [TensorType(x.dtype, shape) for x in xs]
        return self.op(
            "stablehlo.reduce", [*xs, *inits], results, f"dimensions = {lit.ints(dims)}", [region]
        )

    def reduce_op(self, kind: str, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
        """kind: add, multiply, maximum, minimum, and, or. Identity elements as in the
        specification.
        """
        dims = [d % x.ndim for d in dims] if x.ndim else []
        out = x
        if dims:
            source, groups = split(x)
            over = [d for i in dims for d in groups[i]]
            init = self.constant(_identity(kind, x.dtype), x.dtype)
            op = {("add", "i1"): "or", ("multiply", "i1"): "and"}.get((kind, x.dtype), kind)
            out = self.reduce([source], [init], over, lambda a, v: self.binary(op, a, v))[0]
            out = self.reshape(out, [s for i, s in enumerate(x.shape) if i not in dims])
        if keepdim:
            out = self.reshape(out, [1 if i in dims else s for i, s in enumerate(x.shape)])
        return out

    def reduce_window(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        body: Callable[..., Any],
        window: Sequence[int],
        strides: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
    ) -> list[Value]:
        n = len(window)
        strides = list(strides or [1] * n)
        padding = list(padding or [(0, 0)] * n)
        base, wdil = list(base_dilation or [1] * n), list(window_dilation or [1] * n)
        shape = []
        for i in range(n):
            size = (xs[0].shape[i] - 1) * base[i] + 1 if xs[0].shape[i] else 0
            size += padding[i][0] + padding[i][1]
            span = (window[i] - 1) * wdil[i] + 1
            shape.append(0 if size < span else (size - span) // strides[i] + 1)
        scalars = [TensorType(x.dtype, ()) for x in xs]
        attrs = (
            f"window_dimensions = {lit.ints(window)}, window_strides = {lit.ints(strides)}, "
            f"base_dilations = {lit.ints(base)}, window_dilations = {lit.ints(wdil)}, "
            f"padding = {lit.pairs(padding)}"
        )
        results = [TensorType(x.dtype, tuple(shape)) for x in xs]
        region = self.region(scalars + scalars, body)
        return self.op("stablehlo.reduce_window", [*xs, *inits], results, attrs, [region])

    def select_and_scatter(
        self,
        x: Value,
        source: Value,
        init: Value,
        select: Callable[[Value, Value], Value],
        scatter: Callable[[Value, Value], Value],
        window: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
    ) -> Value:
        s = TensorType(x.dtype, ())
        attrs = (
            f"window_dimensions = {lit.ints(window)}, window_strides = {lit.ints(strides)}, "
            f"padding = {lit.pairs(padding)}"
        )
        regions = [self.region([s, s], select), self.region([s, s], scatter)]
        return self._one(
            "stablehlo.select_and_scatter", [x, source, init], x.dtype, x.shape, attrs, regions
        )

    def sort(
        self, xs: Sequence[Value], dim: int, less: Callable[..., Value], stable: bool = True
    ) -> list[Value]:
        """less(a_0, b_0, a_1, b_1, ..) -> i1, on scalars, one pair an operand."""
        dim = dim % xs[0].ndim
        pairs = [TensorType(x.dtype, ()) for x in xs for _ in range(2)]
        attrs = f"dimension = {dim} : i64, is_stable = {'true' if stable else 'false'}"
        return self.op(
            "stablehlo.sort", xs, [x.type for x in xs], attrs, [self.region(pairs, less)]
        )


def _identity(kind: str, dtype: str) -> Number:
    if kind in ("add", "or"):
        return 0
    if kind == "multiply":
        return 1
    if kind == "and":
        return 1 if dtype == "i1" else -1 if dtype in T.SIGNED else T.int_limits(dtype)[1]
    return T.lowest(dtype) if kind == "maximum" else T.highest(dtype)
