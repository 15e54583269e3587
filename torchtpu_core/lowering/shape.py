"""Ops that move elements without computing: views as values, concatenation, padding, flips,
scatters into a slice, triangles.

On the device most views never get here (a view is read by the program that uses it, see
stablehlo/strided.py); in graphs and decompositions they are ordinary nodes. A value has no strides:
`as_strided` takes its input as contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.promotion import opmath, result_dtype
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value, strided
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand

#: beyond this many pieces a concatenation or sum of slices gives way to one gather or scatter
_MAX_PIECES = 32


def wrap(dim: int, ndim: int) -> int:
    """A dimension counted from the end made positive (0-d tensors have one dimension, as in
    PyTorch).
    """
    return dim % max(ndim, 1)


def infer_size(size: Sequence[int], numel: int) -> tuple[int, ...]:
    """A shape with its -1 filled in."""
    known = math.prod(s for s in size if s != -1)
    return tuple(numel // known if s == -1 else s for s in size)


def slice_bounds(n: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """(first, limit, count) of a Python slice with positive step over `n` elements."""
    lo, hi, _ = slice(start, end, step).indices(n)
    return lo, max(lo, hi), max(0, -(-(hi - lo) // step))


# ---- views ---------------------------------------------------------------------------------------


@lowering(
    "alias", "alias_copy", "clone", "detach", "detach_copy", "lift", "lift_fresh",
    "lift_fresh_copy", "contiguous", "prims::view_of", "prims::clone",
)  # fmt: skip
def _identity(b: Builder, x: Value) -> Value:
    return x


@lowering("prims::copy_strided", "prims::device_put")
def _identity_of_more(b: Builder, x: Value, *_) -> Value:
    return x


@lowering("view", "view_copy", "_unsafe_view", "reshape", "prims::reshape")
def _view(b: Builder, x: Value, size: Sequence[int]) -> Value:
    return b.reshape(x, infer_size(size, x.numel))


@lowering("_reshape_alias", "_reshape_alias_copy")
def _reshape_alias(b: Builder, x: Value, size: Sequence[int], stride: Sequence[int]) -> Value:
    return b.reshape(x, size)


@lowering("view.dtype", "view_copy.dtype", "prims::view_of_dtype")
def _view_dtype(b: Builder, x: Value, dtype) -> Value:
    return strided.recast(b, x, mlir(dtype))


@lowering("view_as_real")
def _view_as_real(b: Builder, x: Value) -> Value:
    return b.concatenate([b.unsqueeze(b.real(x), -1), b.unsqueeze(b.imag(x), -1)], -1)


@lowering("view_as_complex")
def _view_as_complex(b: Builder, x: Value) -> Value:
    re, im = (b.squeeze(b.slice_dim(x, -1, i, i + 1), [-1]) for i in range(2))
    return b.complex(re, im)


@lowering("_conj")
def _conj(b: Builder, x: Value) -> Value:
    return b.complex(b.real(x), -b.imag(x)) if x.dtype in T.COMPLEX else x


@lowering("_neg_view")
def _neg_view(b: Builder, x: Value) -> Value:
    return -x


@lowering("permute", "permute_copy", "prims::transpose")
def _permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, [wrap(d, x.ndim) for d in dims])


@lowering("transpose.int", "transpose_copy.int")
def _transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    perm = list(range(x.ndim))
    if perm:
        i, j = wrap(dim0, x.ndim), wrap(dim1, x.ndim)
        perm[i], perm[j] = perm[j], perm[i]
    return b.transpose(x, perm)


@lowering("t", "t_copy")
def _t(b: Builder, x: Value) -> Value:
    return b.transpose(x, range(x.ndim)[::-1])


@lowering("expand", "expand_copy")
def _expand(b: Builder, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    lead = len(size) - x.ndim
    return b.expand(x, [x.shape[i - lead] if s == -1 else s for i, s in enumerate(size)])


@lowering("prims::broadcast_in_dim")
def _broadcast_in_dim(b: Builder, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    return b.broadcast_in_dim(x, shape, dims)


@lowering(
    "squeeze",
    "squeeze_copy",
    "squeeze.dim",
    "squeeze_copy.dim",
    "squeeze.dims",
    "squeeze_copy.dims",
    "prims::squeeze",
)
def _squeeze(b: Builder, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    if dims is None:
        dims = range(x.ndim)
    drop = {wrap(d, x.ndim) for d in ([dims] if isinstance(dims, int) else dims)}
    return b.reshape(x, [n for i, n in enumerate(x.shape) if not (n == 1 and i in drop)])


@lowering("unsqueeze", "unsqueeze_copy")
def _unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    return b.unsqueeze(x, dim)


@lowering("prims::split_dim")
def _split_dim(b: Builder, x: Value, dim: int, outer: int) -> Value:
    inner = x.shape[dim] // outer if outer else 0
    return b.reshape(x, (*x.shape[:dim], outer, inner, *x.shape[dim + 1 :]))


@lowering("prims::collapse_view", "prims::collapse")
def _collapse(b: Builder, x: Value, start: int, end: int) -> Value:
    if not x.ndim:
        return b.reshape(x, (1,))
    merged = math.prod(x.shape[start : end + 1])
    return b.reshape(x, (*x.shape[:start], merged, *x.shape[end + 1 :]))


@lowering("select.int", "select_copy.int")
def _select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim = wrap(dim, x.ndim)
    index %= x.shape[dim]
    return b.squeeze(b.slice_dim(x, dim, index, index + 1), [dim])


@lowering("slice.Tensor", "slice_copy.Tensor")
def _slice(b: Builder, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    dim = wrap(dim, x.ndim)
    lo, hi, _ = slice_bounds(x.shape[dim], start, end, step)
    return b.slice_dim(x, dim, lo, hi, step)


def _pieces(b: Builder, x: Value, sizes: Sequence[int], dim: int) -> list[Value]:
    out, at = [], 0
    for n in sizes:
        out.append(b.slice_dim(x, dim, at, at + n))
        at += n
    return out


@lowering("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor")
def _split(b: Builder, x: Value, size: int, dim: int) -> list[Value]:
    n = x.shape[wrap(dim, x.ndim)]
    count = max(1, -(-n // size)) if size else 1
    return _pieces(b, x, [min(size, n - i * size) for i in range(count)] if size else [n], dim)


@lowering("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(b: Builder, x: Value, sizes: Sequence[int], dim: int) -> list[Value]:
    return _pieces(b, x, sizes, dim)


@lowering("unbind.int", "unbind_copy.int")
def _unbind(b: Builder, x: Value, dim: int) -> list[Value]:
    return [b.squeeze(p, [dim]) for p in _pieces(b, x, [1] * x.shape[wrap(dim, x.ndim)], dim)]


@lowering("as_strided", "as_strided_copy", "prims::as_strided")
def _as_strided(
    b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> Value:
    return strided.read(b, x, x.dtype, size, stride, offset or 0)


@lowering("as_strided_scatter", "prims::as_strided_scatter")
def _as_strided_scatter(
    b, x: Value, src: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
):
    return strided.write(b, x, x.dtype, x.shape, src, size, stride, offset or 0)


# ---- diagonals and triangles ---------------------------------------------------------------------


def _diagonal_walk(rows: int, cols: int, offset: int) -> tuple[int, int]:
    """(count, first) of a diagonal's elements in a row-major matrix, `cols + 1` apart."""
    if offset >= 0:
        return max(0, min(rows, cols - offset)), offset
    return max(0, min(rows + offset, cols)), -offset * cols


def _to_back(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    dims = [wrap(d, x.ndim) for d in dims]
    return b.transpose(x, [i for i in range(x.ndim) if i not in dims] + dims)


def _from_back(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """The last dimensions of `x` placed at `dims`."""
    dims = [wrap(d, x.ndim) for d in dims]
    order = [i for i in range(x.ndim) if i not in dims] + dims
    return b.transpose(x, [order.index(i) for i in range(x.ndim)])


@lowering("diagonal", "diagonal_copy")
def _diagonal(b: Builder, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    x = _to_back(b, x, [dim1, dim2])
    rows, cols = x.shape[-2:]
    count, first = _diagonal_walk(rows, cols, offset)
    flat = b.reshape(x, (*x.shape[:-2], rows * cols))
    if not count:
        return b.slice_dim(flat, -1, 0, 0)
    return b.slice_dim(flat, -1, first, first + (count - 1) * (cols + 1) + 1, cols + 1)


def _on_diagonal(b: Builder, x: Value, rows: int, cols: int, offset: int) -> Value:
    """A zero matrix with the last dimension of `x` on a diagonal."""
    count, first = _diagonal_walk(rows, cols, offset)
    if not x.numel:
        return b.constant(0, x.dtype, (*x.shape[:-1], rows, cols))
    zeros = [0] * (x.ndim - 1)
    last = first + (count - 1) * (cols + 1) + 1
    flat = b.pad(x, 0, [*zeros, first], [*zeros, rows * cols - last], [*zeros, cols])
    return b.reshape(flat, (*x.shape[:-1], rows, cols))


@lowering("diag_embed")
def _diag_embed(b: Builder, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    n = x.shape[-1] + abs(offset)
    return _from_back(b, _on_diagonal(b, x, n, n, offset), [dim1, dim2])


@lowering("diagonal_backward")
def _diagonal_backward(b, grad: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int):
    return _from_back(b, _on_diagonal(b, grad, sizes[dim1], sizes[dim2], offset), [dim1, dim2])


@lowering("diagonal_scatter")
def _diagonal_scatter(b: Builder, x: Value, src: Value, offset: int, dim1: int, dim2: int) -> Value:
    matrix = _to_back(b, x, [dim1, dim2])
    rows, cols = matrix.shape[-2:]
    new = b.select(
        _band(b, rows, cols, offset, "EQ"), _on_diagonal(b, src, rows, cols, offset), matrix
    )
    return _from_back(b, new, [dim1, dim2])


def _band(b: Builder, rows: int, cols: int, diagonal: int, direction: str) -> Value:
    """i1 matrix: column index `direction` row index + diagonal."""
    row = b.iota("i32", (rows, cols), 0)
    diagonal = max(-rows - 1, min(cols + 1, diagonal))
    return b.compare(b.iota("i32", (rows, cols), 1), row + diagonal if diagonal else row, direction)


@lowering("tril")
def _tril(b: Builder, x: Value, diagonal: int) -> Value:
    return b.select(_band(b, *x.shape[-2:], diagonal, "LE"), x, 0)


@lowering("triu")
def _triu(b: Builder, x: Value, diagonal: int) -> Value:
    return b.select(_band(b, *x.shape[-2:], diagonal, "GE"), x, 0)


# ---- joining and repeating -----------------------------------------------------------------------


def concatenate(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    """`torch.cat`: promoted to a common dtype; 1-d empty tensors do not count."""
    dtype = mlir(result_dtype(tensors))
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return b.concatenate([b.convert(x, dtype) for x in kept], dim)


@lowering("cat", "prims::cat")
def _cat(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    return concatenate(b, tensors, dim)


@lowering("stack", "_stack")
def _stack(b: Builder, tensors: Sequence[Value], dim: int) -> Value:
    return concatenate(b, [b.unsqueeze(x, dim) for x in tensors], dim)


@lowering("constant_pad_nd", runtime=("value",))
def _constant_pad_nd(b: Builder, x: Value, pad: Sequence[int], value: Operand) -> Value:
    lead = [0] * (x.ndim - len(pad) // 2)
    low, high = lead + list(pad[-2::-2]), lead + list(pad[::-2])
    return b.pad(x, value, low, high)


@lowering("flip", "prims::rev")
def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.reverse(x, dims) if x.ndim else x


@lowering("roll")
def _roll(b: Builder, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int]) -> Value:
    shifts, dims = ([v] if isinstance(v, int) else v for v in (shifts, dims))
    if not x.numel:
        return x
    if not dims:
        return b.reshape(_roll(b, b.reshape(x, (x.numel,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims):
        n = x.shape[dim]
        cut = -shift % n
        if cut:
            x = b.concatenate([b.slice_dim(x, dim, cut, n), b.slice_dim(x, dim, 0, cut)], dim)
    return x


@lowering("repeat")
def _repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    lead = len(repeats) - x.ndim
    sizes = [1] * lead + list(x.shape)
    shape = [n for pair in zip(repeats, sizes) for n in pair]
    x = b.broadcast_in_dim(x, shape, range(2 * lead + 1, 2 * len(sizes), 2))
    return b.reshape(x, [r * n for r, n in zip(repeats, sizes)])


@lowering("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(b: Builder, x: Value, groups: int) -> Value:
    n, c, *rest = x.shape
    split = b.reshape(x, (n, groups, c // groups, *rest))
    return b.reshape(b.transpose(split, (0, 2, 1, *range(3, split.ndim))), x.shape)


@lowering("pixel_shuffle")
def _pixel_shuffle(b: Builder, x: Value, r: int) -> Value:
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    x = b.transpose(b.reshape(x, (n, c // r**2, r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return b.reshape(x, (*lead, c // r**2, h * r, w * r))


@lowering("pixel_unshuffle")
def _pixel_unshuffle(b: Builder, x: Value, r: int) -> Value:
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    x = b.transpose(b.reshape(x, (n, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return b.reshape(x, (*lead, c * r**2, h // r, w // r))


# ---- into a slice, and back ----------------------------------------------------------------------


def _embed(b: Builder, x: Value, n: int, dim: int, start: int, step: int = 1) -> Value:
    """Zeros of size `n` along `dim` with `x` at `start::step`."""
    if not x.numel:
        return b.constant(0, x.dtype, (*x.shape[:dim], n, *x.shape[dim + 1 :]))
    low, high, gap = ([0] * x.ndim for _ in range(3))
    low[dim], gap[dim] = start, step - 1
    high[dim] = n - start - (x.shape[dim] - 1) * step - 1
    return b.pad(x, 0, low, high, gap)


@lowering("select_backward")
def _select_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    dim = wrap(dim, len(sizes))
    return _embed(b, b.unsqueeze(grad, dim), sizes[dim], dim, index % sizes[dim])


@lowering("slice_backward")
def _slice_backward(
    b: Builder, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    dim = wrap(dim, len(sizes))
    lo, _, _ = slice_bounds(sizes[dim], start, end, step)
    return _embed(b, grad, sizes[dim], dim, lo, step)


def _put(b: Builder, x: Value, src: Value, dim: int, start: int, step: int) -> Value:
    starts, steps = [0] * x.ndim, [1] * x.ndim
    starts[dim], steps[dim] = start, step
    return strided.write_box(b, x, b.convert(src, x.dtype), starts, steps)


@lowering("slice_scatter")
def _slice_scatter(
    b: Builder, x: Value, src: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    dim = wrap(dim, x.ndim)
    lo, _, count = slice_bounds(x.shape[dim], start, end, step)
    if not count or not x.numel:
        return x
    return _put(b, x, b.expand(src, (*x.shape[:dim], count, *x.shape[dim + 1 :])), dim, lo, step)


@lowering("select_scatter")
def _select_scatter(b: Builder, x: Value, src: Value, dim: int, index: int) -> Value:
    dim = wrap(dim, x.ndim)
    if not x.numel:
        return x
    row = b.expand(b.unsqueeze(src, dim), (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return _put(b, x, row, dim, index % x.shape[dim], 1)


@lowering("unfold", "unfold_copy")
def _unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    if not x.ndim:
        return b.reshape(b.slice_dim(b.reshape(x, (1,)), 0, 0, size), (size,))
    dim = wrap(dim, x.ndim)
    count = (x.shape[dim] - size) // step + 1
    # x as [before, n, after]; the windows end up as [before, count, after, size]
    before, after = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    if 0 in shape:
        return b.constant(0, x.dtype, shape)
    flat = b.reshape(x, (before, x.shape[dim], after))
    if size <= _MAX_PIECES and size > step:
        reach = (count - 1) * step + 1
        parts = [b.unsqueeze(b.slice_dim(flat, 1, k, k + reach, step), -1) for k in range(size)]
        return b.reshape(b.concatenate(parts, -1), shape)
    n = x.shape[dim]
    windows = strided.read(
        b, flat, x.dtype, (before, count, after, size), (n * after, step * after, 1, after), 0
    )
    return b.reshape(windows, shape)


@lowering("unfold_backward")
def _unfold_backward(
    b: Builder, grad: Value, sizes: Sequence[int], dim: int, size: int, step: int
) -> Value:
    if not sizes:
        return b.reshape(grad, ()) if size else b.constant(0, grad.dtype)
    dim = wrap(dim, len(sizes))
    n, count = sizes[dim], grad.shape[dim]
    if not grad.numel:
        return b.constant(0, grad.dtype, sizes)
    # as [before, count, size, after], so that windows and places in a window are neighbours
    before, after = math.prod(sizes[:dim]), math.prod(sizes[dim + 1 :])
    windows = b.moveaxis(b.convert(grad, opmath(grad.dtype)), -1, dim + 1)
    windows = b.reshape(windows, (before, count, size, after))
    return b.reshape(_overlap_add(b, windows, n, step), sizes)


def _overlap_add(b: Builder, windows: Value, n: int, step: int) -> Value:
    """[before, count, size, after] summed into [before, n, after]; window i starts at i * step."""
    before, count, size, after = windows.shape
    blocks = -(-size // step)
    if min(blocks, count) > _MAX_PIECES:
        place = b.iota("i32", (count, size), 0) * step + b.iota("i32", (count, size), 1)
        zeros = b.constant(0, windows.dtype, (before, n, after))
        index = b.unsqueeze(place, -1)
        return b.scatter([zeros], index, [windows], b.add, [0, 3], [1], [1], 2)[0]
    total = None
    if count <= blocks:
        for i in range(count):
            part = b.squeeze(b.slice_dim(windows, 1, i, i + 1), [1])
            part = _embed(b, part, n, 1, i * step)
            total = part if total is None else total + part
        return total
    # windows cut into blocks of `step`: block j of window i adds to block i + j of the result
    windows = b.pad(windows, 0, [0] * 4, [0, 0, blocks * step - size, 0])
    windows = b.reshape(windows, (before, count, blocks, step * after))
    for j in range(blocks):
        part = b.squeeze(b.slice_dim(windows, 2, j, j + 1), [2])
        part = _embed(b, part, count + blocks - 1, 1, j)
        total = part if total is None else total + part
    total = b.reshape(total, (before, (count + blocks - 1) * step, after))
    return b.pad(total, 0, [0, 0, 0], [0, n - total.shape[1], 0])
