"""The elementwise primitives that PyTorch's references end in.

Each is an ATen operator on operands of one dtype and shape.
"""

from __future__ import annotations

from torchtpu_core.lowering import pointwise, pointwise_special  # noqa: F401  (registers what is aliased here)
from torchtpu_core.lowering.promotion import DEFAULT, FLOAT
from torchtpu_core.lowering.registry import canonical, lowering, rules
from torchtpu_core.stablehlo import Builder, Value

_SAME_NAME = """
    abs acos acosh asin asinh atan atanh atan2 bitwise_not ceil conj_physical cos cosh digamma
    erf erfc exp exp2 expm1 floor fmax fmin gcd hypot igamma igammac imag isfinite lgamma log
    log10 log1p log2 maximum minimum neg nextafter real reciprocal round rsqrt sign signbit sin
    sinh sqrt tan tanh trunc
"""
_TENSOR_OVERLOAD = "bitwise_and bitwise_or bitwise_xor eq ge gt le lt ne fmod mul remainder frexp"
_RENAMED = {
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "bessel_j0": "special_bessel_j0",
    "bessel_j1": "special_bessel_j1",
    "erf_inv": "erfinv",
    "erfcx": "special_erfcx",
    "ndtri": "special_ndtri",
    "pow": "pow.Tensor_Tensor",
    "shift_left": "bitwise_left_shift.Tensor",
    "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "spherical_bessel_j0": "special_spherical_bessel_j0",
    "zeta": "special_zeta",
}

_ATEN = {n: n for n in _SAME_NAME.split()}
_ATEN |= {n: f"{n}.Tensor" for n in _TENSOR_OVERLOAD.split()}
_ATEN |= _RENAMED
_table = rules()
for _prim, _aten in _ATEN.items():
    _rule = _table[canonical(_aten)]
    lowering(
        f"prims::{_prim}", promote=_rule.promote, operands=_rule.operands, upcast=_rule.upcast
    )(_rule.fn)


def _div(b: Builder, x: Value, y: Value) -> Value:
    # Of booleans the rule of PyTorch's meta kernel is another boolean, its kernels divide floats.
    if x.dtype == "i1":
        return b.divide(x.to("f32"), y.to("f32")).ne(0.0)
    return b.divide(x, y)


# One operand may be a number.
lowering("prims::add", promote=DEFAULT)(Builder.add)
lowering("prims::sub", promote=DEFAULT)(Builder.subtract)
lowering("prims::div", promote=DEFAULT)(_div)
lowering("prims::where")(lambda b, pred, x, y: b.select(pred, x, y))
lowering("prims::cbrt", promote=FLOAT)(lambda b, x: b.unary("cbrt", x))
