"""Rules of reductions, softmax, norms: the padding along the reduced dimensions is filled with what
changes nothing, and counts of elements are those that count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy

from torchtpu_core.compile.padded.layout import Padded, is_padded, size
from torchtpu_core.compile.padded.movement import axis, dims_without
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.reduction import axes, square_abs, sum_of, wide
from torchtpu_core.stablehlo import Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Number

Fill = Callable[[str], Number]


def zero(dtype: str) -> Number:
    """The identity of a sum."""
    return 0


def one(dtype: str) -> Number:
    """The identity of a product."""
    return 1


def _arguments(node, args: tuple, kwargs: dict) -> tuple[Any, bool]:
    """(dim, keepdim) of a reduction's call."""
    names = [a.name for a in node.target._schema.arguments][1:]
    given = dict(zip(names, args)) | kwargs
    return given.get("dim"), bool(given.get("keepdim", False))


def _reduction(fill: Fill, *names: str) -> None:
    @rule(*names)
    def reduce(w: Walk, node, x, *args, **kwargs):
        x = w.layouts.of(x)
        dim, keep = _arguments(node, args, kwargs)
        overload = node.target._overloadname
        none = overload == "dims" and dim is not None and not len(dim)
        dims = [] if none else axes(x.value, dim)
        v = w.lower(node.target, w.layouts.filled(x, fill(x.dtype), dims), *args, **kwargs)
        return w.result(node, v, dims_without(x.dims, dims, keep))


_reduction(zero, "sum", "sum.dim_IntList", "nansum")
_reduction(zero, "count_nonzero", "count_nonzero.dim_IntList")
_reduction(zero, "any", "any.dim", "any.dims")
_reduction(one, "all", "all.dim", "all.dims", "prod", "prod.dim_int")
_reduction(T.lowest, "amax", "max")
_reduction(T.highest, "amin", "min")
_reduction(lambda dtype: -math.inf if T.is_float(dtype) else 0, "logsumexp")


@rule("linalg_vector_norm")
def _vector_norm(w: Walk, node, x, ord=2, dim=None, keepdim=False, *, dtype=None):
    x, p = w.layouts.of(x), 2.0 if ord is None else float(ord)
    dims = axes(x.value, dim)
    v = w.layouts.filled(x, 0 if p >= 0 else math.inf, dims)
    v = w.lower(node.target, v, ord, dims, keepdim, dtype=dtype)
    return w.result(node, v, dims_without(x.dims, dims, keepdim))


@rule("max.dim", "min.dim")
def _extremum(w: Walk, node, x, dim, keepdim=False):
    x = w.layouts.of(x)
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    fill = T.lowest if node.target._opname == "max" else T.highest
    out = w.lower(node.target, w.layouts.filled(x, fill(x.dtype), [dim]), dim, keepdim)
    dims = dims_without(x.dims, [dim], keepdim)
    return [w.result(node, v, dims, i) for i, v in enumerate(out)]


@rule("argmax", "argmin")
def _extremum_index(w: Walk, node, x, dim=None, keepdim=False):
    x = w.layouts.of(x)
    fill = T.lowest if node.target._opname == "argmax" else T.highest
    if dim is None:
        flat = w.layouts.of(w.layouts.reshaped(x, [sympy.Mul(*x.shape)]))
        flat = w.layouts.plain(flat)
        v = w.lower(node.target, w.layouts.filled(flat, fill(x.dtype)), 0, False)
        v = w.b.reshape(v, (1,) * x.ndim if keepdim else ())
        return w.result(node, v, dims_without(x.dims, range(x.ndim), keepdim))
    dim = axis(x, dim)
    x = w.layouts.plain(x, [dim])
    v = w.lower(node.target, w.layouts.filled(x, fill(x.dtype), [dim]), dim, keepdim)
    return w.result(node, v, dims_without(x.dims, [dim], keepdim))


# ---- means and variances -------------------------------------------------------------------------


def count_of(w: Walk, x: Padded, dims: list[int], dtype: str) -> Value:
    """How many elements that count are reduced into one, 0-d."""
    return w.sizes.count(sympy.Mul(*(size(x.dims[d]) for d in dims)), dtype)


def mean_over(w: Walk, x: Padded, dims: list[int]) -> Value:
    """The mean over `dims`, which stay with one element, in the accumulation type."""
    total = sum_of(wide(w.layouts.filled(x, 0, dims)), dims, True)
    return total / w.b.splat(count_of(w, x, dims, total.dtype), total.shape)


@rule("mean", "mean.dim")
def _mean(w: Walk, node, x, dim=None, keepdim=False, *, dtype=None):
    x = w.layouts.of(x)
    if dtype is not None:
        x = Padded(x.value.to(mlir(dtype)), x.dims)
    dims = axes(x.value, dim)
    v = mean_over(w, x, dims)
    return w.result(
        node, v if keepdim else w.b.squeeze(v, dims), dims_without(x.dims, dims, keepdim)
    )


def _moments(w: Walk, node, x, dim, correction, keepdim):
    b, x = w.b, w.layouts.of(x)
    x = Padded(wide(x.value), x.dims)
    dims = axes(x.value, dim)
    mean = mean_over(w, x, dims)
    spread = w.layouts.filled(Padded(square_abs(x.value - mean), x.dims), 0, dims)
    total = sum_of(spread, dims, True)
    divisor = count_of(w, x, dims, "f64") - float(correction)
    divisor = b.maximum(divisor, b.constant(0, "f64")).to(total.dtype)
    out = total / b.splat(divisor, total.shape)
    name = node.target._opname
    outs = [b.sqrt(out) if name.startswith("std") else out, mean]
    kept = dims_without(x.dims, dims, keepdim)
    outs = outs if keepdim else [b.squeeze(v, dims) for v in outs]
    if name.endswith("_mean"):
        return [w.result(node, v, kept, i) for i, v in enumerate(outs)]
    return w.result(node, outs[0], kept)


@rule("var", "std", "var_mean", "std_mean")
def _moments_of_all(w: Walk, node, x, unbiased=True):
    return _moments(w, node, x, None, int(unbiased), False)


@rule("var.dim", "std.dim", "var_mean.dim", "std_mean.dim")
def _moments_of_dims(w: Walk, node, x, dim, unbiased=True, keepdim=False):
    return _moments(w, node, x, dim, int(unbiased), keepdim)


@rule("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _moments_corrected(w: Walk, node, x, dim=None, *, correction=None, keepdim=False):
    return _moments(w, node, x, dim, 1 if correction is None else correction, keepdim)


# ---- softmax -------------------------------------------------------------------------------------


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(w: Walk, node, x, dim, *args, **kwargs):
    x = w.layouts.of(x)
    v = w.layouts.filled(x, -math.inf, [axis(x, dim)])
    return w.result(node, w.lower(node.target, v, dim, *args, **kwargs), x.dims)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(w: Walk, node, grad, out, dim, input_dtype):
    dims = w.layouts.common(w.shape(node), [grad, out])
    at = [dim % len(dims)]
    grad, out = (
        w.layouts.filled(Padded(w.layouts.aligned(x, dims), tuple(dims)), 0, at)
        for x in (grad, out)
    )
    return w.result(node, w.lower(node.target, grad, out, dim, input_dtype), dims)


# ---- norms ---------------------------------------------------------------------------------------


@rule("native_layer_norm")
def _layer_norm(w: Walk, node, x, normalized_shape, weight, bias, eps):
    b, x, n = w.b, w.layouts.of(x), len(normalized_shape)
    inner = list(range(x.ndim - n, x.ndim))
    rows = dims_without(x.dims, inner, True)
    if not any(is_padded(x.dims[d]) for d in inner):
        out = w.lower(node.target, x.value, normalized_shape, weight, bias, eps)
        return [w.result(node, v, rows if i else x.dims, i) for i, v in enumerate(out)]
    values = Padded(wide(x.value), x.dims)
    mean = mean_over(w, values, inner)
    centred = values.value - mean
    var = mean_over(w, Padded(centred * centred, x.dims), inner)
    scale = b.rsqrt(var + eps)
    out = centred * scale
    if weight is not None:
        out = out * w.layouts.aligned(weight, x.dims[-n:]).to(out.dtype)
    if bias is not None:
        out = out + w.layouts.aligned(bias, x.dims[-n:]).to(out.dtype)
    return [w.result(node, v, rows if i else x.dims, i) for i, v in enumerate((out, mean, scale))]
