"""Rules of gathers and scatters: padded indices read the first element, and write nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from torchtpu_core import flags
from torchtpu_core.compile.padded.layout import ONE, Dim, Padded, is_padded, room, size
from torchtpu_core.compile.padded.movement import axis, dims_without
from torchtpu_core.compile.padded.sizes import Inexact
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.stablehlo import Value


def _reading(w: Walk, index: Any, dim: Dim, wrap: bool = False) -> Value:
    """An index to read a dimension by; with `wrap`, negative ones count from its end."""
    v = w.layouts.filled(index, 0)
    if wrap and is_padded(dim):
        n = w.b.splat(w.sizes.count(size(dim), v.dtype), v.shape)
        v = w.b.select(v < 0, v + n, v)
    return v


def _writing(w: Walk, index: Any, dim: Dim, wrap: bool = False) -> Value:
    """An index to write a dimension by: padded ones are out of range, and so dropped."""
    v = _reading(w, index, dim, wrap)
    if not isinstance(index, Padded) or not index.padded():
        return v
    if flags.get(flags.BOUNDS):
        raise Inexact("a write while indices are checked")
    v = v if v.dtype == "i64" else v.to("i32")
    return w.layouts.filled(Padded(v, index.dims), room(dim))


# ---- reading -------------------------------------------------------------------------------------


def _vectors(w: Walk, x: Padded, indices: Sequence[Any], sizes: Sequence) -> tuple:
    """(x with its indexed dimensions in order, positions of the indices, indices in a common
    layout, layout of x[indices]).
    """
    where = [d for d, i in enumerate(indices) if i is not None]
    if any(w.layouts.of(indices[d]).dtype in ("i1", "ui8") for d in where):
        raise Inexact("a mask as an index")
    x = w.layouts.plain(x, where)
    n = max(len(w.dims(indices[d])) for d in where)
    at = where[0] if where[-1] - where[0] == len(where) - 1 else 0
    common = w.layouts.common(sizes[at : at + n], [indices[d] for d in where])
    vectors = []
    for d in where:
        dims = common[n - len(w.dims(indices[d])) :]
        v = w.layouts.aligned(indices[d], dims)
        dims = [p if m != 1 else ONE for p, m in zip(dims, v.shape)]
        vectors.append(Padded(v, tuple(dims)))
    rest = dims_without(x.dims, where)
    return x, where, vectors, [*rest[:at], *common, *rest[at:]]


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(w: Walk, node, x, indices):
    x, where, vectors, dims = _vectors(w, w.layouts.of(x), indices, w.shape(node))
    given: list[Any] = [None] * x.ndim
    for d, v in zip(where, vectors):
        given[d] = _reading(w, v, x.dims[d], wrap=True)
    return w.result(node, w.lower(node.target, x.value, given), dims)


@rule("index_select")
def _index_select(w: Walk, node, x, dim, index):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    v = w.lower(node.target, x.value, dim, _reading(w, index, x.dims[dim]))
    at = w.dims(index) or (ONE,)
    return w.result(node, v, [*x.dims[:dim], *at, *x.dims[dim + 1 :]])


@rule("embedding")
def _embedding(w: Walk, node, weight, index, *args):
    weight = w.layouts.plain(w.layouts.of(weight), [0])
    v = w.lower(node.target, weight.value, _reading(w, index, weight.dims[0]), *args)
    return w.result(node, v, [*w.dims(index), weight.dims[1]])


def _matched(w: Walk, x: Any, index: Any, dim: int) -> tuple[Padded, Padded, int]:
    """`x` and `index` in layouts that differ by rooms only, `x` at least as roomy beside `dim`."""
    x, index = w.layouts.of(x), w.layouts.of(index)
    if not x.ndim or not index.ndim:
        raise Inexact("a gather from or into a number")
    dim = dim % x.ndim
    differ = [d for d in range(x.ndim) if d == dim or x.dims[d] != index.dims[d]]
    return w.layouts.plain(x, differ), w.layouts.plain(index, differ), dim


def _roomier(w: Walk, v: Value, like: Value, dim: int | None) -> Value:
    """`v`, padded to the rooms of `like` except along `dim`."""
    for d in range(v.ndim):
        if d != dim:
            v = w.layouts.resized(v, d, max(v.shape[d], like.shape[d]))
    return v


@rule("gather")
def _gather(w: Walk, node, x, dim, index, *, sparse_grad=False):
    x, index, dim = _matched(w, x, index, dim)
    at = _reading(w, index, x.dims[dim])
    return w.result(node, w.lower(node.target, _roomier(w, x.value, at, dim), dim, at), index.dims)


# ---- writing -------------------------------------------------------------------------------------


@rule("scatter.src", "scatter.value", "scatter_add", "scatter.reduce", "scatter.value_reduce")
@rule("scatter_reduce.two")
def _scatter(w: Walk, node, x, dim, index, src, *args, **kwargs):
    x, index, dim = _matched(w, x, index, dim)
    at = _writing(w, index, x.dims[dim])
    target = _roomier(w, x.value, at, dim)
    if isinstance(src, (Padded, Value)) and w.dims(src):
        src = w.layouts.of(src)
        differ = [d for d in range(x.ndim) if src.dims[d] != index.dims[d]]
        if any(len(index.dims[d]) > 1 for d in differ):
            raise Inexact("a scatter of merged dimensions")
        src = _roomier(w, w.layouts.plain(src, differ).value, at, None)
    else:
        src = src if isinstance(src, Value) else w.sizes.number(src)
    v = w.lower(node.target, target, dim, at, src, *args, **kwargs)
    return w.result(node, w.b.slice(v, [0] * v.ndim, x.value.shape), x.dims)


@rule("index_put", "_unsafe_index_put")
def _index_put(w: Walk, node, x, indices, values, accumulate=False, *_):
    x = w.layouts.of(x)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and w.layouts.of(given[0][1]).dtype in ("i1", "ui8"):
        return _mask_put(w, node, x, *given[0], values, accumulate)
    shape = _indexed_shape(w, x, indices)
    x, where, vectors, dims = _vectors(w, x, indices, shape)
    at: list[Any] = [None] * x.ndim
    for d, v in zip(where, vectors):
        at[d] = _writing(w, v, x.dims[d], wrap=True)
    values = w.layouts.aligned(values, dims)
    return w.result(node, w.lower(node.target, x.value, at, values, accumulate), x.dims)


def _indexed_shape(w: Walk, x: Padded, indices: Sequence[Any]) -> list:
    """The sizes of x[indices]."""
    where = [d for d, i in enumerate(indices) if i is not None]
    shapes = [w.layouts.of(indices[d]).shape for d in where]
    n = max(map(len, shapes))
    sizes = [1] * n
    for s in shapes:
        for i, m in enumerate(s, n - len(s)):
            sizes[i] = m if m != 1 else sizes[i]
    rest = [m for d, m in enumerate(x.shape) if d not in where]
    at = where[0] if where[-1] - where[0] == len(where) - 1 else 0
    return [*rest[:at], *sizes, *rest[at:]]


def _mask_put(w: Walk, node, x: Padded, dim: int, mask: Any, values: Any, accumulate: bool):
    mask, values = w.layouts.of(mask), w.layouts.of(values)
    end = dim + mask.ndim
    dims = x.dims[dim:end]
    # The places that the mask selects are counted, and those that do not count come in between.
    v = w.layouts.filled(Padded(w.layouts.aligned(mask, dims), dims), 0)
    counted = values.ndim - (x.ndim - end) - 1  # the dimension of `values` that counts them
    if counted >= 0:
        values = w.layouts.plain(values, [counted])
        lead = x.dims[dim - counted : dim]
        own = [*lead, values.dims[counted], *x.dims[end:]]
        values = w.layouts.aligned(values, own)
    else:
        values = w.layouts.aligned(values, x.dims[end:])
    given: list[Any] = [None] * dim + [v]
    return w.result(node, w.lower(node.target, x.value, given, values, accumulate), x.dims)


def _masked(w: Walk, x: Any, mask: Any, sizes: Sequence) -> tuple[Value, Value, list[Dim]]:
    """(x, the mask without what does not count) in one layout: the elements that a mask selects are
    counted in row-major order, which that of the rooms is too.
    """
    dims = w.layouts.common(sizes, [x, mask])
    rooms = list(map(room, dims))
    x, mask = (w.b.expand(w.layouts.aligned(v, dims), rooms) for v in (x, mask))
    return x, w.layouts.filled(Padded(mask, tuple(dims)), 0), dims


@rule("masked_scatter")
def _masked_scatter(w: Walk, node, x, mask, source):
    x, mask, dims = _masked(w, x, mask, w.shape(node))
    source = w.layouts.of(source)
    flat = w.layouts.of(w.layouts.reshaped(source, [sympy.Mul(*source.shape)]))
    return w.result(node, w.lower(node.target, x, mask, w.layouts.plain(flat).value), dims)


@rule("masked_scatter_backward")
def _masked_scatter_backward(w: Walk, node, grad, mask, sizes):
    shape = w.layouts.of(grad).shape
    grad, mask, _ = _masked(w, grad, mask, shape)
    line = w.layouts.prefix(sympy.Mul(*w.shape(node)))
    v = w.lower(node.target, grad, mask, [room(line)])
    return w.layouts.reshaped(Padded(v, (line,)), w.shape(node))


@rule("index_add", "index_copy", "index_fill.int_Scalar", "index_fill.int_Tensor", "index_reduce")
def _index_rows(w: Walk, node, x, dim, index, source, *args, **kwargs):
    x, index = w.layouts.of(x), w.layouts.of(index)
    dim = axis(x, dim)
    x, index = w.layouts.plain(x, [dim]), w.layouts.plain(index)
    at = _writing(w, index, x.dims[dim])
    if isinstance(source, (Padded, Value)) and w.dims(source):
        own = [*x.dims[:dim], *index.dims, *x.dims[dim + 1 :]]
        source = w.layouts.aligned(source, own)
    else:
        source = source if isinstance(source, Value) else w.sizes.number(source)
    kwargs = {k: w.sizes.number(v) for k, v in kwargs.items()}
    return w.result(node, w.lower(node.target, x.value, dim, at, source, *args, **kwargs), x.dims)


@rule("embedding_dense_backward")
def _embedding_backward(w: Walk, node, grad, index, rows, padding_idx, by_frequency):
    if by_frequency:
        raise Inexact("gradients scaled by frequency")
    dims = w.dims(index)
    grad = w.layouts.of(grad)
    grad = w.layouts.as_(grad, [*dims, grad.dims[-1]])
    v = w.lower(
        node.target,
        w.layouts.filled(grad, 0),
        w.layouts.filled(index, 0),
        w.sizes.room(rows),
        padding_idx,
        False,
    )
    return w.result(node, v, [w.layouts.prefix(rows), grad.dims[-1]])
