"""Sorting and searching: sort, topk, searchsorted, bucketize, isin, histc.

Order statistics that start from a sort (median, mode, kthvalue) are in `order.py`. As on CPU, NaN
is greater than every number and equal elements keep their order.
"""

from __future__ import annotations

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.indexing import put_rows, take, take_along
from torchtpu_core.lowering.promotion import result_dtype
from torchtpu_core.lowering.reduction import floating, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, TensorType, Value
from torchtpu_core.stablehlo import types as T


def before(b: Builder, x: Value, y: Value, descending: bool) -> Value:
    """Whether `x` precedes `y` strictly, NaN being the greatest."""
    if not descending:
        x, y = y, x
    first = b.compare(x, y, "GT")
    if x.dtype in T.FLOATS:
        first = first | (b.is_nan(x) & ~b.is_nan(y))
    return first


def sort_values_indices(
    b: Builder, x: Value, dim: int, descending: bool = False, stable: bool = True
) -> tuple[Value, Value]:
    """(values, i64 indices) of `x` sorted along `dim`."""
    values, indices = _sort(b, x, dim, descending, stable)
    return values, indices.to("i64")


def _sort(
    b: Builder, x: Value, dim: int, descending: bool, stable: bool = True
) -> tuple[Value, Value]:
    """(values, i32 indices)."""
    if x.ndim == 0 or x.numel == 0 or x.shape[dim] == 1:
        return x, b.constant(0, "i32", x.shape)
    dim = dim % x.ndim
    index = b.iota("i32", x.shape, dim)
    values, indices = b.sort(
        [x, index], dim, lambda v, w, i, j: before(b, v, w, descending), stable
    )
    return values, indices


@lowering("sort")
def _sort_default(b, x, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)


@lowering("sort.stable")
def _sort_stable(b, x, *, stable=None, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)


@lowering("argsort")
def _argsort(b, x, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)[1]


@lowering("argsort.stable")
def _argsort_stable(b, x, *, stable, dim=-1, descending=False):
    return sort_values_indices(b, x, dim, descending)[1]


@lowering("msort")
def _msort(b, x):
    return sort_values_indices(b, x, 0)[0]


# ---- topk ----------------------------------------------------------------------------------------


def _top_key(b: Builder, x: Value, largest: bool) -> Value:
    """Values whose total order, from the top, is that of `x`: one zero, one NaN with a sign."""
    if T.is_int(x.dtype) and T.bits(x.dtype) > 16:
        return x if largest else b.not_(x)
    x = wide(x) if x.dtype in T.FLOATS else x.to("f32")
    x = b.select(x.eq(0.0), 0.0, x if largest else -x)
    return b.select(b.is_nan(x), float("nan") if largest else float("-nan"), x)


@lowering("topk")
def _topk(b, x, k, dim=-1, largest=True, sorted=True):
    """By CHLO's top_k, which orders floats by their bits and has a fast kernel, unlike a sort."""
    if x.ndim == 0:
        return x, b.constant(0, "i64")
    dim = dim % x.ndim
    if k == 0 or x.numel == 0:
        shape = [k if i == dim else n for i, n in enumerate(x.shape)]
        return b.constant(0, x.dtype, shape), b.constant(0, "i64", shape)
    key = b.moveaxis(_top_key(b, x, largest), dim, -1)
    shape = (*key.shape[:-1], k)
    results = [TensorType(key.dtype, shape), TensorType("i32", shape)]
    key, index = b.op("chlo.top_k", [key], results, f"k = {k} : i64")
    if not largest:
        key = 0.0 - key if key.dtype in T.FLOATS else b.not_(key)  # a zero stays positive
    return b.moveaxis(key, -1, dim), b.moveaxis(index, -1, dim).to("i64")


# ---- searching -----------------------------------------------------------------------------------

#: up to this many comparisons, all of them in one reduction are faster than a binary search
_COMPARE_ALL = 1 << 20


def search(b: Builder, boundaries: Value, x: Value, right: bool) -> Value:
    """i32 insertion points of `x` into `boundaries`, which are sorted along the last dim.

    Leading dims are equal, or absent from `boundaries`. The point is before equal boundaries, after
    them with `right`; that of a NaN is the end, as on CPU.
    """
    n = boundaries.shape[-1]
    passes = "GT" if right else "GE"  # a boundary that is `passes` x is not below it

    def below(edge: Value) -> Value:
        return ~b.compare(*b.broadcast(edge, x), passes)

    if n == 0 or x.numel == 0:
        return b.constant(0, "i32", x.shape)
    shared = boundaries.ndim == 1
    if n <= 64 or x.numel * n <= _COMPARE_ALL:
        shape = (*x.shape, n)
        dims = [x.ndim] if shared else [*range(x.ndim - 1), x.ndim]
        edges = b.broadcast_in_dim(boundaries, shape, dims)
        points = b.broadcast_in_dim(x, shape, range(x.ndim))
        counted = ~b.compare(edges, points, passes)
        return b.reduce_op("add", counted.to("i32"), [x.ndim])
    low, high = b.constant(0, "i32", x.shape), b.constant(n, "i32", x.shape)

    def step(low: Value, high: Value) -> list[Value]:
        middle = b.binary("shift_right_logical", low + high, b.constant(1, "i32", x.shape))
        at = b.minimum(middle, b.constant(n - 1, "i32", x.shape))
        edge = take(b, boundaries, at, 0) if shared else take_along(b, boundaries, at, -1)
        open_, up = low < high, below(edge)
        return [b.select(open_ & up, middle + 1, low), b.select(open_ & ~up, middle, high)]

    low, _ = b.while_(
        [low, high],
        lambda low, high: b.reduce_op("or", low < high, range(x.ndim)),
        step,
    )
    return low


def _search_any(b, boundaries, x, right, sorter=None):
    dtype = mlir(result_dtype([boundaries, x]))
    if not isinstance(x, Value):
        x = b.constant(x, dtype)
    boundaries, x = boundaries.to(dtype), x.to(dtype)
    if sorter is not None:
        boundaries = take_along(b, boundaries, sorter, -1)
    if x.ndim == 0:
        return b.reshape(search(b, boundaries, b.reshape(x, (1,) * boundaries.ndim), right), ())
    return search(b, boundaries, x, right)


@lowering("searchsorted.Tensor", "searchsorted.Scalar", runtime=("self",))
def _searchsorted(b, boundaries, x, *, out_int32=False, right=False, side=None, sorter=None):
    return _search_any(b, boundaries, x, right or side == "right", sorter)


@lowering("bucketize.Tensor", "bucketize.Scalar", runtime=("self",))
def _bucketize(b, x, boundaries, *, out_int32=False, right=False):
    return _search_any(b, boundaries, x, right)


def _isin(b, elements, tests, *, assume_unique=False, invert=False):
    dtype = mlir(result_dtype([elements, tests]))
    elements, tests = b.lift(elements, dtype), b.lift(tests, dtype)
    tests = b.reshape(tests, (tests.numel,))
    if tests.numel == 0 or elements.numel == 0:
        found = b.constant(False, "i1", elements.shape)
    elif tests.numel <= 64 or elements.numel * tests.numel <= _COMPARE_ALL:
        shape = elements.shape + tests.shape
        left = b.broadcast_in_dim(elements, shape, range(elements.ndim))
        equal = left.eq(b.broadcast_in_dim(tests, shape, [elements.ndim]))
        found = b.reduce_op("or", equal, [elements.ndim])
    else:
        tests = _sort(b, tests, 0, False)[0]
        at = search(b, tests, elements, False)
        at = b.minimum(at, b.constant(tests.numel - 1, "i32", at.shape))
        found = take(b, tests, at, 0).eq(elements)
    return ~found if invert else found


lowering("isin.Tensor_Tensor")(_isin)
lowering("isin.Tensor_Scalar", runtime=("test_element",))(_isin)
lowering("isin.Scalar_Tensor", runtime=("element",))(_isin)


# ---- histogram -----------------------------------------------------------------------------------


@lowering("histc")
def _histc(b, x, bins=100, min=0, max=0):
    """Counts in equal bins over [min, max], or over the range of the data when both are equal."""
    x = b.reshape(x, (x.numel,))
    if x.numel == 0:
        return b.constant(0, x.dtype, (bins,))
    wx = floating(x) if x.dtype in T.FLOATS else x.to("f32")
    if min == max:
        low, high = (b.reduce_op(kind, wx, [0]) for kind in ("minimum", "maximum"))
        flat = low.eq(high)
        low, high = b.select(flat, low - 1, low), b.select(flat, high + 1, high)
    else:
        low, high = b.constant(min, wx.dtype), b.constant(max, wx.dtype)
    inside = (wx >= low) & (wx <= high)
    at = ((wx - low) * float(bins) / (high - low)).to("i32")
    at = b.minimum(at, b.constant(bins - 1, "i32", at.shape))
    at = b.select(inside, at, bins)
    counts = b.constant(0, "i32", (bins,))
    ones = b.constant(1, "i32", at.shape)
    return put_rows(b, counts, at, ones, 0, b.add)
