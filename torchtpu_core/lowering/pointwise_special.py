"""Special functions: gamma, logit, the normal distribution, orthogonal polynomials.

Bessel functions are in pointwise_bessel.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torchtpu_core.lowering.pointwise import is_finite, like
from torchtpu_core.lowering.pointwise_bessel import erfcx
from torchtpu_core.lowering.promotion import DEFAULT, FLOAT
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T

_PAIR = ("self", "other")


# ---- gamma --------------------------------------------------------------------------------------


@lowering("digamma", promote=FLOAT)
def _digamma(b, x):
    # The poles: -inf at +0, inf at -0; NaN at the negative integers, as CHLO has it.
    return b.select(x.eq(0), -1 / x, b.unary("chlo.digamma", x))


@lowering(
    "special_zeta",
    "special_zeta.self_scalar",
    "special_zeta.other_scalar",
    promote=FLOAT,
    runtime=_PAIR,
)
def _zeta(b, x, q):
    return _hurwitz(b, x, q)


def _hurwitz(b: Builder, x: Value, q: Value) -> Value:
    pole = b.and_(q <= 0, q.eq(b.floor(q)))
    # CHLO's expansion wants q > 0: its terms before that are summed one by one.
    q = b.select(pole, 1, q)

    def below(q):
        return (q < 0) & (q > -1e5)

    def step(total, q):
        todo = below(q)
        return b.select(todo, total + b.power(q, -x), total), b.select(todo, q + 1, q)

    def cond(_total, q):
        return b.reduce_op("or", below(q), range(q.ndim))

    total, q = b.while_([like(b, 0, x), q], cond, step)
    return b.select(b.and_(pole, x > 1), math.inf, total + b.binary("chlo.zeta", x, q))


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


def _incomplete_gamma(upper: bool) -> Callable[[Builder, Value, Value], Value]:
    """P(a, x) by its power series for x <= a + 1, else Q(a, x) = 1 - P(a, x) by its fraction."""

    def body(b, a, x):
        plain = (a > 0) & (x > 0) & is_finite(b, a) & is_finite(b, x)
        sa, sx = b.select(plain, a, 1), b.select(plain, x, 1)
        near = sx <= sa + 1
        scale = b.exp(sa * b.log(sx) - sx - b.unary("chlo.lgamma", sa))
        p = scale * _gamma_series(b, sa, b.select(near, sx, 1))
        q = scale * _gamma_fraction(b, sa, b.select(near, sa + 2, sx))
        out = b.select(near, 1 - p, q) if upper else b.select(near, p, 1 - q)
        # a = 0 and x = inf: all the mass is below x; x = 0 and a = inf: none is
        zero, one = (1, 0) if upper else (0, 1)
        out = b.select(x.eq(0) | a.eq(math.inf), zero, b.select(a.eq(0) | x.eq(math.inf), one, out))
        both = (a.eq(0) & x.eq(0)) | (a.eq(math.inf) & x.eq(math.inf))
        return b.select(both | ~(a >= 0) | ~(x >= 0), math.nan, out)

    return body


_MAX_STEPS = 5000


def _gamma_series(b: Builder, a: Value, x: Value) -> Value:
    """Sum of x^n / (a (a + 1) .. (a + n))."""
    eps = T.finfo_eps(a.dtype) / 4

    def cond(n, term, total):
        return b.reduce_op("or", term > total * eps, range(a.ndim)) & (n < _MAX_STEPS)

    def step(n, term, total):
        term = term * x / (a + like(b, n, a))
        return n + 1, term, total + term

    return b.while_([b.constant(1, "i32"), 1 / a, 1 / a], cond, step)[2]


def _gamma_fraction(b: Builder, a: Value, x: Value) -> Value:
    """Legendre's continued fraction, evaluated forwards (Lentz)."""
    eps, tiny = T.finfo_eps(a.dtype), T.finfo_tiny(a.dtype) * 1e6

    def safe(v):
        return b.select(b.abs(v) < tiny, tiny, v)

    def cond(n, _c, _d, _h, delta):
        return b.reduce_op("or", b.abs(delta - 1) > eps, range(a.ndim)) & (n < _MAX_STEPS)

    def step(n, c, d, h, _delta):
        k = like(b, n, a)
        num, den = k * (a - k), x + (2 * k + 1) - a
        d = 1 / safe(den + num * d)
        c = safe(den + num / c)
        return n + 1, c, d, h * c * d, c * d

    d = 1 / safe(x + 1 - a)
    state = [b.constant(1, "i32"), like(b, 1 / tiny, a), d, d, like(b, 0, a)]
    return b.while_(state, cond, step)[3]


lowering("igamma", promote=FLOAT)(_incomplete_gamma(upper=False))
lowering("igammac", promote=FLOAT)(_incomplete_gamma(upper=True))


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


# ---- the normal distribution --------------------------------------------------------------------


@lowering("special_log_ndtr", promote=FLOAT)
def _log_ndtr(b, x):
    z = x * math.sqrt(0.5)
    left = b.log(erfcx(b, -b.minimum(z, like(b, -1, x))) / 2) - z * z
    return b.select(z < -1, left, b.log1p(b.unary("chlo.erfc", z) * -0.5))


@lowering("special_ndtri", promote=FLOAT)
def _ndtri(b, p):
    """Newton's method on the logarithm of the upper tail, from a guess good to some per cent."""
    q = b.minimum(p, 1 - p)
    tiny = 1e-3
    log_q = b.log(b.select(q <= 0, 0.5, q))
    w = b.sqrt(b.maximum(-2 * log_q, like(b, 1, p)))
    central = math.sqrt(2) * b.unary("chlo.erf_inv", 1 - 2 * q)
    x = b.select(q < tiny, w - (b.log(w) + 0.5 * math.log(2 * math.pi)) / w, central)
    for _ in range(2 if p.dtype == "f32" else 3):
        scaled = erfcx(b, x * math.sqrt(0.5))
        x = x + math.sqrt(math.pi / 2) * scaled * (b.log(scaled / 2) - x * x / 2 - log_q)
    x = b.select(p.eq(0) | p.eq(1), math.inf, x)
    x = b.select(p < 0.5, -x, x)
    return b.select((p < 0) | (p > 1) | b.is_nan(p), math.nan, x)


# ---- orthogonal polynomials ---------------------------------------------------------------------

_Step = Callable[[Value, Value, Value, Value], Value]
#: (x, n) -> (where the value is known without the recurrence, the value there)
_Closed = Callable[[Builder, Value, Value], tuple[Value, Value]]


def _chebyshev(x: Value, _k: Value, p: Value, q: Value) -> Value:
    return 2 * x * p - q


# name: (p_1, p_k from (x, k, p_(k-1), p_(k-2)))
_POLYNOMIALS: dict[str, tuple[Callable[[Value], Value], _Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, q: 2 * (x * p - (k - 1) * q)),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - (k - 1) * q),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, k, p, q: ((2 * k - 1 - x) * p - (k - 1) * q) / k,
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda x, k, p, q: ((2 * k - 1) * x * p - (k - 1) * q) / k,
    ),
}


def _cosines(kind: str) -> _Closed:
    """Chebyshev polynomials of a high degree at |x| < 1, by angles (DLMF 18.5.1-4)."""

    def closed(b: Builder, x: Value, n: Value) -> tuple[Value, Value]:
        angle, degree = b.unary("chlo.acos", x), n.to(x.dtype)
        if kind == "t":
            value = b.unary("cosine", degree * angle)
        elif kind == "u":
            value = b.unary("sine", (degree + 1) * angle) / b.unary("sine", angle)
        elif kind == "v":
            value = b.unary("cosine", (degree + 0.5) * angle) / b.unary("cosine", angle * 0.5)
        else:
            value = b.unary("sine", (degree + 0.5) * angle) / b.unary("sine", angle * 0.5)
        return b.and_(n > (6 if kind == "t" else 8), b.abs(x) < 1), value

    return closed


def _hermite_limit(b: Builder, x: Value, n: Value) -> tuple[Value, Value]:
    """NaN above the degree at which ATen stops."""
    return n > (512 if x.dtype == "f64" else 128), like(b, math.nan, x)


def _none(b: Builder, x: Value, n: Value) -> tuple[Value, Value]:
    return b.constant(False, "i1", n.shape), x


_CLOSED = {
    **{f"chebyshev_polynomial_{kind}": _cosines(kind) for kind in "tuvw"},
    "hermite_polynomial_h": _hermite_limit,
    "hermite_polynomial_he": _hermite_limit,
}


def _orthogonal(
    first: Callable[[Value], Value], step: _Step, closed: _Closed, shifted: bool
) -> Callable[..., Value]:
    def body(b, x, n):
        if shifted:
            x = 2 * x - 1
        # As in ATen, a degree that int64 does not hold is negative.
        n = b.convert(b.select(b.abs(n) < 2.0**62, n, -1), "i32")
        one = like(b, 1, x)
        start = b.select(n <= 0, b.select(n < 0, 0, one), first(x))
        known, result = closed(b, x, n)

        def running(k, p):
            """NaN stays NaN: it ends a recurrence of any length, as in ATen."""
            return b.and_(b.expand(k, n.shape) <= n, ~b.or_(known, b.is_nan(p)))

        def cond(k, p, _q, _out):
            return b.reduce_op("or", running(k, p), range(n.ndim))

        def advance(k, p, q, out):
            new = step(x, like(b, k, x), p, q)
            return k + 1, new, p, b.select(n.eq(b.expand(k, n.shape)), new, out)

        k, p, _, out = b.while_([b.constant(2, "i32"), first(x), one, start], cond, advance)
        out = b.select(b.and_(b.expand(k, n.shape) <= n, b.is_nan(p)), math.nan, out)
        return b.select(known, result, out)

    return body


for _name, (_first, _step) in _POLYNOMIALS.items():
    for _shifted in (False, True) if _name.startswith("chebyshev") else (False,):
        _op = f"special_{'shifted_' if _shifted else ''}{_name}"
        lowering(_op, f"{_op}.x_scalar", f"{_op}.n_scalar", promote=FLOAT, runtime=("x", "n"))(
            _orthogonal(_first, _step, _CLOSED.get(_name, _none), _shifted)
        )
