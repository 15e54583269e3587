"""Products of f32 numbers as a TPU's matrix unit makes them: from bf16 pieces, accumulated in f32.

A number is split into pieces of 8 significant bits, each what is left rounded to nearest even:
x = hi + mid + lo exactly, as far as bf16's exponents reach. A product keeps the pairs of pieces of
the largest sizes: one (DEFAULT), three (HIGH) or six (HIGHEST), added from the smallest pair up.
Henry, Tang, Heinecke: Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
Computations (arXiv 1904.06376).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchtpu_core.stablehlo import types as T

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder, Value

#: the largest finite bf16
_LARGEST = float.fromhex("0x1.fep127")

#: the pairs of pieces that are multiplied, in the order of addition: (0 = hi, 1 = mid, 2 = lo)
PAIRS = {
    "DEFAULT": ((0, 0),),
    "HIGH": ((1, 0), (0, 1), (0, 0)),
    "HIGHEST": ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)),
}


def product(
    b: Builder, x: Value, y: Value, multiply: Callable[[Value, Value], Value], precision: str
) -> Value:
    """`multiply(x, y)`, any bilinear function of f32 or c64 operands that accumulates in f32, from
    the pieces of both.

    Infinities and NaNs are in the pair of leading pieces alone, so that the smaller pairs add no
    NaN where f32 has none.
    """
    if x.dtype in T.COMPLEX:
        parts = [(b.real(v), b.imag(v)) for v in (x, y)]
        rr, ii, ri, ir = (
            product(b, parts[0][i], parts[1][j], multiply, precision)
            for i, j in ((0, 0), (1, 1), (0, 1), (1, 0))
        )
        return b.complex(rr - ii, ri + ir)
    pairs = PAIRS[precision]
    if len(pairs) == 1:
        return multiply(_rounded(b, x), _rounded(b, y))
    (xs, x_leading), (ys, y_leading) = (_split(b, v, max(map(max, pairs))) for v in (x, y))
    total = multiply(xs[pairs[0][0]], ys[pairs[0][1]])
    for i, j in pairs[1:-1]:
        total = total + multiply(xs[i], ys[j])
    return total + multiply(x_leading, y_leading)


def _split(b: Builder, x: Value, n: int) -> tuple[list[Value], Value]:
    """(the leading piece and `n` more, zero for infinities and NaNs; the leading piece with them).

    A finite number above the largest bf16 leaves more to the second piece: it does not overflow.
    """
    finite = b.unary("is_finite", x, "i1")
    bound = b.constant(_LARGEST, x.dtype)
    leading = b.select(finite, b.clamp(-bound, _rounded(b, x), bound), x)
    pieces = [b.select(finite, leading, 0)]
    rest = b.select(finite, x, 0)
    for _ in range(n):
        rest = rest - pieces[-1]
        pieces.append(_rounded(b, rest))
    return pieces, leading


def _rounded(b: Builder, x: Value) -> Value:
    """`x` rounded to nearest even in bf16, still f32 (a pair of conversions XLA may drop)."""
    return b.reduce_precision(x, 8, 7)
