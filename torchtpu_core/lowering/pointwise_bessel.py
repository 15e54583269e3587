"""Bessel, Airy and scaled error functions by Chebyshev series.

The series are not tables: each is interpolated, when a program first needs it, from an integral or
power series that NumPy evaluates
to double precision. Two integrals give them all: the trapezoid rule over a period for I and J, and

    hankel(v, z) = 1/Gamma(v + 1/2) * integral of exp(-u) u^(v-1/2) (1 + u/2z)^(v-1/2) over u > 0,

the slowly varying factor of K, of the large-argument forms of J and Y, and (with v = 1/3) of Ai.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from torchtpu_core.lowering.pointwise import is_inf, like
from torchtpu_core.lowering.promotion import FLOAT
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_EULER = 0.57721566490153286
_TERMS = range(14)  # of the power series for x <= 2

#: a function of NumPy doubles
Evaluator = Callable[[np.ndarray], np.ndarray]


# ---- Chebyshev series ---------------------------------------------------------------------------


def _series(b: Builder, f: Evaluator, degree: int, t: Value) -> Value:
    """The interpolant of `f` on [-1, 1] at `t`, to the precision of its dtype, by Clenshaw."""
    coefs = _coefficients(f, degree, 1e-9 if t.dtype == "f32" else 1e-18)
    double = t + t
    p, q = like(b, coefs[-1], t), like(b, 0, t)
    for c in coefs[-2:0:-1]:
        p, q = double * p - q + c, p
    return t * p - q + coefs[0]


@cache
def _coefficients(f: Evaluator, degree: int, keep: float) -> tuple[float, ...]:
    coefs = np.polynomial.chebyshev.chebinterpolate(f, degree)
    last = np.flatnonzero(np.abs(coefs) > keep * np.abs(coefs).max())[-1]
    return tuple(float(c) for c in coefs[: max(last, 1) + 1])


def _polynomial(b: Builder, coefs: list[float], y: Value) -> Value:
    out = like(b, coefs[-1], y)
    for c in coefs[-2::-1]:
        out = out * y + c
    return out


# ---- what NumPy evaluates -----------------------------------------------------------------------


def _hankel(v: float, z: np.ndarray) -> np.ndarray:
    # u = s^m makes the integrand an even analytic function of s, which the trapezoid rule
    # integrates exactly
    m = 6 if v == 1 / 3 else 2
    s, step = np.linspace(0, 40 ** (1 / m), 2000, retstep=True)
    weight = np.where(s == 0, 0.5, 1.0) * s ** round(m * (v + 0.5) - 1) * np.exp(-(s**m))
    values = weight * (1 + s**m / (2 * np.asarray(z, dtype=complex)[..., None])) ** (v - 0.5)
    return values.sum(-1) * step * m / math.gamma(v + 0.5)


@cache
def _bessel_i_near(n: int) -> Evaluator:
    """exp(-x) I_n(x) / x^n for x = 4 (t + 1)."""

    def f(t):
        x = 4 * (t + 1)[:, None]
        a = 2 * np.pi * (np.arange(512) + 0.5) / 512
        return (np.exp(x * (np.cos(a) - 1)) * np.cos(n * a)).mean(-1) / x[:, 0] ** n

    return f


@cache
def _bessel_i_far(n: int) -> Evaluator:
    """sqrt(x) exp(-x) I_n(x) for x = 16 / (t + 1)."""

    def f(t):
        x = 16 / (t + 1)[:, None]
        a = 2 * np.pi * np.arange(1 << 14) / (1 << 14)
        return np.sqrt(x[:, 0]) * (np.exp(x * (np.cos(a) - 1)) * np.cos(n * a)).mean(-1)

    return f


@cache
def _bessel_j_near(n: int) -> Evaluator:
    """J_n(x) / x^n for x^2 = 32 (t + 1)."""

    def f(t):
        x = np.sqrt(32 * (t + 1))[:, None]
        a = 2 * np.pi * (np.arange(128) + 0.5) / 128
        return np.cos(x * np.sin(a) - n * a).mean(-1) / x[:, 0] ** n

    return f


@cache
def _bessel_y_near(n: int) -> Evaluator:
    """Y_n(x) / x^n without its terms in log(x) and 1/x, for x^2 = 32 (t + 1)."""

    def f(t):
        y = 8 * (t + 1)
        out = np.zeros_like(y)
        for k in range(60):
            term = (-y) ** k / (math.factorial(k) * math.factorial(k + n))
            out -= term * (_psi(k + 1) + _psi(k + n + 1)) / math.pi / 2**n
        return out

    return f


@cache
def _bessel_y_far(n: int, imaginary: bool) -> Evaluator:
    """The modulating factors P and Q x of J_n and Y_n for x^2 = 128 / (t + 1)."""

    def f(t):
        x = np.sqrt(128 / (t + 1))
        h = _hankel(n, -1j * x)
        return h.imag * x if imaginary else h.real

    return f


@cache
def _bessel_k_far(n: int) -> Evaluator:
    """sqrt(x) exp(x) K_n(x) for x = 4 / (t + 1)."""
    return lambda t: math.sqrt(math.pi / 2) * _hankel(n, 4 / (t + 1)).real


def _psi(n: int) -> float:
    return sum(1 / k for k in range(1, n)) - _EULER


def _airy_near(t: np.ndarray) -> np.ndarray:
    """Ai(3 t), by its power series."""
    x = 3 * t
    f, g = np.ones_like(x), x.copy()
    p, q = f.copy(), g.copy()
    for k in range(1, 40):
        p = p * x**3 / ((3 * k - 1) * (3 * k))
        q = q * x**3 / ((3 * k) * (3 * k + 1))
        f, g = f + p, g + q
    return f * 3 ** (-2 / 3) / math.gamma(2 / 3) - g * 3 ** (-1 / 3) / math.gamma(1 / 3)


_ZETA = 2 / 3 * 3**1.5  # the phase at |x| = 3


def _airy_far(t: np.ndarray) -> np.ndarray:
    return _hankel(1 / 3, 2 * _ZETA / (t + 1)).real


def _airy_cos(t: np.ndarray) -> np.ndarray:
    return _hankel(1 / 3, 1j * _ZETA * np.sqrt(2 / (t + 1))).real


def _airy_sin(t: np.ndarray) -> np.ndarray:
    z = _ZETA * np.sqrt(2 / (t + 1))
    return _hankel(1 / 3, 1j * z).imag * z


def _erfcx_far(t: np.ndarray) -> np.ndarray:
    """(x + 1) erfcx(x) for x = 4 (1 + t) / (1 - t)."""

    def f(x: float) -> float:
        if x < 20:
            return math.erfc(x) * math.exp(x * x)
        w, term, total = 1 / (2 * x * x), 1.0, 1.0
        for k in range(1, 12):
            term *= -(2 * k - 1) * w
            total += term
        return total / (x * math.sqrt(math.pi))

    return np.array([(x + 1) * f(x) for x in 4 * (1 + t) / (1 - t)])


# ---- modified Bessel functions ------------------------------------------------------------------


def _bessel_i(n: int, scaled: bool) -> Callable[[Builder, Value], Value]:
    def body(b, x):
        a = b.abs(x)
        near = _series(b, _bessel_i_near(n), 40, b.minimum(a, like(b, 8, x)) / 4 - 1)
        near = near * a if n else near
        safe = b.maximum(a, like(b, 8, x))
        far = _series(b, _bessel_i_far(n), 40, 16 / safe - 1) / b.sqrt(safe)
        out = b.select(a <= 8, near, far)
        if not scaled:  # in two factors: exp(a) alone overflows before the product does
            half = b.exp(a / 2)
            out = out * half * half
        return b.select(x < 0, -out, out) if n else b.select(b.is_nan(x), x, out)

    return body


for _n in (0, 1):
    lowering(f"special_i{_n}e", promote=FLOAT)(_bessel_i(_n, scaled=True))
    lowering(f"special_i{_n}" if _n else "i0", f"special_modified_bessel_i{_n}", promote=FLOAT)(
        _bessel_i(_n, scaled=False)
    )


def _i_power_series(n: int) -> list[float]:
    """I_n(x) / (x/2)^n in powers of x^2 / 4."""
    return [1 / (math.factorial(k) * math.factorial(k + n)) for k in _TERMS]


def _bessel_k(n: int, scaled: bool) -> Callable[[Builder, Value], Value]:
    psi = [(_psi(k + 1) + _psi(k + n + 1)) / 2 for k in _TERMS]
    regular = [c * p for c, p in zip(_i_power_series(n), psi)]

    def body(b, x):
        z = b.minimum(x, like(b, 2, x))
        y = z * z / 4
        near = _polynomial(b, regular, y) - b.log(z / 2) * _polynomial(b, _i_power_series(n), y)
        if n:
            near = 1 / z - near * z / 2
        safe = b.maximum(x, like(b, 2, x))
        far = _series(b, _bessel_k_far(n), 50, 4 / safe - 1) / b.sqrt(safe)
        near, far = (near * b.exp(z), far) if scaled else (near, far * b.exp(-safe))
        out = b.select(x <= 2, near, far)
        out = b.select(x.eq(0), math.inf, out)
        return b.select(x < 0, math.nan, out)

    return body


for _n in (0, 1):
    lowering(f"special_modified_bessel_k{_n}", promote=FLOAT)(_bessel_k(_n, scaled=False))
    lowering(f"special_scaled_modified_bessel_k{_n}", promote=FLOAT)(_bessel_k(_n, scaled=True))


# ---- Bessel functions of the first and second kind ----------------------------------------------


def _j_near(b: Builder, n: int, a: Value, t: Value) -> Value:
    j = _series(b, _bessel_j_near(n), 40, t)
    return j * a if n else j


def _waves(b: Builder, n: int, a: Value) -> tuple[Value, Value]:
    """J_n and Y_n for a >= 8: slowly modulated waves."""
    t = 128 / (a * a) - 1
    p = _series(b, _bessel_y_far(n, False), 60, t)
    q = _series(b, _bessel_y_far(n, True), 60, t) / a
    phase = a - (n / 2 + 0.25) * math.pi
    c, s, size = b.unary("cosine", phase), b.unary("sine", phase), b.sqrt(2 / (math.pi * a))
    return size * (p * c - q * s), size * (p * s + q * c)


def _bessel_j(n: int) -> Callable[[Builder, Value], Value]:
    def body(b, x):
        a = b.abs(x)
        z = b.minimum(a, like(b, 8, x))
        out = b.select(
            a <= 8, _j_near(b, n, z, z * z / 32 - 1), _waves(b, n, b.maximum(a, like(b, 8, x)))[0]
        )
        return b.select(x < 0, -out, out) if n else b.select(b.is_nan(x), x, out)

    return body


def _bessel_y(n: int) -> Callable[[Builder, Value], Value]:
    def body(b, x):
        z = b.minimum(x, like(b, 8, x))
        t = z * z / 32 - 1
        regular = _series(b, _bessel_y_near(n), 40, t)
        near = (2 / math.pi) * b.log(z / 2) * _j_near(b, n, z, t)
        near = near - 2 / (math.pi * z) + regular * z if n else near + regular
        out = b.select(x <= 8, near, _waves(b, n, b.maximum(x, like(b, 8, x)))[1])
        out = b.select(x.eq(0), -math.inf, out)
        return b.select(x < 0, math.nan, out)

    return body


for _n in (0, 1):
    lowering(f"special_bessel_j{_n}", promote=FLOAT)(_bessel_j(_n))
    lowering(f"special_bessel_y{_n}", promote=FLOAT)(_bessel_y(_n))


@lowering("special_spherical_bessel_j0", promote=FLOAT)
def _spherical_j0(b, x):
    out = b.select(x.eq(0), 1, b.unary("sine", x) / x)
    return b.select(is_inf(b, x), 0, out)


@lowering("special_airy_ai", promote=FLOAT)
def _airy_ai(b, x):
    near = _series(b, _airy_near, 50, b.clamp(like(b, -3, x), x, like(b, 3, x)) / 3)
    a = b.maximum(b.abs(x), like(b, 3, x))
    phase = a * b.sqrt(a) * (2 / 3)
    size = 1 / (b.sqrt(b.sqrt(a)) * math.sqrt(math.pi))
    decay = size / 2 * b.exp(-phase) * _series(b, _airy_far, 40, 2 * _ZETA / phase - 1)
    t = 2 * _ZETA**2 / (phase * phase) - 1
    turned = phase + math.pi / 4
    wave = size * (
        b.unary("sine", turned) * _series(b, _airy_cos, 40, t)
        - b.unary("cosine", turned) * _series(b, _airy_sin, 40, t) / phase
    )
    out = b.select(x > 3, decay, b.select(x < -3, wave, near))
    return b.select(is_inf(b, x), math.nan, out)


# ---- exp(x^2) erfc(x) ---------------------------------------------------------------------------


def erfcx(b: Builder, x: Value) -> Value:
    """exp(x^2) erfc(x), without overflow for large x."""
    a = b.abs(x)
    t = b.select(is_inf(b, a), 1, (a - 4) / (a + 4))
    right = _series(b, _erfcx_far, 60, t) / (a + 1)
    return b.select(x < 0, 2 * b.exp(x * x) - right, right)


lowering("special_erfcx", promote=FLOAT)(erfcx)
