"""Strided views over a base buffer: `read` gives a view's value, `write` the base after a write.

A base's row-major linearisation is the storage; a view is (dtype, sizes, strides, offset) in units
of its own dtype, strides not negative. Both functions try, in order: the base's own dimensions (a
slice and a transpose), a linear space split level by level along the view's strides (reshapes and
slices), and a gather or scatter with computed indices. Knows nothing of torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.builder import Builder, Value


class _Dim(NamedTuple):
    """A dimension of the view that walks the storage: its size, stride and position in the view."""

    size: int
    stride: int
    axis: int


class _Span(NamedTuple):
    """What a view takes of one base dimension: `size` elements from `start`, `step` apart.

    `axis` is the view's dimension that walks them, or -1.
    """

    start: int
    size: int
    step: int
    axis: int


# ---- what a view is ------------------------------------------------------------------------------


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The view's dimensions in storage order if it is dense without overlap, else None. Of a matrix
    that sizes of 1 follow, [O, I, 1, 1], these come first: a TPU tiles the last two dimensions, and
    a weight of a 1 x 1 convolution is else one row of a tile after another. (As physical_order in
    csrc/dispatch/transfer.cc.)
    """
    identity = tuple(range(len(sizes)))
    if 0 in sizes:
        return identity
    matrix = len(sizes) > 2 and max(sizes[2:]) == 1
    first = (*identity[2:], *identity[:2]) if matrix else identity
    for order in (first, tuple(sorted(identity, key=lambda i: -strides[i]))):
        expected = 1
        for i in reversed(order):
            if sizes[i] == 1:
                continue
            if strides[i] != expected:
                break
            expected *= sizes[i]
        else:
            return order
    return None


def _is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a view's elements are in memory in order, without gaps."""
    return all(n == 1 or s == d for n, s, d in zip(sizes, strides, contiguous_strides(sizes)))


def physical_dims(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dims of a base that holds a dense view exactly, or None for a view that is not dense."""
    order = dense_order(sizes, strides)
    return None if order is None else tuple(sizes[i] for i in order)


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """The row-major strides of a shape (sizes 0 count as 1, as in PyTorch)."""
    strides, step = [], 1
    for n in reversed(sizes):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def covers(
    base_itemsize: int,
    base_dims: Sequence[int],
    itemsize: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> bool:
    """Whether the view is the whole base, each byte once: a write through it needs nothing of the
    old one.
    """
    return (
        offset == 0
        and math.prod(base_dims) * base_itemsize == math.prod(sizes) * itemsize
        and dense_order(sizes, strides) is not None
    )


def extent(sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> int:
    """How many elements of storage the view needs (0 for an empty view)."""
    if 0 in sizes:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides))


def _walking(sizes: Sequence[int], strides: Sequence[int]) -> list[_Dim]:
    """The dimensions that move through storage, outermost first."""
    dims = [_Dim(n, s, i) for i, (n, s) in enumerate(zip(sizes, strides)) if n > 1 and s > 0]
    return sorted(dims, key=lambda d: -d.stride)


def _spans(base: Sequence[int], dims: Sequence[_Dim], offset: int) -> list[_Span] | None:
    """The view as one span of each base dimension, or None."""
    left = list(dims)
    spans = []
    stride = math.prod(base)
    for n in base:
        outer, stride = stride, stride // n
        start, offset = divmod(offset, stride)
        if start >= n:
            return None
        if left and n > 1 and stride <= left[0].stride < outer:
            d = left.pop(0)
            step = d.stride // stride
            if d.stride % stride or start + (d.size - 1) * step >= n:
                return None
            spans.append(_Span(start, d.size, step, d.axis))
        else:
            spans.append(_Span(start, 1, 1, -1))
    return None if left else spans


def _nests(dims: Sequence[_Dim]) -> bool:
    """Whether everything inside a dimension fits into its stride (so nothing overlaps)."""
    inner = 0
    for d in reversed(dims):
        if inner >= d.stride:
            return False
        inner += (d.size - 1) * d.stride
    return True


# ---- bits ----------------------------------------------------------------------------------------


def recast(b: Builder, x: Value, dtype: str) -> Value:
    """The same storage as elements of `dtype`; an incomplete last element is padded with zeros."""
    if x.dtype == dtype:
        return x
    if x.dtype == "i1":
        return recast(b, b.convert(x, "ui8"), dtype)
    if dtype == "i1":
        return b.convert(recast(b, x, "ui8"), "i1")
    if x.dtype in T.COMPLEX:
        parts = b.concatenate([b.unsqueeze(b.real(x), -1), b.unsqueeze(b.imag(x), -1)], -1)
        return recast(b, _merge_last(b, parts), dtype)
    if dtype in T.COMPLEX:
        x = _group_last(b, recast(b, x, T.real_of(dtype)), 2)
        re, im = (b.squeeze(b.slice_dim(x, -1, i, i + 1), [-1]) for i in range(2))
        return b.complex(re, im)
    src, dst = T.ITEMSIZE[x.dtype], T.ITEMSIZE[dtype]
    if src < dst:
        return b.bitcast(_group_last(b, x, dst // src), dtype)
    x = b.bitcast(x, dtype)
    return _merge_last(b, x) if src > dst else x


def _merge_last(b: Builder, x: Value) -> Value:
    return b.reshape(x, (*x.shape[:-2], math.prod(x.shape[-2:])))


def _group_last(b: Builder, x: Value, k: int) -> Value:
    if not x.ndim or x.shape[-1] % k:
        x = _resize(b, b.reshape(x, (x.numel,)), 0, -(-x.numel // k) * k)
    return b.reshape(x, (*x.shape[:-1], x.shape[-1] // k, k))


def _resize(b: Builder, x: Value, lo: int, hi: int) -> Value:
    """x[..., lo:hi], zeros beyond the end."""
    n = x.shape[-1]
    x = b.slice_dim(x, -1, lo, min(hi, n))
    if hi <= n:
        return x
    zeros = [0] * x.ndim
    return b.pad(x, 0, zeros, [*zeros[:-1], hi - n])


# ---- reading -------------------------------------------------------------------------------------


def read(
    b: Builder,
    base: Value,
    dtype: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> Value:
    """The logical value of a view."""
    sizes = tuple(sizes)
    if 0 in sizes:
        return b.constant(0, dtype, sizes)
    x = recast(b, base, dtype)
    _check(x.numel, sizes, strides, offset)
    dims = _walking(sizes, strides)
    if x.numel == math.prod(sizes) and _is_row_major(sizes, strides):
        return b.reshape(x, sizes)
    spans = _spans(x.shape, dims, offset)
    if spans is not None:
        x = b.slice(
            x,
            [s.start for s in spans],
            [s.start + (s.size - 1) * s.step + 1 for s in spans],
            [s.step for s in spans],
        )
        x = b.reshape(x, [s.size for s in spans if s.axis >= 0])
    elif _nests(dims):
        x = _read_linear(b, x, dims, offset)
    else:
        x = _gather(b, x, dims, offset)
    out = _spread(b, x, dims, sizes)
    out.row_major = _is_row_major(sizes, strides)
    return out


def _check(numel: int, sizes: Sequence[int], strides: Sequence[int], offset: int) -> None:
    if extent(sizes, strides, offset) > numel or offset < 0 or any(s < 0 for s in strides):
        raise ValueError(
            f"view of sizes {tuple(sizes)}, strides {tuple(strides)}, offset {offset} "
            f"exceeds its base of {numel} elements"
        )


def _spread(b: Builder, x: Value, dims: Sequence[_Dim], sizes: tuple[int, ...]) -> Value:
    """From the walking dimensions in storage order to the view's: transposed, expanded."""
    x = b.transpose(x, sorted(range(len(dims)), key=lambda i: dims[i].axis))
    if x.numel == math.prod(sizes):
        return b.reshape(x, sizes)
    return b.broadcast_in_dim(x, sizes, sorted(d.axis for d in dims))


def _level(dims: Sequence[_Dim], offset: int, length: int) -> tuple[int, int, int]:
    """(start, limit, offset within a row) of the rows that the outermost dimension walks."""
    first = dims[0]
    inner = sum((d.size - 1) * d.stride for d in dims[1:])
    within = offset % first.stride
    if within + inner >= first.stride:
        within = 0
    start = offset - within
    return start, start + first.size * first.stride, within


def _read_linear(b: Builder, x: Value, dims: Sequence[_Dim], offset: int) -> Value:
    """Splits the linear space by one stride after another; reshapes only where it slices."""
    shape: list[int] = [x.numel]  # what `x` is to be seen as, its last entry still linear

    def cut(lo: int, hi: int, step: int = 1) -> None:
        nonlocal x
        if (lo, hi, step) == (0, shape[-1], 1):
            return
        x = b.reshape(x, shape)
        x = _resize(b, x, lo, hi) if step == 1 else b.slice_dim(x, -1, lo, hi, step)
        shape[-1] = x.shape[-1]

    dims = list(dims)
    # A wide last stride is a column of rows; a narrow one is left to a strided slice.
    while len(dims) > 1 or (dims and dims[0].stride >= 8):
        lo, hi, offset = _level(dims, offset, shape[-1])
        cut(lo, hi)
        shape[-1:] = [dims[0].size, dims[0].stride]
        dims.pop(0)
    if dims:
        n, s, _ = dims[0]
        cut(offset, offset + (n - 1) * s + 1, s)
    else:
        cut(offset, offset + 1)
        shape.pop()
    return b.reshape(x, shape)


def _indices(b: Builder, dims: Sequence[_Dim], offset: int, numel: int) -> Value:
    """Storage index of every element, in an integer type that holds `numel`."""
    dtype = "i32" if numel < 2**31 else "i64"
    shape = [d.size for d in dims]
    total = b.constant(offset, dtype, shape)
    for i, d in enumerate(dims):
        walk = b.iota(dtype, shape, i)
        total = total + (walk * d.stride if d.stride != 1 else walk)
    return total


def _gather(b: Builder, x: Value, dims: Sequence[_Dim], offset: int) -> Value:
    x = b.reshape(x, (x.numel,))
    window = 1
    if dims[-1].stride == 1:  # whole runs at a time
        window = dims[-1].size
        dims = dims[:-1]
    index = b.unsqueeze(_indices(b, dims, offset, x.numel), -1)
    shape, n = [d.size for d in dims], len(dims)
    if window > 1:
        return b.gather(x, index, [*shape, window], [n], [], [0], [window], n)
    return b.gather(x, index, shape, [], [0], [0], [1], n)


# ---- writing -------------------------------------------------------------------------------------


def write(
    b: Builder,
    base: Value | None,
    base_dtype: str,
    base_dims: Sequence[int],
    value: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> Value:
    """The base after `value` (of the view's dtype and sizes) was written through the view.

    Without a `base` what is not covered is zero. Where a view overlaps itself, one of the values
    written stays.
    """
    base_dims = tuple(base_dims)
    numel = math.prod(base_dims)
    if 0 in sizes:
        return base if base is not None else b.constant(0, base_dtype, base_dims)
    dims = _walking(sizes, strides)
    value = _gather_up(b, value, dims)
    if value.dtype == "i1" != base_dtype:
        value = b.convert(value, "ui8")  # so that bytes other than 0 and 1 next to it survive
    room = numel * T.ITEMSIZE[base_dtype] // T.ITEMSIZE[value.dtype]
    if room * T.ITEMSIZE[value.dtype] < numel * T.ITEMSIZE[base_dtype]:
        room += 1
    _check(room, sizes, strides, offset)
    if value.numel == room and _nests(dims):
        new = value  # dense, so in storage order it is the storage
    else:
        if base is None:
            base = b.constant(0, base_dtype, base_dims)
        x = recast(b, base, value.dtype)
        new = _write_into(b, x, value, dims, offset)
    new = recast(b, new, base_dtype)
    if new.numel != numel:
        new = b.slice_dim(b.reshape(new, (new.numel,)), 0, 0, numel)
    return b.reshape(new, base_dims)


def _gather_up(b: Builder, value: Value, dims: Sequence[_Dim]) -> Value:
    """The value's walking dimensions in storage order; of repeated elements, the first."""
    walking = {d.axis for d in dims}
    limit = [n if i in walking else 1 for i, n in enumerate(value.shape)]
    value = b.slice(value, [0] * value.ndim, limit)
    value = b.reshape(value, [n for i, n in enumerate(limit) if i in walking])
    return b.transpose(value, [sorted(walking).index(d.axis) for d in dims])


def _write_into(b: Builder, x: Value, value: Value, dims: Sequence[_Dim], offset: int) -> Value:
    spans = _spans(x.shape, dims, offset)
    if spans is not None:
        value = b.reshape(value, [s.size for s in spans])
        return write_box(b, x, value, [s.start for s in spans], [s.step for s in spans])
    if _nests(dims):
        return _write_linear(b, b.reshape(x, (x.numel,)), value, dims, offset)
    index = b.unsqueeze(_indices(b, dims, offset, x.numel), -1)
    flat = b.reshape(x, (x.numel,))
    return b.scatter([flat], index, [value], lambda old, new: new, [], [0], [0], len(dims))[0]


def write_box(
    b: Builder, x: Value, value: Value, starts: Sequence[int], steps: Sequence[int]
) -> Value:
    """`x` with `x[start::step, ..]`, as far as `value` reaches, replaced by `value`."""
    if value.shape == x.shape:
        return value
    if all(s == 1 for s in steps):
        at = [b.constant(s, "i32" if s < 2**31 else "i64") for s in starts]
        return b.dynamic_update_slice(x, value, at)
    # the value spread out with gaps, and a mask of where it counts
    ends = [lo + (n - 1) * step + 1 for lo, n, step in zip(starts, value.shape, steps)]
    high = [n - end for n, end in zip(x.shape, ends)]
    spread = b.pad(value, 0, starts, high, [s - 1 for s in steps])
    mask = None
    for i, (n, lo, end, step) in enumerate(zip(x.shape, starts, ends, steps)):
        if (lo, end, step) == (0, n, 1):
            continue
        at = b.iota("i32" if n < 2**31 else "i64", (n,)) - lo
        hit = (at >= 0) & (at < end - lo)
        if step > 1:
            hit = hit & b.remainder(*b.broadcast(at, step)).eq(0)
        hit = b.broadcast_in_dim(hit, x.shape, [i])
        mask = hit if mask is None else mask & hit
    return spread if mask is None else b.select(mask, spread, x)


def _write_linear(b: Builder, x: Value, value: Value, dims: Sequence[_Dim], offset: int) -> Value:
    """Writes along the last (linear) dimension of `x`; the leading ones are those of `value`."""
    lead, length = x.shape[:-1], x.shape[-1]
    starts = [0] * len(lead)
    if len(dims) <= 1:
        n, s = (dims[0].size, dims[0].stride) if dims else (1, 1)
        value = b.reshape(value, (*lead, n))
        return write_box(b, x, value, [*starts, offset], [*(1 for _ in lead), s])
    lo, hi, within = _level(dims, offset, length)
    end = min(hi, length)
    if math.prod(d.size for d in dims[1:]) == dims[0].stride:
        rows = value
    else:
        rows = b.reshape(_resize(b, x, lo, hi), (*lead, dims[0].size, dims[0].stride))
        rows = _write_linear(b, rows, value, dims[1:], within)
    rows = b.slice_dim(b.reshape(rows, (*lead, hi - lo)), -1, 0, end - lo)
    return write_box(b, x, rows, [*starts, lo], [1] * x.ndim)
