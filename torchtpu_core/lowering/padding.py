"""Reflection and replication padding, forward and backward: slices, reversals and concatenations
along one axis at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value


def _axes(x: Value, padding: Sequence[int]) -> list[tuple[int, int, int]]:
    """(axis, low, high) from PyTorch's padding list, which starts with the last axis."""
    return [
        (x.ndim - 1 - i, padding[2 * i], padding[2 * i + 1])
        for i in range(len(padding) // 2)
        if padding[2 * i] or padding[2 * i + 1]
    ]


def _crop(b: Builder, x: Value, axis: int, low: int, high: int) -> Value:
    """Negative padding; positive counts as none."""
    return b.slice_dim(x, axis, max(0, -low), x.shape[axis] - max(0, -high))


def _reflect(b: Builder, x: Value, axis: int, low: int, high: int) -> Value:
    n, parts = x.shape[axis], [x]
    if low > 0:
        parts.insert(0, b.reverse(b.slice_dim(x, axis, 1, low + 1), [axis]))
    if high > 0:
        parts.append(b.reverse(b.slice_dim(x, axis, n - 1 - high, n - 1), [axis]))
    return _crop(b, b.concatenate(parts, axis), axis, low, high)


def _replicate(b: Builder, x: Value, axis: int, low: int, high: int) -> Value:
    n, parts = x.shape[axis], [x]
    if low > 0:
        parts.insert(0, _edge(b, x, axis, 0, low))
    if high > 0:
        parts.append(_edge(b, x, axis, n - 1, high))
    return _crop(b, b.concatenate(parts, axis), axis, low, high)


def _edge(b: Builder, x: Value, axis: int, at: int, count: int) -> Value:
    edge = b.slice_dim(x, axis, at, at + 1)
    return b.expand(edge, [*x.shape[:axis], count, *x.shape[axis + 1 :]])


def _along(x: Value, axis: int, low: int, high: int) -> tuple[list[int], list[int]]:
    """Padding amounts that touch one axis."""
    lo, hi = [0] * x.ndim, [0] * x.ndim
    lo[axis], hi[axis] = low, high
    return lo, hi


def _backward(b: Builder, g: Value, axis: int, low: int, high: int, reflect: bool) -> Value:
    """Folds the gradient of the padded border onto the elements it came from."""
    lo, hi = max(0, low), max(0, high)
    g = b.pad(g, 0, *_along(g, axis, max(0, -low), max(0, -high)))
    n = g.shape[axis] - lo - hi
    total = b.slice_dim(g, axis, lo, lo + n)
    for count, part in ((lo, (0, lo)), (hi, (lo + n, lo + n + hi))):
        if not count:
            continue
        border, first = b.slice_dim(g, axis, *part), part[0] == 0
        if reflect:
            border = b.reverse(border, [axis])
            at = 1 if first else n - 1 - count
        else:
            border = b.reduce_op("add", border, [axis], keepdim=True)
            at = 0 if first else n - 1
        total = total + b.pad(border, 0, *_along(g, axis, at, n - at - border.shape[axis]))
    return total


def _register(name: str, reflect: bool) -> None:
    @lowering(name)
    def forward(b, x, padding):
        for axis, low, high in _axes(x, padding):
            x = (_reflect if reflect else _replicate)(b, x, axis, low, high)
        return x

    @lowering(f"{name}_backward")
    def backward(b, grad, x, padding):
        grad = grad.to(opmath(grad.dtype))
        if grad.numel == 0:
            return b.constant(0, grad.dtype, x.shape)
        for axis, low, high in reversed(_axes(x, padding)):
            grad = _backward(b, grad, axis, low, high, reflect)
        return grad


for _n in (1, 2, 3):
    _register(f"reflection_pad{_n}d", True)
    _register(f"replication_pad{_n}d", False)
