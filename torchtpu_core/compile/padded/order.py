"""Rules of ops along an order: sorts, top-k, running sums, searches."""

from __future__ import annotations

import math

import torch

from torchtpu_core.compile.padded.layout import Factor, Padded, room, size
from torchtpu_core.compile.padded.movement import axis
from torchtpu_core.compile.padded.reduction import one, zero
from torchtpu_core.compile.padded.walk import Walk, rule
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
