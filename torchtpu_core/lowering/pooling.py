"""Pooling: max (with indices), average, adaptive, fractional, unpooling, and their gradients.

Maxima and their positions are taken one axis at a time, last axis first: the first of equal values
in row-major order wins and NaN wins over everything, as on CPU. Averages are window sums divided by
counts that are known when the program is built.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.lowering.upsample import along, resample, take
from torchtpu_core.stablehlo import Builder, Value, host_kernels
from torchtpu_core.stablehlo import types as T

#: windows up to this size are unrolled in the gradient of max pooling; larger ones scatter
_UNROLL = 32


def _spread(xs: Sequence[int], n: int) -> list[int]:
    return list(xs) if len(xs) == n else list(xs) * n


def _out_size(size: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    out = (size + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    if ceil and (out - 1) * s >= size + p:
        out -= 1  # the last window must start inside the input or its left padding
    return out


# ---- max -----------------------------------------------------------------------------------------


def _max_along(
    b: Builder,
    x: Value,
    index: Value | None,
    axis: int,
    columns: np.ndarray,
    valid: np.ndarray,
    pitch: int,
) -> tuple[Value, Value]:
    """The maximum over the window columns[o] (where valid) of each output position along `axis`.

    index: flat positions of the values so far, to which column * pitch is added.
    """
    best = at = None
    for j in range(columns.shape[1]):
        seen, here = valid[:, :j].any(1), valid[:, j]
        position = np.where(here, columns[:, j], 0) * pitch
        if not here.any():
            continue
        v = _column(b, x, axis, columns[:, j], here)
        i = along(b, position, "i32", axis, x.ndim)
        if index is not None:  # still of size 1 along axes that it does not depend on
            moved = index.shape[axis] != 1 or x.shape[axis] == 1
            i = i + (_column(b, index, axis, columns[:, j], here) if moved else index)
        if best is None:
            best, at = v, i
            continue
        better = v > best
        if v.dtype in T.FLOATS:
            better = better | b.is_nan(v)
        if not here.all():
            better = better & along(b, here, "i1", axis, x.ndim)
        if not seen.all():
            better = better | along(b, here & ~seen, "i1", axis, x.ndim)
        best, at = b.select(better, v, best), b.select(better, i, at)
    return best, at


def _column(b: Builder, x: Value, axis: int, columns: np.ndarray, here: np.ndarray) -> Value:
    """x at `columns`; where not `here`, anything. Evenly spaced columns are one (padded) slice."""
    n = len(columns)
    steps = np.diff(columns)
    if n > 1 and steps[0] > 0 and (steps == steps[0]).all():
        low = max(0, -int(columns[0]))
        high = max(0, int(columns[-1]) - x.shape[axis] + 1)
        if low or high:
            lo, hi = [0] * x.ndim, [0] * x.ndim
            lo[axis], hi[axis] = low, high
            x = b.pad(x, 0, lo, hi)
        return take(b, x, axis, columns + low)
    return take(b, x, axis, columns.clip(0, x.shape[axis] - 1))


def _windows(size: int, k: int, s: int, p: int, d: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    columns = np.arange(out)[:, None] * s - p + np.arange(k) * d
    return columns, (columns >= 0) & (columns < size)


def _bins(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """The adaptive windows: [floor(i size / out), ceil((i + 1) size / out))."""
    i = np.arange(out)
    start, stop = i * size // out, -(-(i + 1) * size // out)
    columns = start[:, None] + np.arange(int((stop - start).max(initial=0)))
    return columns, columns < stop[:, None]


def _max_pool(
    b: Builder, x: Value, windows: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[Value, Value]:
    """(values, flat indices within the last len(windows) dimensions)."""
    n = len(windows)
    shape = [*x.shape[: x.ndim - n], *(len(c) for c, _ in windows)]
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape), b.constant(0, "i32", shape)
    index, pitch = None, 1
    for axis in reversed(range(x.ndim - n, x.ndim)):
        size = x.shape[axis]
        x, index = _max_along(b, x, index, axis, *windows[axis - len(shape) + n], pitch)
        pitch *= size
    return x, b.expand(index, x.shape)


def _max_pool_windows(n: int, kernel, stride, padding, dilation) -> list[tuple[int, int, int, int]]:
    """(kernel, stride, padding, dilation) of each of n dimensions."""
    k, p, d = (_spread(v, n) for v in (kernel, padding, dilation))
    return list(zip(k, _spread(stride, n) if len(stride) else k, p, d))


def _maxima(
    b: Builder, x: Value, windows: Sequence[tuple[int, int, int, int]], ceil: bool
) -> Value:
    """The values alone; windows: (kernel, stride, padding, dilation) of each of the last dimensions
    of `x`. NaN wins, and a window that sees nothing gives the lowest value, as on CPU.
    """
    lead = x.ndim - len(windows)
    outs = [_out_size(m, *w, ceil) for m, w in zip(x.shape[lead:], windows)]
    if math.prod([*x.shape[:lead], *outs]) == 0:
        return b.constant(0, x.dtype, [*x.shape[:lead], *outs])
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, (k, s, _, d) in zip(outs, windows)]
    high = [max(0, span - m - w[2]) for span, m, w in zip(spans, x.shape[lead:], windows)]
    if b.module.target == "cpu":
        return _maxima_by_slices(b, x, windows, outs, high)
    none, ones = [(0, 0)] * lead, [1] * lead
    kernel, stride, low, dilation = zip(*windows)
    (out,) = b.reduce_window(
        [x],
        [b.constant(T.lowest(x.dtype), x.dtype)],
        b.maximum,
        ones + list(kernel),
        ones + list(stride),
        none + list(zip(low, high)),
        window_dilation=ones + list(dilation),
    )
    return out


def _maxima_by_slices(
    b: Builder,
    x: Value,
    windows: Sequence[tuple[int, int, int, int]],
    outs: Sequence[int],
    high: Sequence[int],
) -> Value:
    """Maxima of strided slices, one dimension after the other: XLA's CPU compiler makes vector
    loops of these and scalar ones of a reduce_window. The barriers keep the padding out of those
    loops, and a dimension from being computed once for each slice of the next. A transposed value
    stays in the order that it has in memory.
    """
    lead = x.ndim - len(windows)
    order = list(range(x.ndim))
    if x.origin is not None and x.origin[1] is not None:
        x, order = x.origin
    low, up = [0] * x.ndim, [0] * x.ndim
    for axis, (_, _, p, _), h in zip(order[lead:], windows, high):
        low[axis], up[axis] = p, h
    x = b.pad(x, T.lowest(x.dtype), low, up)
    for axis, (k, s, _, d), out in zip(order[lead:], windows, outs):
        (x,) = b.barrier([x])
        parts = [b.slice_dim(x, axis, j * d, j * d + (out - 1) * s + 1, s) for j in range(k)]
        x = functools.reduce(b.maximum, parts)
    return b.transpose(x, order)


def _register_max_pool(n: int) -> None:
    @lowering(f"max_pool{n}d_with_indices")
    def with_indices(b, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
        windows = _max_pool_windows(n, kernel, stride, padding, dilation)
        sizes = zip(x.shape[x.ndim - n :], windows)
        return _max_pool(b, x, [_windows(m, *w, _out_size(m, *w, ceil_mode)) for m, w in sizes])

    @lowering(f"max_pool{n}d")
    def values(b, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
        return _maxima(b, x, _max_pool_windows(n, kernel, stride, padding, dilation), ceil_mode)


for _n in (2, 3):
    _register_max_pool(_n)


def _scatter_planes(
    b: Builder, init: Value, index: Value, updates: Value, n: int, add: bool
) -> Value:
    """Writes `updates` at flat `index` within the last n dimensions of `init`."""
    lead, shape = init.shape[: init.ndim - n], init.shape
    rows = math.prod(lead)
    index = b.reshape(index.to("i32"), [rows, -1 if rows == 0 else index.numel // rows, 1])
    updates = b.reshape(updates, index.shape[:2])
    flat = b.reshape(init, [rows, math.prod(shape[len(lead) :])])
    body = (lambda old, new: b.add(old, new)) if add else (lambda old, new: new)
    out = b.scatter([flat], index, [updates], body, [], [1], [1], 2, [0], [0])[0]
    return b.reshape(out, shape)


def _max_backward(b: Builder, grad: Value, x: Value, index: Value, n: int) -> Value:
    dtype = opmath(grad.dtype)
    zero = b.constant(0, dtype, x.shape)
    if grad.numel == 0 or x.numel == 0:
        return zero
    return _scatter_planes(b, zero, index, grad.to(dtype), n, add=True)


@lowering("max_pool2d_with_indices_backward")
def _max_pool2d_backward(b, grad, x, kernel, stride, padding, dilation, ceil_mode, index):
    if x.ndim == 4 and host_kernels.takes(b, x, grad):
        names = ("kernel", "stride", "padding", "dilation")
        windows = _max_pool_windows(2, kernel, stride, padding, dilation)
        numbers = {**dict(zip(names, zip(*windows))), "ceil_mode": [int(ceil_mode)]}
        return host_kernels.max_pool2d_backward(b, grad, index.to("i64"), x.shape, numbers)
    return _max_pool_backward(b, grad, x, 2, kernel, stride, padding, dilation, index)


@lowering("max_pool3d_with_indices_backward")
def _max_pool3d_backward(b, grad, x, kernel, stride, padding, dilation, ceil_mode, index):
    return _max_pool_backward(b, grad, x, 3, kernel, stride, padding, dilation, index)


def _max_pool_select(
    b: Builder, grad: Value, x: Value, windows: Sequence[tuple[int, int, int]]
) -> Value:
    """The gradient of `_max_pool` in f32 from its input, not from the positions, which are then
    not made: a TPU has an instruction for it. Windows: (kernel, stride, padding) of each of the
    last dimensions. The first of equals is taken, and the last NaN, as on CPU.
    """
    lead, dtype = x.ndim - len(windows), opmath(grad.dtype)
    if lead < 2:  # a TPU's compiler wants two dimensions without a window
        wide = (b.reshape(v, [1] * (2 - lead) + list(v.shape)) for v in (grad, x))
        return b.reshape(_max_pool_select(b, *wide, windows), x.shape)
    kernel, stride, low = zip(*windows)
    ends = zip(x.shape[lead:], grad.shape[lead:], windows)
    high = [max(0, (o - 1) * s + k - m - p) for m, o, (k, s, p) in ends]
    none, ones = [(0, 0)] * lead, [1] * lead
    return b.select_and_scatter(
        x.to(dtype),
        grad.to(dtype),
        b.constant(0, dtype),
        lambda best, other: (best >= other) | (best.ne(best) & other.eq(other)),
        b.add,
        ones + list(kernel),
        ones + list(stride),
        none + list(zip(low, high)),
    )


def _max_pool_backward(b, grad, x, n, kernel, stride, padding, dilation, index) -> Value:
    k, s, p, d = zip(*_max_pool_windows(n, kernel, stride, padding, dilation))
    floats = x.dtype in ("bf16", "f16", "f32")
    if b.module.target != "cpu" and floats and set(d) == {1} and grad.numel and x.numel:
        return _max_pool_select(b, grad, x, list(zip(k, s, p)))
    if math.prod(k) > _UNROLL or grad.numel == 0 or x.numel == 0:
        return _max_backward(b, grad, x, index, n)
    lead, sizes, outs = x.ndim - n, x.shape[x.ndim - n :], grad.shape[x.ndim - n :]
    index, grad = index.to("i32"), grad.to(opmath(grad.dtype))
    total = None
    for at in np.ndindex(*k):
        flat: Value | int = 0  # the flat position this kernel element looks at from each window
        off = [a * di - pi for a, di, pi in zip(at, d, p)]
        for i in range(n):
            column = (np.arange(outs[i]) * s[i] + off[i]) * math.prod(sizes[i + 1 :])
            flat = along(b, column, "i32", lead + i, x.ndim) + flat
        part = b.select(index.eq(b.expand(flat, index.shape)), grad, 0)
        high = [m - o - (c - 1) * st - 1 for m, o, c, st in zip(sizes, off, outs, s)]
        zeros = [0] * lead
        part = b.pad(part, 0, zeros + off, zeros + high, zeros + [st - 1 for st in s])
        total = part if total is None else total + part
    return total


@lowering("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(b, x, output_size):
    n = len(output_size)
    return _max_pool(b, x, [_bins(s, o) for s, o in zip(x.shape[x.ndim - n :], output_size)])


@lowering("adaptive_max_pool2d_backward")
def _adaptive_max_pool2d_backward(b, grad, x, index):
    return _max_backward(b, grad, x, index, 2)


@lowering("adaptive_max_pool3d_backward")
def _adaptive_max_pool3d_backward(b, grad, x, index):
    return _max_backward(b, grad, x, index, 3)


@lowering("max_unpool2d")
def _max_unpool2d(b, x, index, output_size):
    return _unpool(b, x, index, output_size)


@lowering("max_unpool3d")
def _max_unpool3d(b, x, index, output_size, stride, padding):
    return _unpool(b, x, index, output_size)


def _unpool(b: Builder, x: Value, index: Value, size: Sequence[int]) -> Value:
    n = len(size)
    zero = b.constant(0, x.dtype, [*x.shape[: x.ndim - n], *size])
    return _scatter_planes(b, zero, index, x, n, add=False) if x.numel else zero


# ---- fractional max ------------------------------------------------------------------------------


def _fractional_windows(b: Builder, sample: Value, size: int, out: int, k: int) -> Value:
    """Start [R, out] of each window, from one random number [R] a plane."""
    if out == 1:
        return b.constant(size - k, "i32", [*sample.shape, 1])
    alpha = np.float32(size - k) / np.float32(out - 1)
    s = b.unsqueeze(sample, 1)
    i = b.reshape(b.iota(sample.dtype, [out]), [1, out])
    start = ((i + s) * float(alpha)).to("i32") - (s * float(alpha)).to("i32")
    last = b.iota("i32", start.shape, 1).eq(out - 1)
    return b.select(last, size - k, start)


def _fractional(
    b: Builder, x: Value, kernel: Sequence[int], outs: Sequence[int], samples: Value
) -> tuple:
    n = len(kernel)
    lead, sizes = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    rows, shape = math.prod(lead), [*lead, *outs]
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape), b.constant(0, "i32", shape)
    samples = b.reshape(samples, [rows, n])
    flat: Value | int = 0
    for i in range(n):
        j = i if n == 3 else n - 1 - i  # the order of the samples differs
        sample = b.reshape(b.slice_dim(samples, 1, j, j + 1), [rows])
        start = _fractional_windows(b, sample, sizes[i], outs[i], kernel[i])  # [R, out]
        at = b.unsqueeze(start, 2) + b.reshape(b.iota("i32", [kernel[i]]), [1, 1, kernel[i]])
        dims = [1] * (2 * n)
        dims[i], dims[n + i] = outs[i], kernel[i]
        flat = b.reshape(at * math.prod(sizes[i + 1 :]), [rows, *dims]) + flat
    window, size = math.prod(kernel), math.prod(sizes)
    index = b.reshape(flat, [rows, math.prod(outs), window])
    plane = b.reshape(x, [rows, size])
    values = b.gather(plane, b.unsqueeze(index, 3), index.shape, [], [1], [1], [1, 1], 3, [0], [0])
    best, at = _max_along(
        b, values, None, 2, np.arange(window)[None], np.ones((1, window), bool), 1
    )
    at = b.expand(at, best.shape)
    pick = b.iota("i32", index.shape, 2).eq(b.expand(at, index.shape))
    index = b.reduce_op("add", b.select(pick, index, 0), [2])
    return b.reshape(best, shape), b.reshape(index, shape)


@lowering("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional_max_pool(b, x, kernel, output_size, samples):
    return _fractional(b, x, kernel, output_size, samples)


@lowering("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def _fractional_max_pool_backward(b, grad, x, kernel, output_size, index):
    return _max_backward(b, grad, x, index, len(kernel))


# ---- average -------------------------------------------------------------------------------------


def _counts(size: int, k: int, s: int, p: int, out: int, include_pad: bool) -> np.ndarray:
    start = np.arange(out) * s - p
    stop = np.minimum(start + k, size + p)
    return stop - start if include_pad else np.minimum(stop, size) - np.maximum(start, 0)


def _average(b: Builder, x: Value, counts: Sequence[np.ndarray], override: int | None) -> Value:
    """Window sums over the number of elements of each window."""
    n = len(counts)
    divisor: Value | int = override or 1
    if not override:
        for i, c in enumerate(counts):
            divisor = along(b, c, x.dtype, x.ndim - n + i, x.ndim) * divisor
    return x / divisor


def _avg_args(sizes: Sequence[int], n: int, kernel, stride, padding, ceil: bool) -> tuple:
    k, p = _spread(kernel, n), _spread(padding, n)
    s = _spread(stride, n) if len(stride) else k
    outs = [_out_size(m, ki, si, pi, 1, ceil) for m, ki, si, pi in zip(sizes, k, s, p)]
    return k, s, p, outs


def _avg_pool(
    b, x, n, kernel, stride, padding, ceil_mode, count_include_pad, override=None
) -> Value:
    sizes = x.shape[x.ndim - n :]
    k, s, p, outs = _avg_args(sizes, n, kernel, stride, padding, ceil_mode)
    lead = x.ndim - n
    x = x.to(opmath(x.dtype))
    if x.numel == 0 or math.prod(outs) == 0:
        return b.constant(0, x.dtype, [*x.shape[:lead], *outs])
    ones = [1] * lead
    edges = [(pi, (o - 1) * si + ki - m - pi) for o, si, ki, m, pi in zip(outs, s, k, sizes, p)]
    x = _crop_high(b, x, lead, edges)
    padding = [(0, 0)] * lead + [(lo, max(0, hi)) for lo, hi in edges]
    sums = b.reduce_window([x], [b.constant(0, x.dtype)], b.add, ones + k, ones + s, padding)[0]
    counts = [_counts(*a, count_include_pad) for a in zip(sizes, k, s, p, outs)]
    return _average(b, sums, counts, override)


def _crop_high(b: Builder, x: Value, lead: int, edges: Sequence[tuple[int, int]]) -> Value:
    return b.pad(x, 0, [0] * x.ndim, [0] * lead + [min(0, hi) for _, hi in edges])


def _avg_pool_backward(
    b, grad, x, n, kernel, stride, padding, ceil_mode, count_include_pad, override=None
):
    lead, sizes = x.ndim - n, x.shape[x.ndim - n :]
    k, s, p, outs = _avg_args(sizes, n, kernel, stride, padding, ceil_mode)
    grad = grad.to(opmath(grad.dtype))
    if x.numel == 0:
        return b.constant(0, grad.dtype, x.shape)
    counts = [_counts(*a, count_include_pad) for a in zip(sizes, k, s, p, outs)]
    grad = _average(b, grad, counts, override)
    low = [ki - 1 - pi for ki, pi in zip(k, p)]
    high = [
        m + ki - 1 - lo - ((o - 1) * si + 1) for m, ki, lo, o, si in zip(sizes, k, low, outs, s)
    ]
    zeros = [0] * lead
    grad = b.pad(grad, 0, zeros + low, zeros + high, zeros + [si - 1 for si in s])
    return b.reduce_window([grad], [b.constant(0, grad.dtype)], b.add, [1] * lead + k)[0]


@lowering("avg_pool1d")
def _avg_pool1d(b, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True):
    return _avg_pool(b, x, 1, kernel, stride, padding, ceil_mode, count_include_pad)


def _register_avg_pool(n: int) -> None:
    @lowering(f"avg_pool{n}d")
    def forward(b, x, *args):
        return _avg_pool(b, x, n, *args)

    @lowering(f"avg_pool{n}d_backward")
    def backward(b, grad, x, *args):
        return _avg_pool_backward(b, grad, x, n, *args)


for _n in (2, 3):
    _register_avg_pool(_n)


def _bin_matrix(size: int, out: int) -> np.ndarray:
    """The mean over each adaptive window as a matrix [out, size]."""
    m = np.zeros((out, size))
    for o, (columns, valid) in enumerate(zip(*_bins(size, out))):
        m[o, columns[valid]] = 1 / valid.sum()
    return m


@lowering("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def _adaptive_avg_pool(b, x, output_size):
    n, dtype = len(output_size), x.dtype
    lead, sizes = x.ndim - n, x.shape[x.ndim - n :]
    x = x.to(opmath(dtype))
    if x.numel == 0 or math.prod(output_size) == 0:
        return b.constant(0, x.dtype, [*x.shape[:lead], *output_size])
    if all(s % o == 0 for s, o in zip(sizes, output_size)):
        split = [v for s, o in zip(sizes, output_size) for v in (o, s // o)]
        x = b.reshape(x, [*x.shape[:lead], *split])
        x = b.reduce_op("add", x, [lead + 2 * i + 1 for i in range(n)])
        return x / math.prod(s // o for s, o in zip(sizes, output_size))
    for i in range(n):
        x = resample(b, x, lead + i, _bin_matrix(sizes[i], output_size[i]))
    return x


@lowering("_adaptive_avg_pool2d_backward")
def _adaptive_avg_pool2d_backward(b, grad, x):
    return _adaptive_avg_backward(b, grad, x, 2)


@lowering("_adaptive_avg_pool3d_backward")
def _adaptive_avg_pool3d_backward(b, grad, x):
    return _adaptive_avg_backward(b, grad, x, 3)


def _adaptive_avg_backward(b: Builder, grad: Value, x: Value, n: int) -> Value:
    grad = grad.to(opmath(grad.dtype))
    if x.numel == 0 or grad.numel == 0:
        return b.constant(0, grad.dtype, x.shape)
    for axis in range(x.ndim - n, x.ndim):
        grad = resample(b, grad, axis, _bin_matrix(x.shape[axis], grad.shape[axis]).T)
    return grad
