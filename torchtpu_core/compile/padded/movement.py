"""Rules of ops that move elements: views, expansion, slices, concatenation, flips, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from torchtpu_core.compile.padded.layout import (
    ONE,
    Dim,
    Padded,
    fixed,
    is_padded,
    joined,
    room,
    size,
)
from torchtpu_core.compile.padded.sizes import Inexact, is_open
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.indexing import take
from torchtpu_core.stablehlo import Value

_INT64_MAX = 2**63 - 1


def axis(x: Padded, dim: int) -> int:
    """`dim` counted from the front."""
    return dim % x.ndim if x.ndim else 0


# ---- views ---------------------------------------------------------------------------------------


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy")
def _view(w: Walk, node, x, *_, **__):
    return w.layouts.reshaped(x, w.shape(node))


@rule("expand", "expand_copy")
def _expand(w: Walk, node, x, *_, **__):
    return expanded(w, x, w.shape(node))


def expanded(w: Walk, x: Any, sizes: Sequence[sympy.Basic]) -> Any:
    """`x` broadcast to `sizes`."""
    x = w.layouts.of(x)
    lead = len(sizes) - x.ndim
    own = [ONE] * lead + list(x.dims)
    dims = [w.layouts.prefix(n) if size(p) == 1 and n != 1 else p for p, n in zip(own, sizes)]
    return w.layouts.result(w.b.expand(x.value, list(map(room, dims))), dims)


@rule("permute", "permute_copy")
def _permute(w: Walk, node, x, order):
    x = w.layouts.of(x)
    order = [d % x.ndim for d in order]
    return w.layouts.result(w.b.transpose(x.value, order), [x.dims[d] for d in order])


@rule("transpose.int", "transpose_copy.int")
def _transpose(w: Walk, node, x, d0, d1):
    order = list(range(len(w.dims(x))))
    if order:
        order[d0], order[d1] = order[d1], order[d0]
    return _permute(w, node, x, order)


@rule("t", "t_copy", "numpy_T", "mT", "mH")
def _t(w: Walk, node, x):
    return x if len(w.dims(x)) < 2 else _transpose(w, node, x, -2, -1)


@rule("unsqueeze", "unsqueeze_copy")
def _unsqueeze(w: Walk, node, x, dim):
    x = w.layouts.of(x)
    dim = dim % (x.ndim + 1)
    return w.layouts.result(w.b.unsqueeze(x.value, dim), [*x.dims[:dim], ONE, *x.dims[dim:]])


@rule("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy", "squeeze_copy.dims")
def _squeeze(w: Walk, node, x, dim=None):
    x = w.layouts.of(x)
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    drop = [d for d in {axis(x, d) for d in dims} if x.ndim and size(x.dims[d]) == 1]
    return _without(w, x, drop)


def _without(w: Walk, x: Padded, drop: Sequence[int]) -> Any:
    kept = [p for d, p in enumerate(x.dims) if d not in drop]
    return w.layouts.result(w.b.reshape(x.value, list(map(room, kept))), kept)


@rule("view_as_real", "view_as_complex", "view_as_real_copy", "view_as_complex_copy")
def _view_parts(w: Walk, node, x):
    real = node.meta["val"].ndim > len(w.dims(x))
    dims = [*w.dims(x), fixed(2)] if real else w.dims(x)[:-1]
    return w.result(node, w.lower(node.target, x.value), dims)


# ---- slices --------------------------------------------------------------------------------------


def window(w: Walk, x: Padded, dim: int, start: Any, n: sympy.Basic, step: int = 1) -> Padded:
    """`n` elements of `x` along `dim` from `start`, a size, `step` apart."""
    b, start = w.b, sympy.sympify(start)
    x = w.layouts.plain(x, [dim])
    out = w.layouts.prefix(n)
    v, got = x.value, room(out)
    dims = (*x.dims[:dim], out, *x.dims[dim + 1 :])
    if got == 0:
        shape = list(map(room, dims))
        return Padded(b.constant(0, v.dtype, shape), dims)
    if start.is_Integer:
        lo = min(int(start), v.shape[dim])
        hi = min(lo + (got - 1) * step + 1, v.shape[dim])
        v = b.slice_dim(v, dim, lo, hi, step)
        return Padded(w.layouts.resized(v, dim, got), dims)
    at = w.sizes.count(start)
    if step == 1:
        v = w.layouts.resized(v, dim, v.shape[dim] + got)
        zero = b.constant(0, "i32")
        starts = [at if d == dim else zero for d in range(v.ndim)]
        sizes = [got if d == dim else s for d, s in enumerate(v.shape)]
        return Padded(b.dynamic_slice(v, starts, sizes), dims)
    index = b.iota("i32", (got,)) * step + b.splat(at, (got,))
    return Padded(take(b, v, index, dim), dims)


def start_of(n: sympy.Basic, start: Any) -> sympy.Basic:
    """Where a slice of `n` elements begins, as Python reads `start`."""
    start = sympy.sympify(0 if start is None else start)
    if start.is_nonnegative:
        return start if start == 0 else sympy.Min(start, n) if not is_open(n) else start
    if (-start).is_nonnegative:
        return sympy.Max(n + start, 0)
    raise Inexact(f"a slice from {start}")


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(w: Walk, node, x, dim=0, start=None, end=None, step=1):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    n = w.shape(node)[dim]
    if n == size(x.dims[dim]) and step == 1:
        return w.layouts.result(x.value, x.dims)
    out = window(w, x, dim, start_of(size(x.dims[dim]), start), n, step)
    return w.layouts.result(out.value, out.dims)


def place_of(n: sympy.Basic, index: Any) -> sympy.Basic:
    """The place of an element among `n`, negative indices counted from the end."""
    index = sympy.sympify(index)
    if index.is_nonnegative:
        return index
    if index.is_negative:
        return n + index
    raise Inexact(f"the index {index}")


@rule("select.int", "select_copy.int")
def _select(w: Walk, node, x, dim, index):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    one = window(w, x, dim, place_of(size(x.dims[dim]), index), sympy.Integer(1))
    return _without(w, one, [dim])


@rule("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "unsafe_split_with_sizes")
@rule("split_copy.Tensor", "split_with_sizes_copy")
def _split(w: Walk, node, x, _, dim=0):
    x = w.layouts.of(x)
    dim, start, parts = axis(x, dim), sympy.Integer(0), []
    for i in range(len(node.meta["val"])):
        n = w.shape(node, i)[dim]
        part = window(w, x, dim, start, n)
        parts.append(w.layouts.result(part.value, part.dims))
        start = start + n
    return parts


@rule("unbind.int", "unbind_copy.int")
def _unbind(w: Walk, node, x, dim=0):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    parts = (window(w, x, dim, i, sympy.Integer(1)) for i in range(len(node.meta["val"])))
    return [_without(w, part, [dim]) for part in parts]


# ---- writes into slices --------------------------------------------------------------------------


@rule("slice_scatter")
def _slice_scatter(w: Walk, node, x, src, dim=0, start=None, end=None, step=1):
    b, dims = w.b, w.layouts.common(w.shape(node), [x])
    dim = dim % len(dims)
    dims[dim] = w.layouts.prefix(size(dims[dim]))
    src = w.layouts.of(src)
    own = [src.dims[d] if d == dim else p for d, p in enumerate(dims)]
    src = w.layouts.plain(w.layouts.as_(src, own), [dim])
    old = w.layouts.aligned(x, dims)
    n = old.shape[dim]
    begin = w.sizes.count(start_of(size(dims[dim]), start))
    at = b.iota("i32", (n,)) - b.splat(begin, (n,))
    reach = b.splat(w.sizes.count(size(src.dims[dim])), (n,))
    hit = (at >= 0) & (at < reach * step)
    if step != 1:
        hit = hit & b.remainder(at, b.constant(step, "i32", (n,))).eq(0)
        at = at / step
    if room(src.dims[dim]) == 0:
        return w.layouts.result(old, dims)
    new = take(b, src.value, b.maximum(at, b.constant(0, "i32", (n,))), dim)
    hit = b.broadcast_in_dim(hit, old.shape, [dim])
    return w.layouts.result(b.select(hit, new.to(old.dtype), old), dims)


@rule("select_scatter")
def _select_scatter(w: Walk, node, x, src, dim, index):
    b, dims = w.b, w.layouts.common(w.shape(node), [x])
    dim = dim % len(dims)
    dims[dim] = w.layouts.prefix(size(dims[dim]))
    old = w.layouts.aligned(x, dims)
    new = w.layouts.aligned(src, [p for d, p in enumerate(dims) if d != dim])
    place = w.sizes.count(place_of(size(dims[dim]), index))
    hit = b.iota("i32", old.shape, dim).eq(b.splat(place, old.shape))
    return w.layouts.result(b.select(hit, b.unsqueeze(new.to(old.dtype), dim), old), dims)


# ---- concatenation -------------------------------------------------------------------------------


@rule("cat")
def _cat(w: Walk, node, tensors, dim=0):
    tensors = [t for t in tensors if w.layouts.of(t).shape != (0,)]
    return _concatenated(w, node, tensors, dim)


@rule("stack")
def _stack(w: Walk, node, tensors, dim=0):
    dim = dim % node.meta["val"].ndim
    return _concatenated(w, node, [_unsqueeze(w, node, t, dim) for t in tensors], dim)


def _concatenated(w: Walk, node, tensors: Sequence[Any], dim: int) -> Any:
    b, sizes, dtype = w.b, w.shape(node), mlir(node.meta["val"].dtype)
    dim = dim % len(sizes)
    common = w.layouts.common(sizes, tensors)
    parts: list[Padded] = []
    for t in tensors:
        t = w.layouts.plain(w.layouts.of(t), [dim])
        own = [p if d == dim else q for d, (p, q) in enumerate(zip(t.dims, common))]
        parts.append(w.layouts.as_(t, own))
    values = [p.value.to(dtype) for p in parts]
    out = w.layouts.prefix(sizes[dim])
    if not any(is_padded(p.dims[dim]) for p in parts[:-1]):
        whole = b.concatenate(values, dim)
    else:
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        whole, at, zero = b.constant(0, dtype, shape), sympy.Integer(0), b.constant(0, "i32")
        for p, v in zip(parts, values):  # each one covers the padding of the one before
            place = w.sizes.count(at)
            starts = [place if d == dim else zero for d in range(v.ndim)]
            whole = b.dynamic_update_slice(whole, v, starts)
            at = at + size(p.dims[dim])
    dims = [out if d == dim else p for d, p in enumerate(common)]
    return w.layouts.result(w.layouts.resized(whole, dim, room(out)), dims)


@rule("repeat")
def _repeat(w: Walk, node, x, repeats):
    x = w.layouts.of(x)
    own = [ONE] * (len(repeats) - x.ndim) + list(x.dims)
    counts = [w.layouts.prefix(n) for n in repeats]
    split = [room(p) for pair in zip(counts, own) for p in pair]
    v = w.b.reshape(x.value, [n for p in own for n in (1, room(p))])
    v = w.b.expand(v, split)
    dims = [joined([*count, *p]) for count, p in zip(counts, own)]
    return w.layouts.result(w.b.reshape(v, list(map(room, dims))), dims)


# ---- reordering ----------------------------------------------------------------------------------


@rule("flip")
def _flip(w: Walk, node, x, dims):
    x = w.layouts.of(x)
    dims = [axis(x, d) for d in dims]
    x = w.layouts.plain(x, dims)
    v = w.b.reverse(x.value, dims)
    for d in dims:
        if is_padded(x.dims[d]):  # the padding came first
            before = room(x.dims[d]) - size(x.dims[d])
            v = window(w, w.layouts.of(v), d, before, sympy.Integer(v.shape[d])).value
    return w.layouts.result(v, x.dims)


@rule("roll")
def _roll(w: Walk, node, x, shifts, dims=()):
    b, x = w.b, w.layouts.of(x)
    shifts = [shifts] if not isinstance(shifts, (list, tuple)) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    shape = x.shape
    if not dims:
        flat = w.layouts.of(w.layouts.reshaped(x, [sympy.Mul(*shape)]))
        return w.layouts.reshaped(_roll(w, node, flat, shifts, [0]), shape)
    x = w.layouts.plain(x, [axis(x, d) for d in dims])
    v = x.value
    for shift, d in zip(shifts, (axis(x, d) for d in dims)):
        n = b.splat(w.sizes.count(size(x.dims[d])), (v.shape[d],))
        n = b.maximum(n, b.constant(1, "i32", n.shape))
        moved = b.iota("i32", n.shape) - b.splat(w.sizes.count(shift), n.shape)
        left = b.remainder(moved, n)
        v = take(b, v, b.select(left < 0, left + n, left), d)
    return w.layouts.result(v, x.dims)


@rule("constant_pad_nd")
def _constant_pad_nd(w: Walk, node, x, pad, value=0):
    x = w.layouts.of(x)
    touched = {x.ndim - 1 - i // 2 for i, n in enumerate(pad) if n != 0}
    x = w.layouts.plain(x, sorted(touched))
    fill = w.sizes.number(value)
    fill = fill.to(x.dtype) if isinstance(fill, Value) else fill
    v, dims, sizes = w.layouts.filled(x, fill, sorted(touched)), list(x.dims), w.shape(node)
    for d in sorted(touched):
        low, high = (pad[2 * (x.ndim - 1 - d) + i] for i in range(2))
        out = w.layouts.prefix(sizes[d])
        v = _padded_along(w, v, d, low, high, size(x.dims[d]), room(out), fill)
        dims[d] = out
    return w.result(node, v, dims)


def _padded_along(
    w: Walk, v: Value, d: int, low: Any, high: Any, n: sympy.Basic, got: int, fill: Any
) -> Value:
    """`v`, filled beyond its `n` elements, with `low` more in front and `got` elements in all."""
    b = w.b
    if not is_open(low):
        lows, highs = [0] * v.ndim, [0] * v.ndim
        lows[d], highs[d] = int(low), max(got - v.shape[d] - int(low), 0)
        return w.layouts.resized(b.pad(v, fill, lows, highs), d, got)
    at = b.iota("i32", (got,)) - b.splat(w.sizes.count(low), (got,))
    inside = (at >= 0) & (at < b.splat(w.sizes.count(n), (got,)))
    v = take(
        b,
        v,
        b.clamp(b.constant(0, "i32", (got,)), at, b.constant(v.shape[d] - 1, "i32", (got,))),
        d,
    )
    return b.select(b.broadcast_in_dim(inside, v.shape, [d]), v, fill)


@rule("unfold")
def _unfold(w: Walk, node, x, dim, n, step):
    """Windows that begin among what counts: those of the bucket's size, of which the first do."""
    x = w.layouts.of(x)
    dim = axis(x, dim)
    if is_open(n) or is_open(step):
        raise Inexact("a window of open size")
    x = w.layouts.plain(x, [dim])
    out = w.layouts.prefix(w.shape(node)[dim])
    v = w.layouts.resized(x.value, dim, max(x.value.shape[dim], (room(out) - 1) * step + n))
    v = w.layouts.resized(w.lower(node.target, v, dim, n, step), dim, room(out))
    return w.result(node, v, [*x.dims[:dim], out, *x.dims[dim + 1 :], fixed(n)])


@rule("unfold_backward")
def _unfold_backward(w: Walk, node, grad, sizes, dim, n, step):
    grad = w.layouts.of(grad)
    dim = dim % (grad.ndim - 1)
    if is_open(n) or is_open(step):
        raise Inexact("a window of open size")
    grad = w.layouts.plain(grad, [dim])
    out = w.layouts.prefix(w.shape(node)[dim])
    v = w.layouts.filled(grad, 0, [dim])
    v = w.layouts.resized(v, dim, max((room(out) - n) // step + 1, 0))
    dims = [*grad.dims[:dim], out, *grad.dims[dim + 1 : -1]]
    return w.result(node, w.lower(node.target, v, list(map(room, dims)), dim, n, step), dims)


@rule("tril", "triu")
def _triangle(w: Walk, node, x, diagonal=0):
    b, x = w.b, w.layouts.of(x)
    x = w.layouts.plain(x, [x.ndim - 2, x.ndim - 1])
    if not is_open(diagonal):
        return w.result(node, w.lower(node.target, x.value, diagonal), x.dims)
    shape = x.value.shape
    rows, cols = (b.iota("i32", shape, x.ndim - i) for i in (2, 1))
    edge = rows + b.splat(w.sizes.count(diagonal), shape)
    keep = cols <= edge if node.target._opname == "tril" else cols >= edge
    return w.result(node, b.select(keep, x.value, 0), x.dims)


def dims_without(dims: Sequence[Dim], drop: Sequence[int], keep: bool = False) -> list[Dim]:
    """A layout after a reduction over `drop`; with `keep` they stay with one element."""
    if keep:
        return [ONE if d in drop else p for d, p in enumerate(dims)]
    return [p for d, p in enumerate(dims) if d not in drop]
