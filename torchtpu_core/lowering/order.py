"""Order statistics along a dimension: median, nanmedian, kthvalue, mode.

All start from one stable sort with NaN last. Where only the first `n` elements along the dimension
count (0-d i32; compile/padded), those after them are NaN, or the greatest integers, and so stay
behind them.
"""

from __future__ import annotations

from torchtpu_core.lowering.cumulative import scan
from torchtpu_core.lowering.reduction import extremum_index, sum_of
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T


def _sorted(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    from torchtpu_core.lowering.sorting import sort_values_indices

    return sort_values_indices(b, x, dim, False, True)


def _keep(b: Builder, pair: tuple[Value, Value], dim: int, keepdim: bool) -> list[Value]:
    """Results with their reduced dimension of size 1, or without it."""
    return list(pair) if keepdim else [b.squeeze(v, [dim]) for v in pair]


def pick(b: Builder, x: Value, at: Value, dim: int) -> Value:
    """x[.., at, ..] along `dim`, where `at` has size 1 there: a masked sum, exact for any value."""
    here = b.iota("i32", x.shape, dim).eq(at)
    dtype = "i32" if x.dtype == "i1" else x.dtype
    return sum_of(b.select(here, x.to(dtype), 0), [dim], True).to(x.dtype)


@lowering("kthvalue")
def _kthvalue(b, x, k, dim=-1, keepdim=False):
    if x.ndim == 0:
        return x, b.constant(0, "i64")
    dim = dim % x.ndim
    pair = tuple(b.slice_dim(v, dim, k - 1, k) for v in _sorted(b, x, dim))
    return _keep(b, pair, dim, keepdim)


def _nan_count(b: Builder, x: Value, dim: int) -> Value:
    return sum_of(b.is_nan(x).to("i32"), [dim], True)


def median(b: Builder, x: Value, dim: int, keepdim: bool, n: Value | None = None) -> list[Value]:
    """The lower middle; the first NaN if there is one."""
    if x.ndim == 0:
        return [x, b.constant(0, "i64")]
    dim = dim % x.ndim
    values, indices = _sorted(b, x, dim)
    room = x.shape[dim]
    if n is None:
        middle = (room - 1) // 2
        value, index = (b.slice_dim(v, dim, middle, middle + 1) for v in (values, indices))
    else:
        one = [1 if d == dim else m for d, m in enumerate(x.shape)]
        at = b.splat(b.binary("shift_right_arithmetic", n - 1, b.constant(1, "i32")), one)
        value = pick(b, values, at, dim)
        index = pick(b, indices.to("i32"), at, dim).to(indices.dtype)
    if x.dtype in T.FLOATS:
        nans = _nan_count(b, x, dim)
        numbers = room - nans
        has_nan = (nans > 0) if n is None else numbers < b.splat(n, numbers.shape)
        # equal elements are sorted in order of position: the first NaN follows the last number
        first = pick(b, indices.to("i32"), numbers, dim).to(indices.dtype)
        value, index = b.select(has_nan, float("nan"), value), b.select(has_nan, first, index)
    return _keep(b, (value, index), dim, keepdim)


def nanmedian(b: Builder, x: Value, dim: int, keepdim: bool, n: Value | None = None) -> list[Value]:
    """The lower middle of the numbers; a row without any gives NaN."""
    if x.dtype not in T.FLOATS or x.ndim == 0:
        return median(b, x, dim, keepdim, n)
    dim = dim % x.ndim
    values, indices = _sorted(b, x, dim)
    numbers = x.shape[dim] - _nan_count(b, x, dim)
    zero = b.constant(0, "i32", numbers.shape)
    at = b.maximum(numbers - 1, zero)
    at = b.binary("shift_right_arithmetic", at, b.constant(1, "i32", at.shape))
    pair = pick(b, values, at, dim), pick(b, indices.to("i32"), at, dim).to(indices.dtype)
    return _keep(b, pair, dim, keepdim)


for _name, _fn in (("median", median), ("nanmedian", nanmedian)):

    def _of_all(b, x, fn=_fn):
        if x.numel == 0:
            return b.constant(
                float("nan") if x.dtype in T.FLOATS else T.int_limits(x.dtype)[0], x.dtype
            )
        return fn(b, b.reshape(x, (x.numel,)), 0, False)[0]

    lowering(_name)(_of_all)
    lowering(f"{_name}.dim")(
        lambda b, x, dim, keepdim=False, fn=_fn: fn(b, x, dim, keepdim)  # no count to run it with
    )


@lowering("mode")
def _mode(b, x, dim=-1, keepdim=False):
    return mode(b, x, dim, keepdim)


def mode(b: Builder, x: Value, dim: int, keepdim: bool, n: Value | None = None) -> list[Value]:
    """The smallest of the most frequent values, at its last position."""
    if x.ndim == 0:
        return [x, b.constant(0, "i64")]
    dim = dim % x.ndim
    values, indices = _sorted(b, x, dim)
    place = b.iota("i32", x.shape, dim)
    before = b.concatenate(
        [b.slice_dim(values, dim, 0, 1), b.slice_dim(values, dim, 0, x.shape[dim] - 1)], dim
    )
    begins = b.compare(values, before, "NE") | place.eq(0)
    start = scan(b, b.select(begins, place, 0), dim, b.maximum, 0)
    length = place - start
    if n is not None:
        length = b.select(place < b.splat(n, place.shape), length, -1)
    # The first place where the longest run reaches its full length is that run's last element.
    _, at = extremum_index(b, length, dim, True, True)
    pair = pick(b, values, at, dim), pick(b, indices.to("i32"), at, dim).to(indices.dtype)
    return _keep(b, pair, dim, keepdim)
