"""Rules of convolutions and pooling: padding of open size is what lies beyond the edge, so it is
filled as the op itself pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from torchtpu_core.compile.padded.layout import Dim, Padded, fixed, is_padded, room, size
from torchtpu_core.compile.padded.sizes import Inexact, is_open
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.stablehlo import Value
from torchtpu_core.stablehlo import types as T


def _spread(x: Any, n: int) -> list[int]:
    """One number a dimension, from one for all or from a list."""
    x = [x] if isinstance(x, int) else list(x)
    if any(is_open(v) for v in x):
        raise Inexact("a window of open size")
    return x * n if len(x) == 1 else x


def _planes(w: Walk, x: Any, n: int) -> Padded:
    """`x` whose last `n` dimensions have their counting elements first."""
    x = w.layouts.of(x)
    return w.layouts.plain(x, range(x.ndim - n, x.ndim))


def _outputs(w: Walk, v: Value, sizes: Sequence[sympy.Basic], lead: int) -> tuple[Value, list[Dim]]:
    """A result in the usual rooms of its window dimensions."""
    dims = [w.layouts.prefix(n) for n in sizes[lead:]]
    for i, dim in enumerate(dims):
        v = w.layouts.resized(v, lead + i, room(dim))
    return v, dims


# ---- convolution ---------------------------------------------------------------------------------


def _conv_operands(w: Walk, x: Any, weight: Any) -> Padded:
    n = len(w.dims(weight)) - 2
    x = _planes(w, x, n)
    if isinstance(weight, Padded) or is_padded(x.dims[1]) or x.ndim != n + 2:
        raise Inexact("weights or channels of open size")
    return x


@rule("convolution", "convolution_overrideable")
def _convolution(
    w: Walk, node, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
):
    x, n = _conv_operands(w, x, weight), len(w.dims(weight)) - 2
    window = [_spread(v, n) for v in (stride, padding, dilation)]
    v = w.layouts.filled(x, 0, range(2, x.ndim))
    v = w.lower(node.target, v, weight, bias, *window, transposed, output_padding, groups)
    v, dims = _outputs(w, v, w.shape(node), 2)
    return w.result(node, v, [x.dims[0], fixed(v.shape[1]), *dims])


@rule("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(w: Walk, node, grad, x, weight, *args):
    stride, padding, dilation, transposed, output_padding = args[-7:-2]
    x, n = _conv_operands(w, x, weight), len(w.dims(weight)) - 2
    stride, padding, dilation, output_padding = (
        _spread(v, n) for v in (stride, padding, dilation, output_padding)
    )
    grad = _planes(w, grad, n)
    if grad.dims[0] != x.dims[0]:
        grad, x = w.layouts.plain(grad), w.layouts.plain(x)
    g = w.layouts.filled(grad, 0)
    for i in range(n):
        reach = dilation[i] * (w.dims(weight)[2 + i][0].room - 1) + 1
        m, s, p = x.value.shape[2 + i], stride[i], padding[i]
        out = (m - 1) * s - 2 * p + reach + output_padding[i]
        g = w.layouts.resized(g, 2 + i, out if transposed else (m + 2 * p - reach) // s + 1)
    args = (*args[:-7], stride, padding, dilation, transposed, output_padding, *args[-2:])
    out = w.lower(node.target, g, w.layouts.filled(x, 0), weight, *args)
    layouts = [x.dims, w.dims(weight), None]
    return [
        None if v is None else w.result(node, v, layouts[i] or [fixed(v.shape[0])], i)
        for i, v in enumerate(out)
    ]


# ---- pooling -------------------------------------------------------------------------------------


def _plane_index(w: Walk, index: Value, dims: Sequence[Dim], to_rooms: bool) -> Value:
    """Flat positions in planes of `dims`: from rooms to sizes, or back."""
    if not any(map(is_padded, dims[1:])):
        return index
    b, shape = w.b, index.shape
    n = [w.sizes.count(size(d), index.dtype) for d in dims]
    n = [b.splat(b.maximum(v, b.constant(1, index.dtype)), shape) for v in n]
    m = [b.constant(room(d), index.dtype, shape) for d in dims]
    source, target = (n, m) if to_rooms else (m, n)
    out, stride = b.constant(0, index.dtype, shape), b.constant(1, index.dtype, shape)
    for i in reversed(range(len(dims))):
        out = out + b.remainder(index, source[i]) * stride
        index, stride = b.divide(index, source[i]), stride * target[i]
    return out


def _pooling(n: int) -> None:
    @rule(f"max_pool{n}d_with_indices")
    def max_pool(w: Walk, node, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
        if ceil_mode:
            raise Inexact("ceil_mode")
        x = _planes(w, x, n)
        lead = x.ndim - n
        window = [_spread(v, n) for v in (kernel, stride or kernel, padding, dilation)]
        v = w.layouts.filled(x, T.lowest(x.dtype), range(lead, x.ndim))
        v, index = w.lower(node.target, v, *window)
        index = _plane_index(w, index, x.dims[lead:], to_rooms=False)
        results = []
        for i, r in enumerate((v, index)):
            r, dims = _outputs(w, r, w.shape(node, i), lead)
            results.append(w.result(node, r, [*x.dims[:lead], *dims], i))
        return results

    @rule(f"max_pool{n}d_with_indices_backward")
    def max_pool_backward(
        w: Walk, node, grad, x, kernel, stride, padding, dilation, ceil_mode, index
    ):
        if ceil_mode:
            raise Inexact("ceil_mode")
        x, grad, lead = *(_planes(w, t, n) for t in (x, grad)), len(w.dims(x)) - n
        window = [_spread(v, n) for v in (kernel, stride or kernel, padding, dilation)]
        index = w.layouts.of(index)
        index = w.layouts.as_(index, grad.dims)
        grad, at = w.layouts.filled(grad, 0), w.layouts.filled(index, 0)
        at = _plane_index(w, at, x.dims[lead:], to_rooms=True)
        k, s, p, d = window
        for i in range(n):
            out = (x.value.shape[lead + i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1
            grad, at = (w.layouts.resized(t, lead + i, out) for t in (grad, at))
        v = w.lower(node.target, grad, x.value, *window, False, at)
        return w.result(node, v, x.dims)

    @rule(f"avg_pool{n}d")
    def avg_pool(
        w: Walk, node, x, kernel, stride=(), padding=0, ceil=False, count_pad=True, divisor=None
    ):
        window = _average_window(n, kernel, stride, padding, ceil, count_pad)
        x = _planes(w, x, n)
        lead = x.ndim - n
        v = w.layouts.filled(x, 0, range(lead, x.ndim))
        v = w.lower(node.target, v, *window, False, count_pad, divisor)
        v, dims = _outputs(w, v, w.shape(node), lead)
        return w.result(node, v, [*x.dims[:lead], *dims])

    @rule(f"avg_pool{n}d_backward")
    def avg_pool_backward(
        w: Walk, node, grad, x, kernel, stride, padding, ceil, count_pad, divisor
    ):
        k, s, p = window = _average_window(n, kernel, stride, padding, ceil, count_pad)
        x, grad, lead = *(_planes(w, t, n) for t in (x, grad)), len(w.dims(x)) - n
        grad = w.layouts.filled(grad, 0)
        for i in range(n):
            out = (x.value.shape[lead + i] + 2 * p[i] - k[i]) // s[i] + 1
            grad = w.layouts.resized(grad, lead + i, out)
        v = w.lower(node.target, grad, x.value, *window, False, count_pad, divisor)
        return w.result(node, v, x.dims)


def _average_window(n: int, kernel, stride, padding, ceil: bool, count_pad: bool) -> list:
    """(kernel, stride, padding) of an average whose windows all have the same count."""
    if ceil or (not count_pad and any(_spread(padding, n))):
        raise Inexact("windows that count their elements at the edge")
    return [_spread(v, n) for v in (kernel, stride or kernel, padding)]


_pooling(2)
_pooling(3)
