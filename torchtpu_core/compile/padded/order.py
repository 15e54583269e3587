"""Rules of ops along an order: sorts, top-k, order statistics, searches, running sums."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from torchtpu_core.compile.padded.layout import Factor, Padded, fixed, room, size
from torchtpu_core.compile.padded.movement import axis, dims_without
from torchtpu_core.compile.padded.reduction import one, zero
from torchtpu_core.compile.padded.sizes import Inexact, is_open
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.lowering import order
from torchtpu_core.stablehlo import Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Number


def _last(dtype: str, descending: bool) -> Number:
    """What a stable sort puts behind every element that comes before it: NaN is the greatest."""
    if descending:
        return T.lowest(dtype)
    return math.nan if T.is_float(dtype) else T.highest(dtype)


def _sorted(w: Walk, node, x, dim, descending, **kwargs):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    v = w.layouts.filled(x, _last(x.dtype, descending), [dim])
    out = w.lower(node.target, v, dim=dim, descending=descending, **kwargs)
    if node.target._opname == "argsort":
        return w.result(node, out, x.dims)
    return [w.result(node, r, x.dims, i) for i, r in enumerate(out)]


@rule("sort", "argsort")
def _sort(w: Walk, node, x, dim=-1, descending=False):
    return _sorted(w, node, x, dim, descending)


@rule("sort.stable", "argsort.stable")
def _sort_stable(w: Walk, node, x, *, stable=True, dim=-1, descending=False):
    return _sorted(w, node, x, dim, descending, stable=True)


@rule("topk")
def _topk(w: Walk, node, x, k, dim=-1, largest=True, sorted=True):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    out = w.layouts.prefix(k)
    if not largest and T.is_float(x.dtype):
        # the padding must come after NaN, which a stable sort does and a top-k by bits does not
        v = w.layouts.filled(x, math.nan, [dim])
        results = w.lower(torch.ops.aten.sort.stable, v, stable=True, dim=dim, descending=False)
        dims = [*x.dims[:dim], out, *x.dims[dim + 1 :]]
        results = [w.layouts.resized(r, dim, room(out)) for r in results]
        return [w.result(node, r, dims, i) for i, r in enumerate(results)]
    n = max(room(x.dims[dim]), room(out))
    wider = (Factor(size(x.dims[dim]), n),)
    x = Padded(w.layouts.resized(x.value, dim, n), (*x.dims[:dim], wider, *x.dims[dim + 1 :]))
    v = w.layouts.filled(x, _last(x.dtype, largest), [dim])
    results = w.lower(node.target, v, room(out), dim, largest, sorted)
    dims = [*x.dims[:dim], out, *x.dims[dim + 1 :]]
    return [w.result(node, r, dims, i) for i, r in enumerate(results)]


# ---- order statistics ----------------------------------------------------------------------------


@rule("kthvalue")
def _kthvalue(w: Walk, node, x, k, dim=-1, keepdim=False):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    if is_open(k):
        raise Inexact("a rank of open size")
    v = w.layouts.filled(x, _last(x.dtype, False), [dim])
    out = w.lower(node.target, w.layouts.resized(v, dim, max(v.shape[dim], k)), k, dim, keepdim)
    dims = dims_without(x.dims, [dim], keepdim)
    return [w.result(node, r, dims, i) for i, r in enumerate(out)]


def _statistic(w: Walk, x: Padded, dim: int, keepdim: bool, fn: Any) -> list[Value]:
    v = w.layouts.filled(x, _last(x.dtype, False), [dim])
    return fn(w.b, v, dim, keepdim, w.sizes.count(size(x.dims[dim])))


_STATISTICS = {"median": order.median, "nanmedian": order.nanmedian, "mode": order.mode}


@rule("median.dim", "nanmedian.dim", "mode")
def _order_statistic(w: Walk, node, x, dim=-1, keepdim=False):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    out = _statistic(w, x, dim, keepdim, _STATISTICS[node.target._opname])
    dims = dims_without(x.dims, [dim], keepdim)
    return [w.result(node, r, dims, i) for i, r in enumerate(out)]


@rule("median", "nanmedian")
def _order_statistic_of_all(w: Walk, node, x):
    x = w.layouts.of(x)
    x = w.layouts.plain(w.layouts.of(w.layouts.reshaped(x, [sympy.Mul(*x.shape)])))
    return w.result(node, _statistic(w, x, 0, False, _STATISTICS[node.target._opname])[0], ())


# ---- searches ------------------------------------------------------------------------------------


def _found(w: Walk, node, boundaries, x, sorter, call) -> Any:
    """Insertion points: what is padded is greater than all boundaries, and does not count."""
    edges = w.layouts.of(boundaries)
    edges = w.layouts.plain(edges, [edges.ndim - 1])
    if sorter is not None:
        raise Inexact("boundaries that are not sorted")
    dims = w.dims(x) if isinstance(x, (Padded, Value)) else ()
    if edges.ndim > 1:
        edges = w.layouts.as_(edges, [*dims[:-1], edges.dims[-1]])
    dtype = edges.dtype
    fill = math.inf if T.is_float(dtype) else T.highest(dtype)
    x = x.value if isinstance(x, Padded) else x if isinstance(x, Value) else w.sizes.number(x)
    out = call(w.layouts.filled(edges, fill, [edges.ndim - 1]), x)
    count = w.sizes.count(size(edges.dims[-1]), out.dtype)
    return w.result(node, w.b.minimum(out, w.b.splat(count, out.shape)), dims)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(w: Walk, node, boundaries, x, *, sorter=None, **kwargs):
    def call(edges: Value, x: Any) -> Value:
        return w.lower(node.target, edges, x, **kwargs)

    return _found(w, node, boundaries, x, sorter, call)


@rule("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(w: Walk, node, x, boundaries, **kwargs):
    def call(edges: Value, x: Any) -> Value:
        return w.lower(node.target, x, edges, **kwargs)

    return _found(w, node, boundaries, x, None, call)


@rule("histc")
def _histc(w: Walk, node, x, bins=100, min=0, max=0):
    x = w.layouts.of(x)
    if min == max or not T.is_float(x.dtype):
        raise Inexact("bins over the range of the data, or of integers")
    v = w.layouts.filled(x, math.nan)  # in no bin
    return w.result(node, w.lower(node.target, v, bins, min, max), [fixed(bins)])


# ---- running -------------------------------------------------------------------------------------

_RUNNING = {
    "cumsum": zero,
    "cumprod": one,
    "logcumsumexp": lambda dtype: -math.inf,
    "cummax": T.lowest,
    "cummin": T.highest,
}


@rule(*_RUNNING)
def _running(w: Walk, node, x, dim, **kwargs):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    v = w.layouts.filled(x, _RUNNING[node.target._opname](x.dtype), [dim])
    out = w.lower(node.target, v, dim, **kwargs)
    if isinstance(out, (list, tuple)):
        return [w.result(node, r, x.dims, i) for i, r in enumerate(out)]
    return w.result(node, out, x.dims)
