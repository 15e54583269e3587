"""Batch norm: the fused operators with their running statistics; the pieces of SyncBatchNorm."""

from __future__ import annotations

from torchtpu_core.lowering.norm import affine, normalized_backward
from torchtpu_core.lowering.reduction import extent, moments, sum_of, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value, host_kernels
from torchtpu_core.stablehlo.value import Operand


def _reduced(x: Value) -> list[int]:
    return [i for i in range(x.ndim) if i != 1]


def _spread(p: Value | None, x: Value) -> Value | None:
    """A per-channel parameter, ready to broadcast against `x` (N, C, *)."""
    if p is None:
        return None
    return x.b.reshape(p.to(x.dtype), (1, x.shape[1]) + (1,) * (x.ndim - 2))


def _inverse_std(b: Builder, var: Value, eps: Operand) -> Value:
    return b.rsqrt(var + b.lift(eps, var.dtype, var.shape))


def _blend(old: Value, new: Value, momentum: Operand) -> Value:
    """The running statistic after one step."""
    b, dtype = old.b, wide(old).dtype
    new = new.to(dtype)
    m = b.lift(momentum, dtype, new.shape)
    return old.to(dtype) * (1.0 - m) + new * m


def _unbiased(x: Value, var: Value) -> Value:
    """The variance of each channel of `x` without bias."""
    n = extent(x, _reduced(x))
    return var * (n / (n - 1) if n > 1 else float("nan"))


def _updated(
    mean: Value,
    unbiased: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Operand,
) -> list[Value | None]:
    """New running statistics; the variance is kept without bias."""
    pairs = ((running_mean, mean), (running_var, unbiased))
    return [None if r is None else _blend(r, s, momentum).to(r.dtype) for r, s in pairs]


def batch_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, invstd: Value
) -> Value:
    """Normalises (N, C, *) by per-channel statistics; in the dtype of `x`, which is wide."""
    y = (x - _spread(mean, x)) * _spread(invstd, x)
    return affine(y, _spread(weight, x), _spread(bias, x))


def _training(b, x, weight, bias, running_mean, running_var, momentum, eps):
    """(out, mean, invstd, new running mean, new running var)."""
    if 3 <= x.ndim <= 5 and host_kernels.takes(b, x, weight, bias):
        parts = host_kernels.batch_norm(b, x, weight, bias, b.lift(eps, "f64"))
        out, mean, invstd, unbiased = parts
    else:
        x = wide(x)
        var, mean = moments(x, _reduced(x))
        invstd = _inverse_std(b, var, eps)
        out = batch_norm(b, x, weight, bias, mean, invstd)
        unbiased = _unbiased(x, var)
    return [out, mean, invstd, *_updated(mean, unbiased, running_mean, running_var, momentum)]


def _inference(b, x, weight, bias, running_mean, running_var, eps):
    """(out, mean, invstd) with the running statistics."""
    x = wide(x)
    mean, invstd = wide(running_mean), _inverse_std(b, wide(running_var), eps)
    return [batch_norm(b, x, weight, bias, mean, invstd), mean, invstd]


@lowering("native_batch_norm", runtime=("momentum", "eps"), mutates=("running_mean", "running_var"))
def _native_batch_norm(b, x, weight, bias, running_mean, running_var, training, momentum, eps):
    if training:
        return _training(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return [*_inference(b, x, weight, bias, running_mean, running_var, eps), None, None]


@lowering("_native_batch_norm_legit.no_stats", runtime=("momentum", "eps"))
def _no_stats(b, x, weight, bias, training, momentum, eps):
    return _training(b, x, weight, bias, None, None, momentum, eps)[:3]


@lowering("_native_batch_norm_legit_functional", runtime=("momentum", "eps"))
def _legit(b, x, weight, bias, running_mean, running_var, training, momentum, eps):
    if training:
        return _training(b, x, weight, bias, running_mean, running_var, momentum, eps)
    out = _inference(b, x, weight, bias, running_mean, running_var, eps)
    return [*out, running_mean, running_var]


@lowering("_native_batch_norm_legit_no_training", runtime=("momentum", "eps"))
def _no_training(b, x, weight, bias, running_mean, running_var, momentum, eps):
    return _inference(b, x, weight, bias, running_mean, running_var, eps)


def _reserve(b: Builder) -> Value:
    """What cuDNN would keep for the backward pass: nothing."""
    return b.constant(0, "ui8", (0,))


@lowering("_batch_norm_with_update_functional", runtime=("momentum", "eps"))
def _with_update(b, x, weight, bias, running_mean, running_var, momentum, eps):
    out = _training(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return [*out[:3], _reserve(b), *out[3:]]


@lowering("_batch_norm_no_update", runtime=("momentum", "eps"))
def _no_update(b, x, weight, bias, running_mean, running_var, momentum, eps):
    return [*_inference(b, x, weight, bias, running_mean, running_var, eps), _reserve(b)]


@lowering("native_batch_norm_backward", "batch_norm_backward", runtime=("eps",))
def _backward(
    b,
    grad,
    x,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_invstd,
    train,
    eps,
    mask,
    reserve=None,
):
    parts = (grad, x, weight, save_mean, save_invstd)
    if train and all(mask) and 3 <= x.ndim <= 5 and host_kernels.takes(b, *parts):
        return host_kernels.batch_norm_backward(b, *parts)
    grad, x = wide(grad), wide(x)
    if train:
        mean, invstd = save_mean, save_invstd
    else:
        mean, invstd = running_mean, _inverse_std(b, wide(running_var), eps)
    dims, scale = _reduced(x), _spread(invstd, x)
    x_hat = (x - _spread(mean, x)) * scale
    through = affine(grad, _spread(weight, x), None)
    return [
        (normalized_backward(through, x_hat, scale, dims) if train else through * scale)
        if mask[0]
        else None,
        sum_of(grad * x_hat, dims) if mask[1] else None,
        sum_of(grad, dims) if mask[2] else None,
    ]


# ---- the pieces of SyncBatchNorm ----------------------------------------------------------------


@lowering("batch_norm_stats", runtime=("eps",))
def _stats(b, x, eps):
    x = wide(x)
    var, mean = moments(x, _reduced(x))
    return [mean, _inverse_std(b, var, eps)]


@lowering("batch_norm_update_stats", runtime=("momentum",), mutates=("running_mean", "running_var"))
def _update_stats(b, x, running_mean, running_var, momentum):
    x = wide(x)
    var, mean = moments(x, _reduced(x))
    new = _updated(mean, _unbiased(x, var), running_mean, running_var, momentum)
    return [mean, var, *new]


@lowering("batch_norm_elemt", runtime=("eps",))
def _elemt(b, x, weight, bias, mean, invstd, eps):
    return batch_norm(b, wide(x), weight, bias, mean, invstd)


def _gather_stats(b, x, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Statistics of the whole batch from those of each replica (rows) and its element counts."""
    mean, invstd = wide(mean), wide(invstd)
    counts = b.reshape(counts.to(mean.dtype), (mean.shape[0], 1))
    n = sum_of(counts, [0])
    var = 1.0 / (invstd * invstd) - b.lift(eps, mean.dtype, invstd.shape)
    total_mean = sum_of(mean * counts, [0]) / n
    gap = mean - total_mean
    squares = sum_of((var + gap * gap) * counts, [0])
    new = ((running_mean, total_mean), (running_var, squares / (n - 1.0)))
    updated = [None if r is None else _blend(r, s, momentum).to(r.dtype) for r, s in new]
    return [total_mean, _inverse_std(b, squares / n, eps), *updated]


_GATHER = {"runtime": ("momentum", "eps"), "mutates": ("running_mean", "running_var")}
lowering("batch_norm_gather_stats_with_counts", **_GATHER)(_gather_stats)


@lowering("batch_norm_gather_stats", **_GATHER)
def _gather_stats_even(b, x, mean, invstd, running_mean, running_var, momentum, eps, count):
    counts = b.constant(count, wide(mean).dtype, (mean.shape[0],))
    return _gather_stats(b, x, mean, invstd, running_mean, running_var, momentum, eps, counts)


@lowering("batch_norm_backward_reduce")
def _backward_reduce(b, grad, x, mean, invstd, weight, input_g, weight_g, bias_g):
    grad, x = wide(grad), wide(x)
    sum_dy = sum_of(grad, _reduced(x))
    sum_dy_xmu = sum_of(grad * (x - _spread(mean, x)), _reduced(x))
    return [
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        sum_dy_xmu * invstd.to(x.dtype) if weight_g else None,
        sum_dy if bias_g else None,
    ]


@lowering("batch_norm_backward_elemt")
def _backward_elemt(b, grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    grad, x = wide(grad), wide(x)
    n = sum_of(count.to(x.dtype), list(range(count.ndim)))
    scale = _spread(invstd, x)
    mean_dy, mean_dy_xmu = _spread(sum_dy, x) / n, _spread(sum_dy_xmu, x) / n
    grad_x = (grad - mean_dy - (x - _spread(mean, x)) * scale * scale * mean_dy_xmu) * scale
    return affine(grad_x, _spread(weight, x), None)
