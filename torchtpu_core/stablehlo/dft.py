"""Fourier transforms in double precision, which a TPU's compiler refuses as `fft` though it has
products of such numbers: products with matrices of roots of unity, a length n1 * n2 in two stages
with a factor between them (Cooley, Tukey: An Algorithm for the Machine Calculation of Complex
Fourier Series, 1965).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder, Value

#: the element types meant
DOUBLE = frozenset(("f64", "complex<f64>"))

#: the largest length that is one product although it could be two
_DIRECT = 64


def fft(b: Builder, x: Value, kind: str, lengths: Sequence[int]) -> Value:
    """`Builder.fft`: FFT, IFFT, RFFT, IRFFT over the last len(lengths) dimensions."""
    first, last = x.ndim - len(lengths), x.ndim - 1
    inverse = kind in ("IFFT", "IRFFT")
    if kind == "RFFT":
        x = _along(b, x.to("complex<f64>"), last, inverse)
        x = b.slice(x, [0] * x.ndim, [*x.shape[:-1], lengths[-1] // 2 + 1])
    for dim in range(first, last + (kind in ("FFT", "IFFT"))):
        x = _along(b, x, dim, inverse)
    if kind == "IRFFT":
        x = b.real(_along(b, _whole(b, x, lengths[-1]), last, inverse))
    if not inverse:
        return x
    return b.multiply(x, b.constant(1 / math.prod(lengths), x.dtype, x.shape))


def _whole(b: Builder, x: Value, n: int) -> Value:
    """The spectrum of length n of a real signal, from its first half."""
    limits = list(x.shape)
    limits[-1] = (n + 1) // 2
    other = b.slice(x, [*[0] * (x.ndim - 1), 1], limits)
    other = b.complex(b.real(other), b.negate(b.imag(other)))
    return b.concatenate([x, b.reverse(other, [x.ndim - 1])], x.ndim - 1)


def _along(b: Builder, x: Value, dim: int, inverse: bool) -> Value:
    order = [*(d for d in range(x.ndim) if d != dim), dim]
    y = _last(b, b.transpose(x, order), inverse)
    return b.transpose(y, [order.index(d) for d in range(x.ndim)])


def _last(b: Builder, x: Value, inverse: bool) -> Value:
    """X[k] = sum of x[j] exp(-+2 pi i j k / n) along the last dimension."""
    n = x.shape[-1]
    rows = _factor(n)
    if rows == 1:
        return b.dot_general(x, _roots(b, n, n, n, inverse), ([x.ndim - 1], [0]))
    columns = n // rows
    # j = columns * j1 + j2 and k = k1 + rows * k2: a transform over j1, a factor, one over j2
    x = b.reshape(x, [*x.shape[:-1], rows, columns])
    x = _along(b, x, x.ndim - 2, inverse)
    factor = _roots(b, rows, columns, n, inverse)
    x = b.multiply(x, b.broadcast_in_dim(factor, x.shape, [x.ndim - 2, x.ndim - 1]))
    x = _last(b, x, inverse)
    x = b.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])
    return b.reshape(x, [*x.shape[:-2], n])


def _factor(n: int) -> int:
    """The divisor of n next below its square root; 1 for what is one product."""
    if n <= _DIRECT:
        return 1
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _roots(b: Builder, rows: int, columns: int, n: int, inverse: bool) -> Value:
    """exp(-+2 pi i j k / n) at [j, k]; small ones are constants, which compile faster."""
    if rows * columns <= _DIRECT**2:
        turn = np.outer(np.arange(rows), np.arange(columns)) % n / n
        return b.array(np.exp((2j if inverse else -2j) * np.pi * turn))
    j, k = (b.iota("i64", [rows, columns], d) for d in (0, 1))
    turns = b.remainder(j * k, b.constant(n, "i64", [rows, columns]))
    angle = turns.to("f64") * ((2 if inverse else -2) * math.pi / n)
    return b.complex(b.unary("cosine", angle), b.unary("sine", angle))
