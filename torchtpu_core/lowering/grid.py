"""grid_sampler in two and three dimensions, forward and backward.

A sample point reads a few taps of its plane: flat positions, weights and the weights' derivatives,
all computed from the grid. The value is a gather of the taps; the gradient of the input a
scatter-add of them, that of the grid a sum over taps and channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_A = -0.75  # PyTorch's cubic convolution coefficient


class _Tap(NamedTuple):
    """One tap of every sample point [N, P]: flat position, weight (0 outside the plane),
    derivatives by coordinate."""

    index: Value
    weight: Value
    slopes: list[Value]


def _reflected(b: Builder, c: Value, low2: int, high2: int) -> tuple[Value, Value]:
    """`c` mirrored into [low2 / 2, high2 / 2], and the sign of its derivative."""
    if low2 == high2:
        zero = b.constant(0, c.dtype, c.shape)
        return zero, zero
    low, span = low2 / 2, (high2 - low2) / 2
    c = c - low
    sign = b.select(c < 0, b.constant(-1, c.dtype, c.shape), 1)
    c = b.abs(c)
    flips = b.floor(c / span)
    rest = b.remainder(c, b.constant(span, c.dtype, c.shape))
    odd = b.remainder(flips, b.constant(2, c.dtype, c.shape)).ne(0)
    return b.select(odd, span - rest, rest) + low, b.select(odd, -sign, sign)


def _pad_coordinate(
    b: Builder, c: Value, size: int, padding: int, align: bool
) -> tuple[Value, Value | None]:
    """A coordinate brought into the plane as the padding mode says; its derivative (None: 1)."""
    slope = None
    if padding == _REFLECTION:
        c, slope = (
            _reflected(b, c, 0, 2 * (size - 1)) if align else _reflected(b, c, -1, 2 * size - 1)
        )
    if padding != _ZEROS:
        inside = ((c > 0) & (c < size - 1)).to(c.dtype)
        slope = inside if slope is None else slope * inside
        c = b.clamp(b.constant(0, c.dtype), c, b.constant(size - 1, c.dtype))
    return c, slope


def _cubic_weights(b: Builder, t: Value) -> list[tuple[Value, Value]]:
    """(weight, derivative) of the taps at -1, 0, 1, 2 for the fraction `t`."""
    out = []
    for x, sign in ((t + 1, 1), (t, 1), (1 - t, -1), (2 - t, -1)):
        if x is t or len(out) == 2:  # |x| < 1
            w = ((_A + 2) * x - (_A + 3)) * x * x + 1
            d = (3 * (_A + 2) * x - 2 * (_A + 3)) * x
        else:
            w = ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
            d = (3 * _A * x - 10 * _A) * x + 8 * _A
        out.append((w, d * sign))
    return out


def _taps(
    b: Builder, grid: Value, sizes: Sequence[int], mode: int, padding: int, align: bool
) -> tuple[list[_Tap], list[Value]]:
    """The taps of every point, and d(coordinate)/d(grid) by spatial dimension. grid: [N, P, n],
    last dimension first."""
    n = len(sizes)
    per_axis: list[list[tuple[Value, Value, Value]]] = []  # (position, weight, derivative)
    factors = []
    for i, size in enumerate(sizes):
        g = b.squeeze(b.slice_dim(grid, 2, n - 1 - i, n - i), [2])
        factor = (size - 1) / 2 if align else size / 2
        c = (g + 1) * ((size - 1) / 2) if align else ((g + 1) * size - 1) * 0.5
        slope = None
        if mode != _CUBIC:
            c, slope = _pad_coordinate(b, c, size, padding, align)
        factors.append(b.constant(factor, c.dtype, c.shape) if slope is None else slope * factor)
        one = b.constant(1, c.dtype, c.shape)
        if mode == _NEAREST:
            per_axis.append(
                [(b.unary("round_nearest_even", c), one, b.constant(0, c.dtype, c.shape))]
            )
            continue
        low = b.floor(c)
        t = c - low
        if mode == _LINEAR:
            per_axis.append([(low, 1 - t, -one), (low + 1, t, one)])
        else:
            at = [_pad_coordinate(b, low + j, size, padding, align)[0] for j in (-1, 0, 1, 2)]
            per_axis.append([(p, *w) for p, w in zip(at, _cubic_weights(b, t))])
    taps = []
    for choice in itertools.product(*per_axis):
        flat = inside = None
        for (at, _, _), size in zip(choice, sizes):
            ok = (at >= 0) & (at <= size - 1)
            inside = ok if inside is None else inside & ok
            whole = b.select(ok, at, 0).to("i32")
            flat = whole if flat is None else flat * size + whole
        slopes = [
            b.select(inside, _product(c[2] if j == i else c[1] for j, c in enumerate(choice)), 0)
            for i in range(n)
        ]
        taps.append(_Tap(flat, b.select(inside, _product(c[1] for c in choice), 0), slopes))
    return taps, factors


def _product(xs) -> Value:
    total = None
    for x in xs:
        total = x if total is None else total * x
    return total


def _planes(b: Builder, x: Value) -> Value:
    """[N, C, *S] -> [N, C, prod S] in the accumulation type."""
    return b.reshape(x.to(opmath(x.dtype)), [*x.shape[:2], math.prod(x.shape[2:])])


def _read(b: Builder, plane: Value, index: Value) -> Value:
    """[N, C, S] at [N, P] -> [N, C, P]."""
    shape = [*plane.shape[:2], index.shape[1]]
    sizes = [1, plane.shape[1], 1]
    return b.gather(plane, b.unsqueeze(index, 2), shape, [1], [2], [2], sizes, 2, [0], [0])


def _points(b: Builder, grid: Value) -> Value:
    """[N, *out, n] -> [N, P, n] in the accumulation type."""
    count = math.prod(grid.shape[1:-1])
    return b.reshape(grid.to(opmath(grid.dtype)), [grid.shape[0], count, grid.shape[-1]])


@lowering("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(b, x, grid, mode, padding, align):
    shape = [*x.shape[:2], *grid.shape[1:-1]]
    if x.numel == 0 or grid.numel == 0:
        return b.constant(0, x.dtype, shape)
    plane = _planes(b, x)
    total = None
    for tap in _taps(b, _points(b, grid), x.shape[2:], mode, padding, align)[0]:
        part = _read(b, plane, tap.index) * b.unsqueeze(tap.weight, 1)
        total = part if total is None else total + part
    return b.reshape(total, shape)


@lowering("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(b, grad, x, grid, mode, padding, align, mask):
    if x.numel == 0 or grid.numel == 0:
        return b.constant(0, x.dtype, x.shape), b.constant(0, grid.dtype, grid.shape)
    n = grid.shape[-1]
    plane, g = _planes(b, x), _planes(b, grad)
    taps, factors = _taps(b, _points(b, grid), x.shape[2:], mode, padding, align)
    gx = gg = None
    if mask[0]:
        index = b.concatenate([t.index for t in taps], 1)
        updates = b.concatenate([g * b.unsqueeze(t.weight, 1) for t in taps], 2)
        zero = b.constant(0, g.dtype, plane.shape)
        args = (b.add, [1], [2], [2], 2, [0], [0])
        gx = b.reshape(b.scatter([zero], b.unsqueeze(index, 2), [updates], *args)[0], x.shape)
    if mask[1]:
        sums: list[Value | None] = [None] * n
        if mode == _NEAREST:
            return gx, b.constant(0, grid.dtype, grid.shape)
        for tap in taps:
            v = b.reduce_op("add", _read(b, plane, tap.index) * g, [1])
            for i in range(n):
                part = v * tap.slopes[i]
                sums[i] = part if sums[i] is None else sums[i] + part
        parts = [b.unsqueeze(s * f, 2) for s, f in zip(sums, factors)]
        gg = b.reshape(b.concatenate(parts[::-1], 2), grid.shape)
    return gx, gg
