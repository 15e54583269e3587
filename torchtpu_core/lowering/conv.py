"""Convolutions and their gradients, in any number of spatial dimensions; unfold and fold (im2col,
col2im).

Layouts are PyTorch's: N C *S for data, O I/groups *K for weights (I O/groups *K when transposed).
The gradient of the input is a convolution of the dilated output gradient; that of the weight
contracts over the batch, with batch groups for `groups`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value, host_kernels


@dataclass(frozen=True)
class _Window:
    """How a forward convolution slides: one entry a spatial dimension, `groups` feature groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _window(
    n: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> _Window:
    def spread(xs: Sequence[int]) -> tuple[int, ...]:
        return tuple(xs) if len(xs) == n else tuple(xs) * n

    win = _Window(spread(stride), spread(padding), spread(dilation), groups)
    if min(win.padding, default=0) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(win.dilation, default=1) <= 0:
        raise RuntimeError("dilation should be greater than zero")
    return win


def _numbers(n: int) -> str:
    return "".join(str(i) for i in range(n))


def _positions_of(m: Sequence[int], kernel: Sequence[int], win: _Window) -> list[int]:
    """The spatial size of a convolution's output, all windows that fit in an input of size `m`."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, win.dilation)]
    return [
        (n + 2 * p - span) // st + 1 for n, p, span, st in zip(m, win.padding, spans, win.stride)
    ]


def _on_host(
    b: Builder, kind: str, x: Value, y: Value, shape: Sequence[int], win: _Window
) -> Value:
    """PyTorch's own kernel; kind and operands: as host_kernels.convolution has them."""
    numbers = {
        "stride": win.stride,
        "padding": win.padding,
        "dilation": win.dilation,
        "groups": [win.groups],
    }
    return host_kernels.convolution(b, kind, x, y, shape, numbers)


def _empty(*xs: Value) -> bool:
    return any(x.numel == 0 for x in xs)


def _forward(
    b: Builder, x: Value, w: Value, win: _Window, size: Sequence[int] | None = None
) -> Value:
    """`size`: how many output positions to compute, all of them by default."""
    n, s = x.ndim - 2, _numbers(x.ndim - 2)
    padding = [(p, p) for p in win.padding]
    all_of = _positions_of(x.shape[2:], w.shape[2:], win)
    if size is None:
        size = all_of
        crop = False  # what the stride leaves over at the end, a convolution leaves out by itself
    else:
        spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], win.dilation)]
        need = [(m - 1) * st + span for m, st, span in zip(size, win.stride, spans)]
        padding = [(p, k - m - p) for p, k, m in zip(win.padding, need, x.shape[2:])]
        crop = True
    shape = [x.shape[0], w.shape[0], *size]
    dtype = opmath(x.dtype)
    if _empty(x, w) or math.prod(shape) == 0:
        return b.constant(0, dtype, shape)
    work = math.prod(shape) * w.numel // w.shape[0]
    if list(size) == all_of and host_kernels.takes_convolution(b, x, w, work):
        return _on_host(b, "convolution", x, w, shape, win)
    if crop:
        x, padding = _crop(b, x, padding)
    dims = ("bf" + s, "oi" + s, "bf" + s)
    return b.convolution(
        x, w, dims, shape, win.stride, padding, [1] * n, win.dilation, win.groups, out_dtype=dtype
    )


def _crop(
    b: Builder, x: Value, padding: Sequence[tuple[int, int]]
) -> tuple[Value, list[tuple[int, int]]]:
    """Negative padding applied to `x` (N C *S); what remains is not negative."""
    low = [0, 0, *(min(0, lo) for lo, _ in padding)]
    high = [0, 0, *(min(0, hi) for _, hi in padding)]
    return b.pad(x, 0, low, high), [(max(0, lo), max(0, hi)) for lo, hi in padding]


def _transposed(b: Builder, x: Value, w: Value, win: _Window, size: Sequence[int]) -> Value:
    """The adjoint of `_forward` in x: spreads `x` [N, O, ..] over an output of spatial `size` [N,
    I, ..]; w is [O, I/g, *K]."""
    n, s, g = x.ndim - 2, _numbers(x.ndim - 2), win.groups
    kernel = w.shape[2:]
    shape = [x.shape[0], w.shape[1] * g, *size]
    dtype = opmath(x.dtype)
    if _empty(x, w) or math.prod(shape) == 0:
        return b.constant(0, dtype, shape)
    whole = _positions_of(size, kernel, win) == list(x.shape[2:])
    if whole and host_kernels.takes_convolution(b, x, w, x.numel * w.numel // w.shape[0]):
        return _on_host(b, "convolution_input_gradient", x, w, shape, win)
    w = b.reverse(w, [i + 2 for i in range(n) if kernel[i] > 1])
    if g > 1:  # [g * O/g, I/g, *K] -> [O/g, g * I/g, *K]
        w = b.reshape(w, [g, w.shape[0] // g, *w.shape[1:]])
        w = b.transpose(w, [1, 0, *range(2, w.ndim)])
        w = b.reshape(w, [w.shape[0], g * w.shape[2], *kernel])
    padding = []
    for i in range(n):
        span = (kernel[i] - 1) * win.dilation[i]
        low = span - win.padding[i]
        dilated = (x.shape[i + 2] - 1) * win.stride[i] + 1
        padding.append((low, size[i] + span - low - dilated))
    stride = win.stride
    if any(lo < 0 or hi < 0 for lo, hi in padding):
        interior = [0, 0, *(st - 1 for st in stride)]
        x = b.pad(x, 0, [0] * x.ndim, [0] * x.ndim, interior)
        x, padding = _crop(b, x, padding)
        stride = (1,) * n
    dims = ("bf" + s, "io" + s, "bf" + s)
    return b.convolution(
        x, w, dims, shape, [1] * n, padding, stride, win.dilation, g, out_dtype=dtype
    )


def _weight_grad(b: Builder, x: Value, grad: Value, win: _Window, kernel: Sequence[int]) -> Value:
    """The gradient of w [O, I/g, *K] in `_forward(x [N, I, ..], w)`, from `grad` [N, O, ..]."""
    n, s = x.ndim - 2, _numbers(x.ndim - 2)
    shape = [grad.shape[1], x.shape[1] // win.groups, *kernel]
    dtype = opmath(x.dtype)
    if _empty(x, grad) or math.prod(shape) == 0:
        return b.constant(0, dtype, shape)
    whole = _positions_of(x.shape[2:], kernel, win) == list(grad.shape[2:])
    work = grad.numel * math.prod(shape[1:])
    if whole and host_kernels.takes_convolution(b, x, grad, work):
        return _on_host(b, "convolution_weight_gradient", grad, x, shape, win)
    padding = []
    for i in range(n):
        span = (grad.shape[i + 2] - 1) * win.stride[i] + 1
        need = span + (kernel[i] - 1) * win.dilation[i]
        padding.append((win.padding[i], need - x.shape[i + 2] - win.padding[i]))
    x, padding = _crop(b, x, padding)
    dims = ("fb" + s, "io" + s, "fb" + s)
    out = b.convolution(
        x,
        grad,
        dims,
        shape,
        win.dilation,
        padding,
        [1] * n,
        win.stride,
        1,
        win.groups,
        out_dtype=dtype,
    )
    return _as_the_weight(b, out)


def _as_the_weight(b: Builder, grad: Value) -> Value:
    """A gradient of a weight [O, I, *K], for a TPU in the order that the weight has in memory: K,
    O, I. The compiler would have K, I, O, and all of an optimizer's step in that order, with copies
    of the weight and its moments there and back; a convolution can write either. Where I would fill
    tiles worse than O does, the weight has the compiler's order.
    """
    outs, ins = grad.shape[:2]
    if b.module.target == "cpu" or _padded(outs, ins) > _padded(ins, outs):
        return grad
    return b.with_layout(grad, [1, 0, *reversed(range(2, grad.ndim))])


def _padded(rows: int, cols: int) -> int:
    """Elements of a matrix in a TPU's tiles of 8 x 128."""
    return -(-rows // 8) * 8 * (-(-cols // 128) * 128)


@lowering("convolution", "convolution_overrideable")
def _convolution(b, x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    win = _window(x.ndim - 2, stride, padding, dilation, groups)
    if transposed:
        extra = _window(x.ndim - 2, output_padding, padding, dilation, groups).stride
        size = [
            (x.shape[i + 2] - 1) * st - 2 * p + d * (w.shape[i + 2] - 1) + e + 1
            for i, (st, p, d, e) in enumerate(zip(win.stride, win.padding, win.dilation, extra))
        ]
        out = _transposed(b, x, w, win, size)
    else:
        out = _forward(b, x, w, win)
    if bias is not None:
        out = out + b.reshape(bias.to(out.dtype), [bias.shape[0], *[1] * (x.ndim - 2)])
    return out


@lowering("_convolution")
def _convolution_flags(
    b, x, w, bias, stride, padding, dilation, transposed, output_padding, groups, *flags
):
    return _convolution(
        b, x, w, bias, stride, padding, dilation, transposed, output_padding, groups
    )


@lowering("convolution_backward")
def _convolution_backward(
    b, grad, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask
):
    from torchtpu_core.lowering.pointwise import conj

    win = _window(x.ndim - 2, stride, padding, dilation, groups)
    kernel = w.shape[2:]
    gx = gw = gb = None
    if mask[0]:
        wc = conj(b, w)
        grad_of_input = _forward if transposed else _transposed
        gx = grad_of_input(b, grad, wc, win, x.shape[2:])
    if mask[1]:
        xc = conj(b, x)
        gw = (
            _weight_grad(b, grad, xc, win, kernel)
            if transposed
            else _weight_grad(b, xc, grad, win, kernel)
        )
    if mask[2]:
        gb = b.reduce_op("add", grad.to(opmath(grad.dtype)), [0, *range(2, grad.ndim)])
    return gx, gw, gb


@lowering("convolution_backward_overrideable")
def _convolution_backward_overrideable(
    b, grad, x, w, stride, padding, dilation, transposed, output_padding, groups, mask
):
    return _convolution_backward(
        b, grad, x, w, None, stride, padding, dilation, transposed, output_padding, groups, mask
    )


@lowering("conv_tbc")
def _conv_tbc(b, x, w, bias, pad=0):
    """Time, batch, channel: x [T, B, I], w [K, I, O]."""
    shape = [x.shape[0] + 2 * pad - w.shape[0] + 1, x.shape[1], w.shape[2]]
    dtype = opmath(x.dtype)
    if _empty(x, w) or math.prod(shape) == 0:
        return b.constant(0, dtype, shape) + bias.to(dtype)
    dims = ("0bf", "0io", "0bf")
    out = b.convolution(x, w, dims, shape, [1], [(pad, pad)], [1], [1], out_dtype=dtype)
    return out + bias.to(dtype)


# ---- unfold and fold -----------------------------------------------------------------------------


def _positions(kernel: Sequence[int], dilation: Sequence[int]) -> list[list[int]]:
    """The offset of every kernel element, in order."""
    offsets = [[]]
    for k, d in zip(kernel, dilation):
        offsets = [[*o, i * d] for o in offsets for i in range(k)]
    return offsets


def _blocks(
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> list[int]:
    return [
        (s + 2 * p - d * (k - 1) - 1) // st + 1
        for s, k, d, p, st in zip(size, kernel, dilation, padding, stride)
    ]


def _batched(b: Builder, x: Value, ndim: int) -> tuple[Value, bool]:
    """With a batch dimension, and whether one was added."""
    return (b.unsqueeze(x, 0), True) if x.ndim < ndim else (x, False)


@lowering("im2col")
def _im2col(b, x, kernel, dilation, padding, stride):
    x, added = _batched(b, x, 4)
    n, c = x.shape[:2]
    blocks = _blocks(x.shape[2:], kernel, dilation, padding, stride)
    edges = [0, 0, *padding]
    x = b.pad(x, 0, edges, edges)
    parts = []
    for off in _positions(kernel, dilation):
        limit = [n, c, *(o + (k - 1) * st + 1 for o, k, st in zip(off, blocks, stride))]
        part = b.slice(x, [0, 0, *off], limit, [1, 1, *stride])
        parts.append(b.reshape(part, [n, c, 1, math.prod(blocks)]))
    out = b.reshape(b.concatenate(parts, 2), [n, c * len(parts), math.prod(blocks)])
    return b.squeeze(out, [0]) if added else out


@lowering("col2im")
def _col2im(b, x, output_size, kernel, dilation, padding, stride):
    x, added = _batched(b, x, 3)
    n, k = x.shape[0], math.prod(kernel)
    c = x.shape[1] // k
    blocks = _blocks(output_size, kernel, dilation, padding, stride)
    x = b.reshape(x.to(opmath(x.dtype)), [n, c, k, *blocks])
    total = None
    for j, off in enumerate(_positions(kernel, dilation)):
        part = b.reshape(b.slice_dim(x, 2, j, j + 1), [n, c, *blocks])
        low = [o - p for o, p in zip(off, padding)]
        spread = [(m - 1) * st + 1 for m, st in zip(blocks, stride)]
        high = [s - lo - m for s, lo, m in zip(output_size, low, spread)]
        part = b.pad(part, 0, [0, 0, *low], [0, 0, *high], [0, 0, *(st - 1 for st in stride)])
        total = part if total is None else total + part
    return b.squeeze(total, [0]) if added else total
