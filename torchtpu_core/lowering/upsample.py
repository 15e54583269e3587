"""Resampling by fixed sparse matrices, one axis at a time: nearest, linear, cubic, antialiased, and
their gradients.

An interpolation along one axis is a matrix [out, in] known when the program is built; its gradient
is the transpose. `resample` applies such a matrix by slices or gathers of the few taps of each row,
so that NaN and inf reach only the outputs they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value


def take(b: Builder, x: Value, axis: int, index: np.ndarray) -> Value:
    """`x` at fixed positions along `axis`; `index` may have several dimensions, which replace the
    axis."""
    axis = axis % x.ndim
    flat = index.reshape(-1)
    n, size = flat.size, x.shape[axis]
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    step = int(flat[1] - flat[0]) if n > 1 else 1
    if n and step > 0 and np.array_equal(flat, flat[0] + step * np.arange(n)):
        return b.reshape(b.slice_dim(x, axis, int(flat[0]), int(flat[-1]) + 1, step), shape)
    if size and n % size == 0 and np.array_equal(flat, np.arange(n) // (n // size)):
        wide = (*x.shape[: axis + 1], n // size, *x.shape[axis + 1 :])
        dims = [d for d in range(x.ndim + 1) if d != axis + 1]
        return b.reshape(b.broadcast_in_dim(x, wide, dims), shape)
    where = b.array(index.astype(np.int32))
    offset = [d for d in range(len(shape)) if not axis <= d < axis + index.ndim]
    sizes = [1 if d == axis else s for d, s in enumerate(x.shape)]
    return b.gather(x, where, shape, offset, [axis], [axis], sizes, index.ndim)


def along(b: Builder, data: np.ndarray, dtype: str, axis: int, ndim: int) -> Value:
    """A constant whose dimensions lie at `axis`.. of an `ndim`-dimensional tensor, to broadcast
    against it."""
    shape = [1] * ndim
    shape[axis : axis + data.ndim] = data.shape
    if data.size and (data == data.flat[0]).all():
        return b.constant(data.flat[0].item(), dtype, [1] * ndim)
    return b.reshape(b.array(data, dtype), shape)


#: rows with more taps than this are gathered at once and reduced
_FEW_TAPS = 4


def resample(b: Builder, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """The product of `matrix` [out, in] with `x` along `axis`."""
    axis = axis % x.ndim
    out, size = matrix.shape
    if out == size and np.array_equal(matrix, np.eye(size)):
        return x
    used = matrix != 0
    first = np.where(used.any(1), used.argmax(1), 0)
    last = np.where(used.any(1), size - 1 - used[:, ::-1].argmax(1), 0)
    taps = int((last - first).max(initial=0)) + 1
    index = np.minimum(first[:, None] + np.arange(taps), last[:, None])
    valid = first[:, None] + np.arange(taps) <= last[:, None]
    valid &= used.any(1, keepdims=True)
    weight = np.where(valid, matrix[np.arange(out)[:, None], index], 0)
    if taps <= _FEW_TAPS:
        total = None
        for j in range(taps):
            part = _weighted(b, take(b, x, axis, index[:, j]), axis, weight[:, j], valid[:, j])
            total = part if total is None else total + part
        return total
    wide = _weighted(b, take(b, x, axis, index), axis, weight, valid)
    return b.reduce_op("add", wide, [axis + 1])


def _weighted(b: Builder, x: Value, axis: int, weight: np.ndarray, valid: np.ndarray) -> Value:
    if not (weight[valid] == 1).all():
        x = x * along(b, np.where(valid, weight, 1), x.dtype, axis, x.ndim)
    return x if valid.all() else b.select(along(b, valid, "i1", axis, x.ndim), x, 0)


# ---- interpolation matrices [out, in] ------------------------------------------------------------
# Each takes (in, out, align_corners, scale factor or None, NumPy float type).


def _matrix(size: int, rows: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """From (row, columns, weights): columns outside the axis are clamped to its border."""
    m = np.zeros((len(rows), size))
    for o, columns, weights in rows:
        np.add.at(m[o], np.clip(columns, 0, size - 1), weights)
    return m


def _step(size: int, out: int, align: bool, scale: float | None, real: type) -> float:
    """Distance of neighbouring outputs in input pixels, rounded as PyTorch does."""
    if align:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(out)


def _nearest(
    size: int, out: int, align: bool, scale: float | None, real: type, shift: float = 0.0
) -> np.ndarray:
    at = np.arange(out, dtype=real)
    index = np.floor((at + real(shift)) * _step(size, out, False, scale, real)).astype(np.int64)
    m = np.zeros((out, size))
    m[np.arange(out), np.minimum(index, size - 1)] = 1
    return m


def _nearest_exact(size: int, out: int, align: bool, scale: float | None, real: type) -> np.ndarray:
    return _nearest(size, out, align, scale, real, 0.5)


def _source(size: int, out: int, align: bool, scale: float | None, real: type) -> np.ndarray:
    step, at = _step(size, out, align, scale, real), np.arange(out, dtype=real)
    return step * at if align else step * (at + real(0.5)) - real(0.5)


def _linear(size: int, out: int, align: bool, scale: float | None, real: type) -> np.ndarray:
    src = np.maximum(_source(size, out, align, scale, real), real(0))
    low = np.minimum(src.astype(np.int64), size - 1)
    w = np.clip(src - low.astype(real), real(0), real(1))
    return _matrix(size, [(o, low[o] + [0, 1], [1 - w[o], w[o]]) for o in range(out)])


def _cubic_filter(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _cubic(size: int, out: int, align: bool, scale: float | None, real: type) -> np.ndarray:
    src = _source(size, out, align, scale, real)
    low = np.floor(src).astype(np.int64)
    t, taps = src - low.astype(real), np.arange(-1, 3)
    return _matrix(
        size, [(o, low[o] + taps, _cubic_filter(t[o] - taps, -0.75)) for o in range(out)]
    )


def _antialiased(
    radius: int, kernel: Callable[[np.ndarray], np.ndarray]
) -> Callable[..., np.ndarray]:
    """The kernel widened by the downscaling step and normalised over the pixels inside."""

    def matrix(size: int, out: int, align: bool, scale: float | None, real: type) -> np.ndarray:
        step = _step(size, out, align, scale, real)
        widen = max(step, real(1))
        support, rows = real(radius) * widen, []
        for o in range(out):
            center = step * (real(o) + real(0.5))
            lo = max(int(center - support + real(0.5)), 0)
            hi = min(int(center + support + real(0.5)), size)
            w = kernel((np.arange(lo, hi) - center + real(0.5)) / widen)
            rows.append((o, np.arange(lo, hi), w / w.sum() if w.sum() != 0 else w))
        return _matrix(size, rows)

    return matrix


def _lanczos_filter(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_linear_aa = _antialiased(1, lambda x: np.maximum(1 - np.abs(x), 0))
_cubic_aa = _antialiased(2, lambda x: _cubic_filter(x, -0.5))
_lanczos_aa = _antialiased(3, _lanczos_filter)

#: name: (matrix, whether the schema has align_corners, spatial dimensions)
_FAMILY = {
    "upsample_nearest1d": (_nearest, False, 1),
    "upsample_nearest2d": (_nearest, False, 2),
    "upsample_nearest3d": (_nearest, False, 3),
    "_upsample_nearest_exact1d": (_nearest_exact, False, 1),
    "_upsample_nearest_exact2d": (_nearest_exact, False, 2),
    "_upsample_nearest_exact3d": (_nearest_exact, False, 3),
    "upsample_linear1d": (_linear, True, 1),
    "upsample_bilinear2d": (_linear, True, 2),
    "upsample_trilinear3d": (_linear, True, 3),
    "upsample_bicubic2d": (_cubic, True, 2),
    "_upsample_bilinear2d_aa": (_linear_aa, True, 2),
    "_upsample_bicubic2d_aa": (_cubic_aa, True, 2),
    "_upsample_lanczos2d_aa": (_lanczos_aa, True, 2),
}


def _apply(b: Builder, x: Value, matrices: Sequence[np.ndarray], out_shape: Sequence[int]) -> Value:
    """Matrices along the last dimensions, those that shrink the tensor first."""
    dtype = x.dtype
    n = len(matrices)
    if x.numel == 0 or math.prod(out_shape) == 0:
        return b.constant(0, dtype, out_shape)
    if dtype == "ui8" and any(not np.isin(m, (0, 1)).all() for m in matrices):
        return _fixed_point(b, x, matrices)
    x = x.to(opmath(dtype))
    for i in sorted(range(n), key=lambda i: matrices[i].shape[0] / matrices[i].shape[1]):
        x = resample(b, x, x.ndim - n + i, matrices[i])
    return x


def _fixed_point(b: Builder, x: Value, matrices: Sequence[np.ndarray]) -> Value:
    """Bytes as PyTorch interpolates them: last axis first, 16-bit weights, rounded to a byte after
    each axis."""
    n = len(matrices)
    x = x.to("i32")
    for i in reversed(range(n)):
        m = matrices[i]
        if np.array_equal(m, np.eye(len(m), m.shape[1])):
            continue
        bits = next(p for p in range(23) if p == 22 or int(0.5 + m.max() * (2 << p)) >= 1 << 15)
        scaled = np.trunc(m * (1 << bits) + np.copysign(0.5, m))
        x = resample(b, x, x.ndim - n + i, scaled) + (1 << bits >> 1)
        x = b.binary("shift_right_arithmetic", x, b.constant(bits, "i32", x.shape))
        x = b.clamp(b.constant(0, "i32"), x, b.constant(255, "i32"))
    return x


def _register(name: str, matrix: Callable[..., np.ndarray], has_align: bool, n: int) -> None:
    def matrices(
        x: Value, sizes: Sequence[int], outs: Sequence[int], rest: Sequence
    ) -> list[np.ndarray]:
        align, scales = (rest[0], rest[1:]) if has_align else (False, rest)
        real = np.float64 if x.dtype in ("f64", "complex<f64>") else np.float32
        return [matrix(s, o, align, f, real) for s, o, f in zip(sizes, outs, scales)]

    @lowering(name)
    def forward(b, x, output_size, *rest):
        return _apply(
            b, x, matrices(x, x.shape[-n:], output_size, rest), [*x.shape[:-n], *output_size]
        )

    @lowering(f"{name}_backward")
    def backward(b, grad, output_size, input_size, *rest):
        ms = matrices(grad, input_size[-n:], output_size, rest)
        return _apply(b, grad, [m.T for m in ms], input_size)


for _name, _entry in _FAMILY.items():
    if hasattr(torch.ops.aten, _name):
        _register(_name, *_entry)
