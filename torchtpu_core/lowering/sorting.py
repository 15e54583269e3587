"""Sorting and searching: sort, topk, searchsorted, bucketize, isin.

Order statistics that start from a sort (median, mode, kthvalue) are in `order.py`. As on CPU, NaN is greater than every number
and equal elements keep their order.
"""

from __future__ import annotations

from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T


def _before(b: Builder, x: Value, y: Value, descending: bool) -> Value:
    """Whether `x` precedes `y` strictly, NaN being the greatest."""
    if not descending:
        x, y = y, x
    first = b.compare(x, y, "GT")
    if x.dtype in T.FLOATS:
        first = first | (b.is_nan(x) & ~b.is_nan(y))
    return first


def sort_values_indices(b: Builder, x: Value, dim: int, descending: bool = False, stable: bool = True) -> tuple[Value, Value]:  # fmt: skip
    """(values, i64 indices) of `x` sorted along `dim`."""
    values, indices = _sort(b, x, dim, descending, stable)
    return values, indices.to("i64")


def _sort(b: Builder, x: Value, dim: int, descending: bool, stable: bool = True) -> tuple[Value, Value]:
    """(values, i32 indices)."""
    if x.ndim == 0 or x.numel == 0 or x.shape[dim] == 1:
        return x, b.constant(0, "i32", x.shape)
    dim = dim % x.ndim
    index = b.iota("i32", x.shape, dim)
    values, indices = b.sort([x, index], dim, lambda v, w, i, j: _before(b, v, w, descending), stable)
    return values, indices


@lowering("sort")
def _sort_default(b, x, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)


@lowering("sort.stable")
def _sort_stable(b, x, dim=-1, descending=False, *, stable=None):
    return sort_values_indices(b, x, dim, descending)


@lowering("argsort")
def _argsort(b, x, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)[1]


@lowering("argsort.stable")
def _argsort_stable(b, x, dim=-1, descending=False, *, stable=True):
    return sort_values_indices(b, x, dim, descending)[1]


@lowering("msort")
def _msort(b, x):
    return sort_values_indices(b, x, 0)[0]
