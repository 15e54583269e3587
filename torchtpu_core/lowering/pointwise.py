"""Elementwise arithmetic, elementary functions, comparisons, logic and bits.

Activations are in pointwise_nn.py, special functions in pointwise_special.py, casts and fills in
cast.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torchtpu_core.lowering.promotion import DEFAULT, FLOAT, opmath, promote
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand

_PAIR = ("self", "other")


# ---- helpers of every elementwise family --------------------------------------------------------


def like(b: Builder, s: Operand, x: Value) -> Value:
    """A number or 0-d value with the dtype and shape of `x`."""
    return b.lift(s, x.dtype, x.shape)


def sign_bit(b: Builder, x: Value) -> Value:
    """i1: the sign bit is set (also that of -0.0 and NaN)."""
    if x.dtype in T.FLOATS:
        return b.bitcast(x, f"i{T.bits(x.dtype)}") < 0
    return x < 0 if x.dtype in T.SIGNED else b.constant(False, "i1", x.shape)


def is_inf(b: Builder, x: Value) -> Value:
    """i1: plus or minus infinity, in either part of a complex number."""
    if x.dtype in T.COMPLEX:
        return b.or_(is_inf(b, b.real(x)), is_inf(b, b.imag(x)))
    if x.dtype not in T.FLOATS:
        return b.constant(False, "i1", x.shape)
    return b.abs(x).eq(math.inf)


def is_finite(b: Builder, x: Value) -> Value:
    """i1: neither infinite nor NaN."""
    if x.dtype in T.COMPLEX:
        return b.and_(is_finite(b, b.real(x)), is_finite(b, b.imag(x)))
    if x.dtype not in T.FLOATS:
        return b.constant(True, "i1", x.shape)
    return b.unary("is_finite", x, "i1")


def trunc(b: Builder, x: Value) -> Value:
    """Towards zero; integers are themselves."""
    return b.select(x < 0, b.ceil(x), b.floor(x)) if x.dtype in T.FLOATS else x


def conj(b: Builder, x: Value) -> Value:
    """The complex conjugate; a real value is itself."""
    return b.complex(b.real(x), b.negate(b.imag(x))) if x.dtype in T.COMPLEX else x


def softplus(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) without overflow."""
    return b.maximum(x, like(b, 0, x)) + b.log1p(b.exp(-b.abs(x)))


# ---- functions of one operand -------------------------------------------------------------------


def _on_floats(fn: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    return lambda b, x: fn(b, x) if x.dtype in T.FLOATS else x


def _op(name: str) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.unary(name, x)


def _sgn(b: Builder, x: Value) -> Value:
    if x.dtype in T.COMPLEX:
        return b.sign(x)
    if x.dtype in T.FLOATS:  # NaN has no sign in PyTorch
        return b.select(b.is_nan(x), 0, b.sign(x))
    return b.sign(x) if x.dtype in T.SIGNED else x.ne(0).to(x.dtype)


def _angle(b: Builder, x: Value) -> Value:
    if x.dtype in T.COMPLEX:
        return b.atan2(b.imag(x), b.real(x))
    return b.select(b.is_nan(x), x, b.select(x < 0, math.pi, like(b, 0, x)))


def _log_base(base: float) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.log(x) / math.log(base)


def _exp2(b: Builder, x: Value) -> Value:
    if x.dtype in T.COMPLEX:
        return b.exp(x * math.log(2))
    return b.power(like(b, 2, x), x)


def _sinc(b: Builder, x: Value) -> Value:
    p = x * math.pi
    return b.select(x.eq(0), 1, b.unary("sine", p) / p)


_FLOAT_UNARY: dict[str, Callable[[Builder, Value], Value]] = {
    "acos": _op("chlo.acos"),
    "acosh": _op("chlo.acosh"),
    "angle": _angle,
    "asin": _op("chlo.asin"),
    "asinh": _op("chlo.asinh"),
    "atan": _op("chlo.atan"),
    "atanh": _op("chlo.atanh"),
    "cos": _op("cosine"),
    "cosh": _op("chlo.cosh"),
    "deg2rad": lambda b, x: x * (math.pi / 180),
    "erf": Builder.erf,
    "erfc": _op("chlo.erfc"),
    "erfinv": _op("chlo.erf_inv"),
    "exp": Builder.exp,
    "exp2": _exp2,
    "expm1": Builder.expm1,
    "lgamma": _op("chlo.lgamma"),
    "log": Builder.log,
    "log10": _log_base(10),
    "log1p": Builder.log1p,
    "log2": _log_base(2),
    "rad2deg": lambda b, x: x * (180 / math.pi),
    "reciprocal": lambda b, x: 1 / x,
    "rsqrt": Builder.rsqrt,
    "sigmoid": Builder.logistic,
    "sin": _op("sine"),
    "sinc": _sinc,
    "sinh": _op("chlo.sinh"),
    "sqrt": Builder.sqrt,
    "tan": _op("tan"),
    "tanh": Builder.tanh,
}
for _name, _fn in _FLOAT_UNARY.items():
    lowering(_name, promote=FLOAT)(_fn)

#: no arithmetic that rounds, so low-precision floats stay as they are
_SAME_UNARY: dict[str, Callable[[Builder, Value], Value]] = {
    "abs": lambda b, x: b.abs(x),
    "bitwise_not": Builder.not_,
    "ceil": _on_floats(Builder.ceil),
    "floor": _on_floats(Builder.floor),
    "neg": Builder.negate,
    "relu": lambda b, x: b.maximum(x, like(b, 0, x)),
    "round": _on_floats(_op("round_nearest_even")),
    "sgn": _sgn,
    "sign": _sgn,
    "trunc": trunc,
    "frac": lambda b, x: x - trunc(b, x),
    "square": lambda b, x: x * x,
    "positive": lambda b, x: x,
    "conj_physical": conj,
    "_conj_physical": conj,
    "isnan": lambda b, x: b.is_nan(x),
    "isinf": is_inf,
    "isfinite": is_finite,
    "isposinf": lambda b, x: b.and_(is_inf(b, x), ~sign_bit(b, x)),
    "isneginf": lambda b, x: b.and_(is_inf(b, x), sign_bit(b, x)),
    "signbit": sign_bit,
    "logical_not": lambda b, x: ~x.to("i1"),
    "real": Builder.real,
    "imag": Builder.imag,
}
for _name, _fn in _SAME_UNARY.items():
    lowering(_name)(_fn)


@lowering("round.decimals", promote=DEFAULT)
def _round_decimals(b, x, *, decimals):
    if x.dtype not in T.FLOATS:
        return x
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return b.unary("round_nearest_even", x / scale) * scale
    return b.unary("round_nearest_even", x * scale) / scale


@lowering("nan_to_num", runtime=("nan", "posinf", "neginf"))
def _nan_to_num(b, x, nan, posinf, neginf):
    if x.dtype in T.COMPLEX:
        return b.complex(*(_nan_to_num(b, p, nan, posinf, neginf) for p in (b.real(x), b.imag(x))))
    if x.dtype not in T.FLOATS:
        return x
    high = T.finfo_max(x.dtype)
    out = b.select(b.is_nan(x), like(b, 0 if nan is None else nan, x), x)
    out = b.select(x.eq(math.inf), like(b, high if posinf is None else posinf, x), out)
    return b.select(x.eq(-math.inf), like(b, -high if neginf is None else neginf, x), out)


@lowering("frexp.Tensor", promote=FLOAT)
def _frexp(b, x):
    # Exponent bits read from the representation; subnormals are scaled up first.
    n, bits = (8, 23) if x.dtype == "f32" else (11, 52)
    bias = (1 << (n - 1)) - 2
    small = b.abs(x) < T.finfo_tiny(x.dtype)
    scaled = b.select(small, x * 2.0 ** (bits + 1), x)
    raw = b.bitcast(scaled, f"ui{T.bits(x.dtype)}")
    field = b.binary("shift_right_logical", raw, like(b, bits, raw)) & ((1 << n) - 1)
    mask = ~(((1 << n) - 1) << bits) & ((1 << T.bits(x.dtype)) - 1)
    mantissa = b.bitcast((raw & mask) | (bias << bits), x.dtype)
    exponent = field.to("i32") - b.select(small, bias + bits + 1, like(b, bias, field.to("i32")))
    special = b.or_(x.eq(0), ~is_finite(b, x))
    return b.select(special, x, mantissa), b.select(special, 0, exponent)


# ---- arithmetic ---------------------------------------------------------------------------------


def _scaled(b: Builder, y: Value, alpha: Operand) -> Value:
    return y if not isinstance(alpha, Value) and alpha == 1 else y * like(b, alpha, y)


def _with_scaled(b: Builder, x: Value, y: Value, alpha: Operand) -> tuple[Value, Value]:
    """(x, alpha * y), in the opmath type if that is more than one operation."""
    if not isinstance(alpha, Value) and alpha == 1:
        return x, y
    x, y = (v.to(opmath(v.dtype)) for v in (x, y))
    return x, _scaled(b, y, alpha)


def _add(b, x, y, alpha):
    return b.add(*_with_scaled(b, x, y, alpha))


def _sub(b, x, y, alpha):
    return b.subtract(*_with_scaled(b, x, y, alpha))


def _rsub(b, x, y, alpha):
    return b.subtract(*_with_scaled(b, y, x, alpha))


# `alpha` is keyword-only in the Tensor overloads, positional in the Scalar ones.
for _name, _fn in {"add": _add, "sub": _sub, "rsub": _rsub}.items():
    lowering(f"{_name}.Tensor", promote=DEFAULT, operands=_PAIR, runtime=("alpha",), exact=True)(
        lambda b, x, y, *, alpha, _fn=_fn: _fn(b, x, y, alpha)
    )
    lowering(f"{_name}.Scalar", promote=DEFAULT, operands=_PAIR, runtime=("other", "alpha"))(_fn)


@lowering("mul.Tensor", "mul.Scalar", promote=DEFAULT, runtime=("other",), exact=True)
def _mul(b, x, y):
    return b.multiply(x, y)


@lowering("div.Tensor", "div.Scalar", "true_divide.Tensor", promote=FLOAT, runtime=("other",))
def _div(b, x, y):
    return b.divide(x, y)


def floor_div(b: Builder, x: Value, y: Value) -> Value:
    """Python's `//`, with PyTorch's care for rounding, zeros and infinities."""
    if x.dtype in T.UNSIGNED:
        return b.divide(x, y)
    if x.dtype in T.SIGNED:
        q = b.divide(x, y)
        r = x - q * y
        return b.select(_uneven(b, r, y), q - 1, q)
    r = b.remainder(x, y)
    q = (x - r) / y
    q = b.select(_uneven(b, r, y), q - 1, q)
    whole = b.floor(q)
    whole = b.select((q - whole) > 0.5, whole + 1, whole)
    true = x / y
    zero = b.select(sign_bit(b, true), -0.0, like(b, 0.0, x))
    return b.select(y.eq(0), true, b.select(q.eq(0), zero, whole))


def _uneven(b: Builder, r: Value, y: Value) -> Value:
    """The remainder `r` is not zero and its sign is not the divisor's."""
    return b.and_(r.ne(0), b.xor(r < 0, y < 0))


def quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y as IEEE 754 rounds it. XLA multiplies by the reciprocal of a constant instead, which
    may leave a whole quotient just below the whole number.
    """
    return b.divide(x, b.barrier([y])[0] if y.dtype in T.FLOATS else y)


def _divide_mode(b, x, y, *, rounding_mode):
    x, y = promote([x, y], DEFAULT if rounding_mode else FLOAT)
    if rounding_mode == "floor":
        return floor_div(b, x, y)
    return b.divide(x, y) if rounding_mode is None else trunc(b, quotient(b, x, y))


lowering("div.Tensor_mode", "div.Scalar_mode", runtime=("other",))(_divide_mode)
lowering("floor_divide", "floor_divide.Scalar", promote=DEFAULT, runtime=("other",))(floor_div)


@lowering(
    "remainder.Tensor",
    "remainder.Scalar",
    "remainder.Scalar_Tensor",
    promote=DEFAULT,
    runtime=_PAIR,
)
def _remainder(b, x, y):
    r = b.remainder(x, y)
    return r if x.dtype in T.UNSIGNED else b.select(_uneven(b, r, y), r + y, r)


@lowering("fmod.Tensor", "fmod.Scalar", promote=DEFAULT, runtime=("other",))
def _fmod(b, x, y):
    return b.remainder(x, y)


_POWERS: dict[float, Callable[[Builder, Value], Value]] = {
    0.5: Builder.sqrt,
    1: lambda b, x: x,
    2: lambda b, x: x * x,
    3: lambda b, x: x * x * x,
    -0.5: Builder.rsqrt,
    -1: lambda b, x: 1 / x,
    -2: lambda b, x: 1 / (x * x),
}


def _power(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype in T.INTS:
        return _int_power(b, x, y)
    if x.dtype == "i1":
        return b.or_(x, ~y)
    return b.power(x, y)


def _int_power(b: Builder, x: Value, y: Value) -> Value:
    """By squaring, wrapping around; a negative exponent gives the truncated reciprocal."""
    out, base, left = like(b, 1, x), x, y if x.dtype in T.UNSIGNED else b.maximum(y, like(b, 0, y))

    def cond(_out, _base, left):
        return b.reduce_op("or", left.ne(0), range(left.ndim))

    def body(out, base, left):
        one = like(b, 1, left)
        out = b.select((left & 1).ne(0), out * base, out)
        return out, base * base, b.binary("shift_right_logical", left, one)

    out = b.while_([out, base, left], cond, body)[0]
    if x.dtype in T.UNSIGNED:
        return out
    odd = (y & 1).ne(0)
    unit = b.select(x.eq(-1), b.select(odd, -1, like(b, 1, x)), x.eq(1).to(x.dtype))
    return b.select(y < 0, unit, out)


@lowering("pow.Tensor_Scalar")
def _pow_scalar(b, x, exponent):
    x, y = promote([x, exponent], DEFAULT)
    if isinstance(exponent, Value):
        return _power(b, x, y)
    if exponent == 0:
        return like(b, 1, x)
    simple = _POWERS.get(exponent)
    whole = isinstance(exponent, int) and exponent > 0
    if simple is None or (x.dtype not in T.FLOATS and not (whole or x.dtype in T.COMPLEX)):
        return _power(b, x, y)
    return simple(b, x)


@lowering("pow.Tensor_Tensor", "pow.Scalar", promote=DEFAULT, runtime=("self",))
def _pow(b, x, y):
    return _power(b, x, y)


@lowering("addcmul", promote=DEFAULT, operands=("self", "tensor1", "tensor2"), runtime=("value",))
def _addcmul(b, x, t1, t2, *, value):
    return b.add(x, b.multiply(_scaled(b, t1, value), t2))


@lowering("addcdiv", promote=DEFAULT, operands=("self", "tensor1", "tensor2"), runtime=("value",))
def _addcdiv(b, x, t1, t2, *, value):
    return b.add(x, b.divide(_scaled(b, t1, value), t2))


@lowering("lerp.Tensor", "lerp.Scalar", promote=DEFAULT, runtime=("weight",))
def _lerp(b, x, end, w):
    # From the nearer end, so that weight 1 gives `end` exactly.
    d = end - x
    return b.select(b.abs(w) < 0.5, x + w * d, end - d * (1 - w))


@lowering("ldexp.Tensor", promote=FLOAT)
def _ldexp(b, x, y):
    return x * b.power(like(b, 2, y), y)


# ---- functions of two floats --------------------------------------------------------------------


@lowering("atan2", promote=FLOAT)
def _atan2(b, x, y):
    return b.atan2(x, y)


@lowering("hypot", promote=DEFAULT)
def _hypot(b, x, y):
    x, y = b.abs(x), b.abs(y)
    high, low = b.maximum(x, y), b.minimum(x, y)
    ratio = low / b.select(high.eq(0), 1, high)
    inf = b.or_(is_inf(b, x), is_inf(b, y))
    return b.select(inf, math.inf, high * b.sqrt(1 + ratio * ratio))


def _logaddexp(base: float) -> Callable[[Builder, Value, Value], Value]:
    scale = math.log(base)

    def body(b, x, y):
        swap = b.real(x) < b.real(y)
        high, low = b.select(swap, y, x), b.select(swap, x, y)
        out = high + b.log1p(b.exp((low - high) * scale)) / scale
        return b.select(b.and_(is_inf(b, x), x.eq(y)), x, out)

    return body


lowering("logaddexp", promote=FLOAT)(_logaddexp(math.e))
lowering("logaddexp2", promote=FLOAT)(_logaddexp(2))


@lowering("copysign.Tensor", "copysign.Scalar", promote=FLOAT, runtime=("other",))
def _copysign(b, x, y):
    return b.select(sign_bit(b, y), -b.abs(x), b.abs(x))


@lowering("nextafter", promote=DEFAULT, upcast=False)
def _nextafter(b, x, y):
    return b.binary("chlo.next_after", x, y)


_XLOG = dict(promote=FLOAT, runtime=_PAIR)


@lowering("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", **_XLOG)
def _xlogy(b, x, y):
    return b.select(b.is_nan(y), y, b.select(x.eq(0), 0, x * b.log(y)))


@lowering("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar", **_XLOG)
def _xlog1py(b, x, y):
    return b.select(b.is_nan(y), y, b.select(x.eq(0), 0, x * b.log1p(y)))


@lowering("heaviside", promote=DEFAULT, upcast=False)
def _heaviside(b, x, values):
    zero = like(b, 0, x)
    return b.select(x.eq(zero), values, b.compare(x, zero, "GT").to(x.dtype))


# ---- selection ----------------------------------------------------------------------------------


@lowering("maximum", "max.other", promote=DEFAULT, upcast=False)
def _maximum(b, x, y):
    return b.maximum(x, y)


@lowering("minimum", "min.other", promote=DEFAULT, upcast=False)
def _minimum(b, x, y):
    return b.minimum(x, y)


@lowering("fmax", promote=DEFAULT, upcast=False)
def _fmax(b, x, y):
    return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, b.maximum(x, y)))


@lowering("fmin", promote=DEFAULT, upcast=False)
def _fmin(b, x, y):
    return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, b.minimum(x, y)))


_BOUNDS = dict(promote=DEFAULT, upcast=False, runtime=("min", "max"))


@lowering(
    "clamp", "clamp.Tensor", "clip", "clip.Tensor", operands=("self", "min", "max"), **_BOUNDS
)
def _clamp(b, x, low, high):
    x = x if low is None else b.maximum(x, low)
    return x if high is None else b.minimum(x, high)


lowering("clamp_min", "clamp_min.Tensor", operands=("self", "min"), **_BOUNDS)(_maximum)
lowering("clamp_max", "clamp_max.Tensor", operands=("self", "max"), **_BOUNDS)(_minimum)


@lowering("where.self", promote=DEFAULT, upcast=False, operands=("self", "other"))
def _where(b, condition, x, y):
    return b.select(condition.to("i1"), x, y)


# ---- comparisons, logic, bits -------------------------------------------------------------------


def _compare(direction: str) -> Callable[[Builder, Value, Value], Value]:
    return lambda b, x, y: b.compare(x, y, direction)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowering(
        f"{_name}.Tensor", f"{_name}.Scalar", promote=DEFAULT, upcast=False, runtime=("other",)
    )(_compare(_name.upper()))

for _name in ("and", "or", "xor"):
    lowering(f"logical_{_name}")(
        lambda b, x, y, _op=_name: b.binary(_op, *b.broadcast(x.to("i1"), y.to("i1")))
    )
    lowering(
        *(f"bitwise_{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"__{_name}__.{o}" for o in ("Tensor", "Scalar")),
        promote=DEFAULT,
        runtime=_PAIR,
    )(lambda b, x, y, _op=_name: b.binary(_op, x, y))


# A shift count that is negative or not below the width gives 0, or the sign: XLA's rule too, as
# it reads counts unsigned.
@lowering(
    *(f"bitwise_left_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *(f"__lshift__.{o}" for o in ("Tensor", "Scalar")),
    promote=DEFAULT,
    runtime=_PAIR,
)
def _shift_left(b, x, y):
    return b.binary("shift_left", x, y)


@lowering(
    *(f"bitwise_right_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *(f"__rshift__.{o}" for o in ("Tensor", "Scalar")),
    promote=DEFAULT,
    runtime=_PAIR,
)
def _shift_right(b, x, y):
    return b.binary(f"shift_right_{'arithmetic' if x.dtype in T.SIGNED else 'logical'}", x, y)


def _euclid(b: Builder, x: Value, y: Value) -> Value:
    def cond(_x, y):
        return b.reduce_op("or", y.ne(0), range(y.ndim))

    def body(x, y):
        done = y.eq(0)
        r = b.remainder(x, b.select(done, 1, y))
        return b.select(done, x, y), b.select(done, 0, r)

    return b.while_([b.abs(x), b.abs(y)], cond, body)[0]


@lowering("gcd", promote=DEFAULT)
def _gcd(b, x, y):
    return _euclid(b, x, y)


@lowering("lcm", promote=DEFAULT)
def _lcm(b, x, y):
    if T.bits(x.dtype) < 32:  # the product wraps after the absolute value, as in C
        x, y = x.to("i32"), y.to("i32")
    g = _euclid(b, x, y)
    return b.abs(b.divide(x, b.select(g.eq(0), 1, g)) * y)


# ---- complex numbers ----------------------------------------------------------------------------


@lowering("complex", promote=DEFAULT, upcast=False)
def _complex(b, re, im):
    return b.complex(re, im)


@lowering("polar", promote=DEFAULT, upcast=False)
def _polar(b, radius, angle):
    return b.complex(radius * b.unary("cosine", angle), radius * b.unary("sine", angle))
