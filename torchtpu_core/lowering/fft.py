"""Discrete Fourier transforms: real to complex, complex to real, complex to complex, over any
dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T

_MOST = 3  # dimensions of one stablehlo.fft


def _transform(
    b: Builder, x: Value, kind: str, dims: Sequence[int], last: int | None = None
) -> Value:
    """One fft over at most three dimensions, which are moved to the end. `last`: length of the real
    side of the last one."""
    dims = [d % x.ndim for d in dims]
    order = [d for d in range(x.ndim) if d not in dims] + dims
    lengths = [x.shape[d] for d in dims]
    if last is not None:
        lengths[-1] = last
    y = b.fft(b.transpose(x, order), kind, lengths)
    return b.transpose(y, [order.index(d) for d in range(x.ndim)])


def _complex(b: Builder, x: Value, dims: Sequence[int], forward: bool) -> Value:
    for i in range(0, len(dims), _MOST):
        x = _transform(b, x, "FFT" if forward else "IFFT", dims[i : i + _MOST])
    return x


def _scaled(b: Builder, x: Value, n: int, normalization: int, forward: bool) -> Value:
    """normalization: 0 none, 1 by sqrt(n), 2 by n. XLA divides inverse transforms by n already."""
    factor = (1.0, 1 / math.sqrt(n), 1 / n)[normalization] * (1 if forward else n)
    return x if factor == 1 else x * b.constant(factor, x.dtype, x.shape)


@lowering("_fft_c2c")
def _fft_c2c(b, x, dim, normalization, forward):
    if not dim or x.numel == 0:
        return x
    n = math.prod(x.shape[d] for d in dim)
    return _scaled(b, _complex(b, x, dim, forward), n, normalization, forward)


@lowering("_fft_r2c")
def _fft_r2c(b, x, dim, normalization, onesided):
    dtype, shape = T.complex_of(x.dtype), list(x.shape)
    if onesided:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    if x.numel == 0:
        return b.constant(0, dtype, shape)
    n = math.prod(x.shape[d] for d in dim)
    if onesided:
        y = _transform(b, x, "RFFT", dim[-_MOST:])
        y = _complex(b, y, dim[:-_MOST], True)
    else:
        y = _complex(b, x.to(dtype), dim, True)
    return _scaled(b, y, n, normalization, True)


@lowering("_fft_c2r")
def _fft_c2r(b, x, dim, normalization, last_dim_size):
    shape, last = list(x.shape), dim[-1] % x.ndim
    shape[last] = last_dim_size
    if math.prod(shape) == 0 or x.numel == 0:
        return b.constant(0, T.real_of(x.dtype), shape)
    high = [0] * x.ndim
    high[last] = last_dim_size // 2 + 1 - x.shape[last]
    x = b.pad(x, 0, [0] * x.ndim, high)
    n = math.prod(shape[d] for d in dim)
    y = _complex(b, x, dim[:-_MOST], False)
    y = _transform(b, y, "IRFFT", dim[-_MOST:], last_dim_size)
    return _scaled(b, y, n, normalization, False)
