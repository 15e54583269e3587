"""softmax, log_softmax, their gradients, and the masked and safe forms.

Computed in f32 for low-precision inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.reduction import axes, max_of, sum_of, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.origins import unmerged

_NEG_INF = float("-inf")


def _unmerged(fn: Callable[..., Value]) -> Callable[..., Value]:
    """`fn(b, *values of one shape, dim)`, of values as they were before a reshape merged their
    dimensions but `dim` (see stablehlo/origins.py): those of logits [batch * seq, vocabulary].
    """

    @functools.wraps(fn)
    def wrapper(b: Builder, *args: Any) -> Value:
        *xs, dim = args
        if xs[-1].ndim == 0:
            return fn(b, *xs, dim)
        source, d = unmerged(xs[-1], dim)
        out = fn(b, *(b.reshape(x, source.shape) for x in xs[:-1]), source, d)
        return b.reshape(out, xs[-1].shape)

    return wrapper


@_unmerged
def softmax(b: Builder, x: Value, dim: int) -> Value:
    """Shifted by the maximum; NaN for a row of -inf."""
    dims = axes(x, dim)
    e = b.exp(x - max_of(x, dims, True))
    return e / sum_of(e, dims, True)


@_unmerged
def log_softmax(b: Builder, x: Value, dim: int) -> Value:
    """log(softmax(x)) without the loss of the quotient."""
    dims = axes(x, dim)
    shifted = x - max_of(x, dims, True)
    return shifted - b.log(sum_of(b.exp(shifted), dims, True))


def safe_softmax(b: Builder, x: Value, dim: int) -> Value:
    """softmax in which a row of -inf gives zeros, not NaN."""
    return b.select(max_of(x, axes(x, dim), True).eq(_NEG_INF), 0.0, softmax(b, x, dim))


@_unmerged
def softmax_backward(b: Builder, grad: Value, out: Value, dim: int) -> Value:
    """The gradient by the input, from that of the result and the result."""
    scaled = grad * out
    return scaled - out * sum_of(scaled, axes(out, dim), True)


@_unmerged
def log_softmax_backward(b: Builder, grad: Value, out: Value, dim: int) -> Value:
    """The gradient by the input, from that of the result and the result."""
    return grad - b.exp(out) * sum_of(grad, axes(out, dim), True)


@lowering("_softmax")
def _softmax(b, x, dim, half_to_float):
    return softmax(b, wide(x), dim)


@lowering("_log_softmax")
def _log_softmax(b, x, dim, half_to_float):
    return log_softmax(b, wide(x), dim)


@lowering("_safe_softmax")
def _safe_softmax(b, x, dim, dtype=None):
    return safe_softmax(b, wide(x if dtype is None else x.to(mlir(dtype))), dim)


@lowering("_softmax_backward_data")
def _softmax_backward_data(b, grad, out, dim, input_dtype):
    return softmax_backward(b, wide(grad), wide(out), dim)


@lowering("_log_softmax_backward_data")
def _log_softmax_backward_data(b, grad, out, dim, input_dtype):
    return log_softmax_backward(b, wide(grad), wide(out), dim)


def _mask_like(b: Builder, mask: Value, x: Value, mask_type: int | None) -> Value:
    """mask_type 0: (L, L), for all batches and heads; 1: (B, L), for all heads and queries."""
    if mask_type == 1 and mask.ndim == 2 and x.ndim == 4:
        return b.broadcast_in_dim(mask, x.shape, (0, 3))
    return b.expand(mask, x.shape)


@lowering("_masked_softmax")
def _masked_softmax(b, x, mask, dim=None, mask_type=None):
    hidden = _mask_like(b, mask.to("i1"), x, mask_type)
    return safe_softmax(b, b.select(hidden, _NEG_INF, wide(x)), -1 if dim is None else dim)


@lowering("_masked_softmax_backward")
def _masked_softmax_backward(b, grad, out, mask, dim=None):
    hidden = b.expand(mask.to("i1"), out.shape)
    out = b.select(hidden, 0.0, wide(out))
    return softmax_backward(b, wide(grad), out, -1 if dim is None else dim)
