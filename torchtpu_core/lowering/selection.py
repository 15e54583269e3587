"""Results whose size is data: nonzero, masked_select, x[mask], unique.

One program for each shape of the arguments computes the result at its bound, as if everything were
selected, and how much of it counts (registry.Bounded). The dispatcher reads that number, and the
rest of the buffer is padding (csrc/device/storage.h), so that no number of selected elements needs
a program of its own. On XLA's CPU such a program takes as long as the CPU's kernel and the copies
there and back, within a factor of two from 10^3 to 10^7 elements. Its sorts take three to fifteen
times as long, so there `unique` is the host's from `_SORT_ON_HOST` elements on.
"""

from __future__ import annotations

from torchtpu_core import plugin
from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.host import OnHost
from torchtpu_core.lowering.indexing import (
    compress,
    coordinates,
    overwrite,
    places,
    put_rows,
    take,
)
from torchtpu_core.lowering.registry import Bounded, lowering
from torchtpu_core.lowering.sorting import before, search, sort_values_indices
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T

#: a result whose bound is larger than this, and than `_MULTIPLE` times the arguments, is the host's
_LARGE = 1 << 28
_MULTIPLE = 32
#: elements from which the CPU's kernel is faster by far than XLA's sort on the CPU
_SORT_ON_HOST = 1 << 12
#: rows of more columns than this are sorted by the host
_COLUMNS = 16


def _check_bound(bound: int, *arguments: Value) -> None:
    """Sends a call to the host whose result would take `bound` bytes where all is selected, out of
    proportion to its arguments.
    """
    given = sum(x.numel * T.ITEMSIZE[x.dtype] for x in arguments)
    if bound > max(_LARGE, _MULTIPLE * given):
        raise OnHost(f"up to {bound} bytes of results")


def _count(b: Builder, mask: Value) -> Value:
    return b.reduce_op("add", mask.to("i32"), range(mask.ndim))


def _flat(b: Builder, x: Value) -> Value:
    return b.reshape(x, (x.numel,))


def _selected(b: Builder, mask: Value) -> Value:
    """The places of the true elements of a flat mask, in order, then zeros: i32."""
    return compress(b, b.iota("i32", mask.shape), mask, mask.numel, 0)


@lowering("nonzero")
def _nonzero(b, x):
    mask = _flat(b, x.to("i1"))
    _check_bound(8 * x.numel * x.ndim, x)
    count = _count(b, mask)
    if x.ndim == 0:
        return Bounded(b.constant(0, "i64", (1, 0)), count)
    columns = coordinates(b, _selected(b, mask), x.shape)
    at = b.concatenate([b.unsqueeze(c.to("i64"), 1) for c in columns], 1)
    return Bounded(at, count, order=(1, 0))


@lowering("masked_select")
def _masked_select(b, x, mask):
    if mask.dtype != "i1":
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    given = (x, mask)
    x, mask = (_flat(b, v) for v in b.broadcast(x, mask))
    _check_bound(x.numel * T.ITEMSIZE[x.dtype], *given)
    return Bounded(compress(b, x, mask, x.numel, 0), _count(b, mask))


def select_rows(b: Builder, x: Value, mask: Value, dim: int) -> Bounded:
    """x[.., mask, ..] with the first dimension of the mask at `dim`: the dimensions that the mask
    has become one.
    """
    end = dim + mask.ndim
    mask = _flat(b, mask.to("i1"))
    x = b.reshape(x, (*x.shape[:dim], mask.numel, *x.shape[end:]))
    count = _count(b, mask)
    if x.ndim == 1:
        return Bounded(compress(b, x, mask, x.numel, 0), count)
    return Bounded(take(b, x, _selected(b, mask), dim), count, dim)


# ---- unique --------------------------------------------------------------------------------------


def _runs(
    b: Builder, begins: Value, wanted: tuple[bool, bool], source: Value | None = None
) -> tuple[Value, Value, Value, Bounded | Value]:
    """Of rows in runs of equal ones, `begins` being true at the first of each: (their number, where
    each begins, for each row the run that it is in, how long each is). The last two are empty
    unless `wanted`; `source` says which row each was before it was sorted.
    """
    n = begins.numel
    count = _count(b, begins)
    starts = _selected(b, begins)
    inverse = lengths = b.constant(0, "i64", (0,))
    if wanted[0]:
        inverse = places(b, begins)
        if source is not None:
            inverse = put_rows(b, b.constant(0, "i32", (n,)), source, inverse, 0, overwrite)
    if wanted[1]:
        after = compress(b, b.iota("i32", (n,)), begins, n + 1, n)
        lengths = b.slice_dim(after, 0, 1, n + 1) - b.slice_dim(after, 0, 0, n)
        lengths = Bounded(lengths.to("i64"), count)
    return count, starts, inverse.to("i64"), lengths


def _begins(b: Builder, rows: list[Value]) -> Value:
    """Whether each row (one vector a column) differs from the one before it."""
    (n,) = rows[0].shape
    first = b.iota("i32", (n,), 0).eq(0)
    for x in rows:
        last = b.concatenate([b.slice_dim(x, 0, 0, 1), b.slice_dim(x, 0, 0, n - 1)], 0)
        first = first | b.compare(x, last, "NE")
    return first


def _check_sort(x: Value) -> None:
    if x.dtype in T.COMPLEX or x.numel == 0:
        raise OnHost("no order, or nothing to sort")  # the CPU's kernel has the error, or the edge
    if x.numel >= _SORT_ON_HOST and plugin.find().platform == "cpu":
        raise OnHost("a sort that is slow")


def _unique_flat(b: Builder, x: Value, wanted: tuple[bool, bool]) -> list[Value | Bounded]:
    _check_sort(x)
    values, source = sort_values_indices(b, _flat(b, x), 0)
    begins = _begins(b, [values])
    count, _, inverse, lengths = _runs(b, begins, wanted, source.to("i32"))
    unique = compress(b, values, begins, x.numel, 0)
    if wanted[0]:
        inverse = b.reshape(inverse, x.shape)
    return [Bounded(unique, count), inverse, lengths]


@lowering("_unique")
def _unique(b, x, sorted=True, return_inverse=False):
    return _unique_flat(b, x, (return_inverse, False))[:2]


@lowering("_unique2")
def _unique2(b, x, sorted=True, return_inverse=False, return_counts=False):
    return _unique_flat(b, x, (return_inverse, return_counts))


@lowering("unique_dim")
def _unique_dim(b, x, dim, sorted=True, return_inverse=False, return_counts=False):
    _check_sort(x)
    dim = dim % max(x.ndim, 1)
    columns = _columns(b, x, dim)
    if len(columns) > _COLUMNS:
        raise OnHost("many columns to sort by")
    index = b.iota("i32", columns[0].shape, 0)

    def less(*pairs: Value) -> Value:
        """In the order of the first column that differs; the last pair is that of the index."""
        found = b.constant(False, "i1")
        for v, w in reversed(list(zip(pairs[:-2:2], pairs[1:-2:2]))):
            found = before(b, v, w, False) | (~before(b, w, v, False) & found)
        return found

    *columns, source = b.sort([*columns, index], 0, less)
    count, starts, inverse, lengths = _runs(b, _begins(b, columns), (True, True), source)
    return [_rows(b, x, take(b, source, starts, 0), dim, count), inverse, lengths]


def _rows(b: Builder, x: Value, at: Value, dim: int, count: Value) -> Bounded:
    """`x` at `at` along `dim`, which is the slowest in memory, as on the CPU."""
    order = (dim, *(d for d in range(x.ndim) if d != dim))
    return Bounded(take(b, x, at, dim), count, dim, order)


def _columns(b: Builder, x: Value, dim: int) -> list[Value]:
    """The slices of `x` along `dim` as rows, one vector for each of their elements."""
    n = x.shape[dim]
    rows = b.reshape(b.moveaxis(x, dim, 0), (n, x.numel // n))
    return [b.reshape(b.slice_dim(rows, 1, i, i + 1), (n,)) for i in range(rows.shape[1])]


@lowering("unique_consecutive")
def _unique_consecutive(b, x, return_inverse=False, return_counts=False, dim=None):
    if dim is not None:
        return _unique_dim_consecutive(b, x, dim)
    if x.numel == 0:
        raise OnHost("nothing to compare")
    flat = _flat(b, x)
    begins = _begins(b, [flat])
    count, _, inverse, lengths = _runs(b, begins, (return_inverse, return_counts))
    if return_inverse:
        inverse = b.reshape(inverse, x.shape)
    return [Bounded(compress(b, flat, begins, x.numel, 0), count), inverse, lengths]


@lowering("unique_dim_consecutive")
def _unique_dim_consecutive(b, x, dim, return_inverse=False, return_counts=False):
    if x.numel == 0 or x.ndim == 0:
        raise OnHost("nothing to compare")
    dim = dim % x.ndim
    n = x.shape[dim]
    last = b.concatenate([b.slice_dim(x, dim, 0, 1), b.slice_dim(x, dim, 0, n - 1)], dim)
    differs = b.compare(x, last, "NE")
    others = [d for d in range(x.ndim) if d != dim]
    begins = b.reduce_op("or", differs, others) | b.iota("i32", (n,), 0).eq(0)
    count, starts, inverse, lengths = _runs(b, begins, (True, True))
    return [_rows(b, x, starts, dim, count), inverse, lengths]


# ---- repeats -------------------------------------------------------------------------------------


@lowering("repeat_interleave.Tensor")
def _repeat_interleave(b, repeats, *, output_size=None):
    """i repeats[i] times, for each i. The dispatcher reads a size that is not given (hooks.cc)."""
    if output_size is None:
        raise NotImplementedError("repeat_interleave without output_size: its size is data")
    if repeats.numel == 0 or output_size == 0:
        return b.constant(0, repeats.dtype, (output_size,))
    wide = "i32" if max(output_size, repeats.numel) < 1 << 31 else "i64"
    ends = cumulative_sum(b, repeats.to(wide), 0)
    at = search(b, ends, b.iota(wide, (output_size,), 0), True)
    return b.minimum(at, b.constant(repeats.numel - 1, "i32", at.shape))
