"""Constants, and ops that move elements: broadcasts, reshapes, slices, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchtpu_core.stablehlo import literals as lit
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.emitter import Emitter
from torchtpu_core.stablehlo.literals import Number
from torchtpu_core.stablehlo.types import TensorType
from torchtpu_core.stablehlo.value import Operand, Value, broadcast_shapes


class Shapes(Emitter):
    """Constants and shapes."""

    def constant(self, value: Number, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A splat; equal scalars of one block are one op."""
        key = (repr(value), dtype)
        for scope in self._scopes:
            if key in scope:
                scalar = scope[key]
                break
        else:
            text = f"value = dense<{lit.scalar_text(value, dtype)}> : tensor<{dtype}>"
            scalar = self._scopes[-1][key] = self._one("stablehlo.constant", [], dtype, (), text)
        return self.splat(scalar, shape)

    def array(self, data: np.ndarray, dtype: str | None = None) -> Value:
        """A dense constant from a NumPy array (dtype inferred, or converted to)."""
        if dtype is None:
            dtype = next(k for k, v in T._NUMPY.items() if np.dtype(v) == data.dtype)
        data = np.ascontiguousarray(data, dtype=T.numpy_dtype(dtype)).reshape(data.shape)
        if data.size == 0 or dtype == "i1":
            text = "" if data.size == 0 else lit.nested(data.tolist())
        elif data.size == 1 and dtype not in T.COMPLEX:
            text = lit.scalar_text(data.item(), dtype)
        else:
            text = f'"0x{data.tobytes().hex().upper()}"'
        t = TensorType(dtype, data.shape)
        return self._one(
            "stablehlo.constant", [], dtype, data.shape, f"value = dense<{text}> : {t}"
        )

    def lift(self, x: Operand, dtype: str, shape: Sequence[int] = ()) -> Value:
        """`x` as a Value of `dtype`; a number or 0-d value is broadcast to `shape`."""
        if not isinstance(x, Value):
            return self.constant(x, dtype, shape)
        x = self.convert(x, dtype)
        return self.splat(x, shape) if x.shape == () else x

    def splat(self, scalar: Value, shape: Sequence[int]) -> Value:
        return self.broadcast_in_dim(scalar, shape, ()) if len(shape) else scalar

    def broadcast(self, *xs: Operand) -> list[Value]:
        """Numbers lifted to the Values' dtype, everything broadcast to the common shape."""
        first = next(x for x in xs if isinstance(x, Value))
        vals = [x if isinstance(x, Value) else self.constant(x, first.dtype) for x in xs]
        shape = broadcast_shapes(*(v.shape for v in vals))
        return [self.expand(v, shape) for v in vals]

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """NumPy broadcasting of `x` to `shape`."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.ndim
        if lead < 0 or any(s != 1 and s != shape[lead + i] for i, s in enumerate(x.shape)):
            raise ValueError(f"cannot broadcast {x.shape} to {shape}")
        return self.broadcast_in_dim(x, shape, range(lead, len(shape)))

    def broadcast_in_dim(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        shape, dims = tuple(shape), tuple(dims)
        if x.shape == shape and dims == tuple(range(len(shape))):
            return x
        assert len(dims) == x.ndim, (x, shape, dims)
        out = self._one(
            "stablehlo.broadcast_in_dim",
            [x],
            x.dtype,
            shape,
            f"broadcast_dimensions = {lit.ints(dims)}",
        )
        out.weak = x.weak
        return out

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if math.prod(shape) != x.numel:
            raise ValueError(f"cannot reshape {x.shape} to {shape}")
        source = x
        while source.origin is not None and source.origin[1] is None:
            source = source.origin[0]
            if source.shape == shape and not source.weak:  # there and back
                return source
        out = self._one("stablehlo.reshape", [x], x.dtype, shape)
        out.origin = (x, None)
        return out

    def unsqueeze(self, x: Value, dim: int) -> Value:
        dim = dim % (x.ndim + 1)
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def squeeze(self, x: Value, dims: Sequence[int]) -> Value:
        drop = {d % x.ndim for d in dims} if x.ndim else set()
        return self.reshape(x, [s for i, s in enumerate(x.shape) if i not in drop])

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        if perm == tuple(range(x.ndim)):
            return x
        out = self._one(
            "stablehlo.transpose",
            [x],
            x.dtype,
            [x.shape[p] for p in perm],
            f"permutation = {lit.ints(perm)}",
        )
        out.origin = (x, perm)
        return out

    def moveaxis(self, x: Value, src: int, dst: int) -> Value:
        perm = [i for i in range(x.ndim) if i != src % x.ndim]
        perm.insert(dst % x.ndim, src % x.ndim)
        return self.transpose(x, perm)

    def slice(
        self,
        x: Value,
        start: Sequence[int],
        limit: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        strides = tuple(strides) if strides is not None else (1,) * x.ndim
        if not any(start) and tuple(limit) == x.shape and all(s == 1 for s in strides):
            return x
        shape = [max(0, -(-(e - s) // st)) for s, e, st in zip(start, limit, strides)]
        attrs = (
            f"start_indices = {lit.ints(start)}, limit_indices = {lit.ints(limit)}, "
            f"strides = {lit.ints(strides)}"
        )
        return self._one("stablehlo.slice", [x], x.dtype, shape, attrs)

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """`x[..., start:limit:stride, ...]` along `dim`; bounds already clamped."""
        dim = dim % x.ndim
        lo, hi, st = [0] * x.ndim, list(x.shape), [1] * x.ndim
        lo[dim], hi[dim], st[dim] = start, limit, stride
        return self.slice(x, lo, hi, st)

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        return self._one(
            "stablehlo.dynamic_slice",
            [x, *starts],
            x.dtype,
            sizes,
            f"slice_sizes = {lit.ints(sizes)}",
        )

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        return self._one("stablehlo.dynamic_update_slice", [x, update, *starts], x.dtype, x.shape)

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        if len(xs) == 1:
            return xs[0]
        dim = dim % xs[0].ndim
        shape = list(xs[0].shape)
        shape[dim] = sum(x.shape[dim] for x in xs)
        return self._one(
            "stablehlo.concatenate", xs, xs[0].dtype, shape, f"dimension = {dim} : i64"
        )

    def pad(
        self,
        x: Value,
        value: Operand,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> Value:
        """Negative `low`/`high` crop."""
        interior = tuple(interior) if interior is not None else (0,) * x.ndim
        if not any(low) and not any(high) and not any(interior):
            return x
        shape = [
            s + lo + hi + max(0, s - 1) * it for s, lo, hi, it in zip(x.shape, low, high, interior)
        ]
        attrs = (
            f"edge_padding_low = {lit.ints(low)}, edge_padding_high = {lit.ints(high)}, "
            f"interior_padding = {lit.ints(interior)}"
        )
        fill = self.lift(value, x.dtype)
        return self._one("stablehlo.pad", [x, fill], x.dtype, shape, attrs)

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        dims = [d % x.ndim for d in dims]
        return (
            self._one("stablehlo.reverse", [x], x.dtype, x.shape, f"dimensions = {lit.ints(dims)}")
            if dims
            else x
        )

    def iota(self, dtype: str, shape: Sequence[int], dim: int = 0) -> Value:
        """Index along `dim` at each element."""
        if dtype == "i1":
            return self.convert(self.iota("i32", shape, dim), dtype)
        return self._one("stablehlo.iota", [], dtype, shape, f"iota_dimension = {dim} : i64")
