"""Special functions: gamma, error and Bessel families, orthogonal polynomials."""

from __future__ import annotations

import math

from torchtpu_core.lowering.pointwise import is_inf, like
from torchtpu_core.lowering.promotion import DEFAULT, FLOAT
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_PAIR = ("self", "other")


# ---- gamma --------------------------------------------------------------------------------------


@lowering("digamma", promote=FLOAT)
def _digamma(b, x):
    # The poles: -inf at +0, inf at -0; NaN at the negative integers, as CHLO has it.
    return b.select(x.eq(0), -1 / x, b.unary("chlo.digamma", x))


@lowering("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar", promote=FLOAT, runtime=_PAIR)
def _zeta(b, x, q):
    return _hurwitz(b, x, q)


def _hurwitz(b: Builder, x: Value, q: Value) -> Value:
    pole = b.and_(q <= 0, q.eq(b.floor(q)))
    return b.select(b.and_(pole, x > 1), math.inf, b.binary("chlo.zeta", x, q))


@lowering("polygamma", promote=FLOAT, operands=("self",))
def _polygamma(b, n, x):
    if n == 0:
        return _digamma(b, x)
    if n == 1:
        return _trigamma(b, x)
    scale = (-1) ** (n + 1) * math.gamma(n + 1)
    return scale * _hurwitz(b, like(b, n + 1, x), x)


def _trigamma(b: Builder, x: Value) -> Value:
    """Reflection to x >= 1/2, recurrence past 6, then the asymptotic series."""
    low = x < 0.5
    s = b.unary("sine", x * math.pi)
    z = b.select(low, 1 - x, x)
    total = like(b, 0, x)
    for _ in range(6):
        total = total + 1 / (z * z)
        z = z + 1
    w = 1 / (z * z)
    tail = (1 + 1 / (2 * z) + w * (1 / 6 - w * (1 / 30 - w * (1 / 42 - w / 30)))) / z
    total = total + tail
    return b.select(low, math.pi**2 / (s * s) - total, total)


# ---- logit and entropy --------------------------------------------------------------------------


@lowering("logit", promote=FLOAT, operands=("self",), runtime=("eps",))
def _logit(b, x, eps):
    if eps is not None:
        low = like(b, eps, x)
        x = b.select(x < low, low, b.select(x > 1 - low, 1 - low, x))
    return b.log(x / (1 - x))


@lowering("logit_backward", promote=DEFAULT, operands=("grad_output", "self"), runtime=("eps",))
def _logit_backward(b, g, x, eps):
    low = like(b, 0 if eps is None else eps, x)
    outside = (x < low) | (x > 1 - low)
    return b.select(outside, math.nan if eps is None else 0.0, g / (x * (1 - x)))


@lowering("special_entr", promote=FLOAT)
def _entr(b, x):
    inside = b.select(x.eq(0), 0, -x * b.log(x))
    return b.select(x < 0, -math.inf, inside)
