"""Normalisation over trailing dimensions or groups: layer, group and RMS norm, and weight norm.

Batch norm is in `batch_norm.py`. Statistics are computed in f32 for low-precision inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.reduction import extent, mean_of, moments, sum_of, vector_norm, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T


def like(x: Value | None, ref: Value) -> Value | None:
    """An optional parameter in the compute dtype of `ref`."""
    return None if x is None else x.to(ref.dtype)


def affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x * weight + bias, of which either may be missing."""
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def normalized_backward(grad: Value, x_hat: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """The gradient through (x - mean) * rstd, given that of its result."""
    if extent(grad, dims) == 0:
        return grad
    centred = grad - mean_of(grad, dims, True)
    return (centred - x_hat * mean_of(grad * x_hat, dims, True)) * rstd


def _split(x: Value, normalized_shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """(outer dimensions, normalised dimensions)."""
    n = x.ndim - len(normalized_shape)
    return list(range(n)), list(range(n, x.ndim))


# ---- layer norm ---------------------------------------------------------------------------------


@lowering("native_layer_norm", runtime=("eps",))
def _native_layer_norm(b, x, normalized_shape, weight, bias, eps):
    x = wide(x)
    var, mean = moments(x, _split(x, normalized_shape)[1], 0, True)
    rstd = b.rsqrt(var + b.lift(eps, var.dtype, var.shape))
    return [affine((x - mean) * rstd, like(weight, x), like(bias, x)), mean, rstd]


@lowering("native_layer_norm_backward")
def _native_layer_norm_backward(b, grad, x, normalized_shape, mean, rstd, weight, bias, mask):
    grad, x = wide(grad), wide(x)
    rstd = rstd.to(x.dtype)
    outer, inner = _split(x, normalized_shape)
    x_hat = (x - mean.to(x.dtype)) * rstd
    through = affine(grad, like(weight, x), None)
    return [
        normalized_backward(through, x_hat, rstd, inner) if mask[0] else None,
        sum_of(grad * x_hat, outer) if mask[1] and weight is not None else None,
        sum_of(grad, outer) if mask[2] and bias is not None else None,
    ]


# ---- RMS norm -----------------------------------------------------------------------------------


@lowering("_fused_rms_norm", runtime=("eps",))
def _fused_rms_norm(b, x, normalized_shape, weight, eps):
    x = wide(x)
    eps = T.finfo_eps(x.dtype) if eps is None else eps
    mean_square = mean_of(x * x, _split(x, normalized_shape)[1], True)
    rstd = b.rsqrt(mean_square + b.lift(eps, x.dtype, mean_square.shape))
    return [affine(x * rstd, like(weight, x), None), rstd]


@lowering("_fused_rms_norm_backward")
def _fused_rms_norm_backward(b, grad, x, normalized_shape, rstd, weight, mask):
    grad, x = wide(grad), wide(x)
    outer, inner = _split(x, normalized_shape)
    rstd = rstd.to(x.dtype)
    x_hat = x * b.reshape(rstd, rstd.shape + (1,) * (x.ndim - rstd.ndim))
    through = affine(grad, like(weight, x), None)
    grad_x = through
    if x.numel:
        grad_x = (through - x_hat * mean_of(through * x_hat, inner, True)) * rstd
    return [
        grad_x if mask[0] else None,
        sum_of(grad * x_hat, outer) if mask[1] and weight is not None else None,
    ]


# ---- group norm ---------------------------------------------------------------------------------


def _grouped(b: Builder, x: Value, groups: int) -> Value:
    """(N, C, *) as (N, groups, C / groups, rest)."""
    n, c = x.shape[:2]
    rest = 1
    for s in x.shape[2:]:
        rest *= s
    return b.reshape(x, (n, groups, c // groups, rest))


def _per_channel(b: Builder, p: Value | None, ref: Value, groups: int) -> Value | None:
    return None if p is None else b.reshape(p.to(ref.dtype), (1, groups, p.numel // groups, 1))


@lowering("native_group_norm", runtime=("eps",))
def _native_group_norm(b, x, weight, bias, N, C, HxW, group, eps):
    y = _grouped(b, wide(x), group)
    var, mean = moments(y, [2, 3], 0, True)
    rstd = b.rsqrt(var + b.lift(eps, var.dtype, var.shape))
    w, c = _per_channel(b, weight, y, group), _per_channel(b, bias, y, group)
    out = affine((y - mean) * rstd, w, c)
    return [b.reshape(out, x.shape), b.reshape(mean, (N, group)), b.reshape(rstd, (N, group))]


@lowering("native_group_norm_backward")
def _native_group_norm_backward(b, grad, x, mean, rstd, weight, N, C, HxW, group, mask):
    g, y = _grouped(b, wide(grad), group), _grouped(b, wide(x), group)
    mean, rstd = (b.reshape(s.to(y.dtype), (N, group, 1, 1)) for s in (mean, rstd))
    y_hat = (y - mean) * rstd
    through = affine(g, _per_channel(b, weight, y, group), None)
    grad_x = normalized_backward(through, y_hat, rstd, [2, 3]) if mask[0] else None
    return [
        None if grad_x is None else b.reshape(grad_x, x.shape),
        b.reshape(sum_of(g * y_hat, [0, 3]), (C,)) if mask[1] else None,
        b.reshape(sum_of(g, [0, 3]), (C,)) if mask[2] else None,
    ]


# ---- weight norm --------------------------------------------------------------------------------


def _others(v: Value, dim: int) -> list[int]:
    return [i for i in range(v.ndim) if i != dim % v.ndim]


@lowering("_weight_norm_interface")
def _weight_norm(b, v, g, dim=0):
    v = wide(v)
    norm = vector_norm(v, 2, _others(v, dim), True)
    return [v * (g.to(v.dtype) / norm), norm]


@lowering("_weight_norm_interface_backward")
def _weight_norm_backward(b, grad, v, g, norm, dim):
    grad, v = wide(grad), wide(v)
    g, norm = g.to(v.dtype), norm.to(v.dtype)
    dot = sum_of(grad * v, _others(v, dim), True)
    return [g / norm * (grad - v * (dot / (norm * norm))), dot / norm]
