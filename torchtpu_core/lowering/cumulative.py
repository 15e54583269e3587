"""Running reductions along one dimension: cumsum, cumprod, cummax, cummin, logcumsumexp.

All but logcumsumexp are one `reduce_window` that reaches back to the start; XLA rewrites such
windows into a tree of small ones on every backend, so the work is O(n log n) at most and never
O(n^2).
"""

from __future__ import annotations

from collections.abc import Callable

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.reduction import wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Number


def scan(
    b: Builder,
    x: Value,
    dim: int,
    combine: Callable[[Value, Value], Value],
    identity: Number,
    reverse: bool = False,
) -> Value:
    """Inclusive scan along `dim` with an associative `combine`; from the end with `reverse`."""
    if x.ndim == 0 or x.numel == 0 or x.shape[dim] == 1:
        return x
    dim = dim % x.ndim
    window, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    window[dim] = x.shape[dim]
    padding[dim] = (0, x.shape[dim] - 1) if reverse else (x.shape[dim] - 1, 0)
    init = b.constant(identity, x.dtype)
    return b.reduce_window([x], [init], combine, window, padding=padding)[0]


def doubling_scan(
    b: Builder, x: Value, dim: int, combine: Callable[[Value, Value], Value], identity: Number
) -> Value:
    """`scan` for a `combine` that is no single op, in log2(n) steps of shifted values (Hillis and
    Steele, "Data parallel algorithms", 1986): libtpu 0.0.52 ends its process where such a
    reduce_window stands beside what it could fuse with.
    """
    if x.ndim == 0:
        return x
    dim, low, high = dim % x.ndim, [0] * x.ndim, [0] * x.ndim
    shift = 1
    while shift < x.shape[dim]:
        low[dim], high[dim] = shift, -shift
        x = combine(b.pad(x, identity, low, high), x)
        shift *= 2
    return x


def cumulative_sum(b: Builder, x: Value, dim: int, reverse: bool = False) -> Value:
    """Running sum in the dtype of `x`."""
    return scan(b, x, dim, b.add, 0, reverse)


def cumulative_extremum(b: Builder, x: Value, dim: int, largest: bool) -> tuple[Value, Value]:
    """(values, i32 indices); of equal elements the last one counts, and a NaN stays once met."""
    if x.ndim == 0:
        return x, b.constant(0, "i32")
    identity = T.lowest(x.dtype) if largest else T.highest(x.dtype)
    if x.dtype == "i1":
        combine = b.or_ if largest else b.and_
    else:
        combine = b.maximum if largest else b.minimum
    values = scan(b, x, dim, combine, identity)
    sets = b.compare(x, values, "EQ") | b.is_nan(x)
    candidates = b.select(sets, b.iota("i32", x.shape, dim % x.ndim), 0)
    return values, scan(b, candidates, dim, b.maximum, 0)


def _in(x: Value, dtype) -> Value:
    if dtype is not None:
        x = x.to(mlir(dtype))
    elif x.dtype in T.INTS or x.dtype == "i1":
        x = x.to("i64")
    return wide(x)


@lowering("cumsum")
def _cumsum(b, x, dim, *, dtype=None):
    return cumulative_sum(b, _in(x, dtype), dim)


@lowering("cumprod")
def _cumprod(b, x, dim, *, dtype=None):
    return scan(b, _in(x, dtype), dim, b.multiply, 1)


@lowering("cummax")
def _cummax(b, x, dim):
    return cumulative_extremum(b, x, dim, True)


@lowering("cummin")
def _cummin(b, x, dim):
    return cumulative_extremum(b, x, dim, False)


@lowering("_cummax_helper")
def _cummax_helper(b, x, values, indices, dim):
    values, indices = cumulative_extremum(b, x, dim, True)
    return values, indices.to("i64")


@lowering("_cummin_helper")
def _cummin_helper(b, x, values, indices, dim):
    values, indices = cumulative_extremum(b, x, dim, False)
    return values, indices.to("i64")


def log_add_exp(b: Builder, x: Value, y: Value) -> Value:
    """log(e^x + e^y), exact at the infinities and NaN."""
    if x.dtype in T.COMPLEX:
        first = b.compare(b.real(x), b.real(y), "GE")
        hi, lo = b.select(first, x, y), b.select(first, y, x)
        nothing = b.compare(b.real(hi), b.constant(float("-inf"), b.real(hi).dtype, hi.shape), "EQ")
        return b.select(nothing, hi, hi + b.log1p(b.exp(lo - hi)))
    hi, lo = b.maximum(x, y), b.minimum(x, y)
    gap = b.select(b.compare(hi, lo, "EQ"), 0.0, lo - hi)  # inf - inf
    return hi + b.log1p(b.exp(gap))


@lowering("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(b, x, dim):
    return doubling_scan(b, wide(x), dim, lambda acc, v: log_add_exp(b, acc, v), float("-inf"))
