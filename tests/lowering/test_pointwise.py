"""Elementwise lowerings against CPU: values, dtypes, special values and shapes."""

import math

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
INF, NAN = math.inf, math.nan

EDGES = [0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, -3.5, 7.5, -20.0, INF, -INF, NAN]
INTS = [0, 1, -1, 2, -3, 7, -8, 100, -100]


def floats(dtype=torch.float32):
    return torch.tensor(EDGES, dtype=dtype)


def grid(values, dtype):
    """Every pair of values."""
    v = torch.tensor(values).to(dtype)
    return v[:, None].expand(len(values), len(values)).contiguous(), v.expand(
        len(values), len(values)
    ).contiguous()


FLOAT_UNARY = [
    "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "deg2rad",
    "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "i0", "lgamma", "log", "log10",
    "log1p", "log2", "logit", "rad2deg", "reciprocal", "rsqrt", "sigmoid", "frac", "sin",
    "sinc", "sinh", "sqrt", "tan", "tanh", "silu", "mish", "hardswish", "hardsigmoid", "relu6",
    "selu", "special_i0e", "special_i1", "special_i1e", "special_entr",
]  # fmt: skip
# CPU has these for float32 and float64 only
SPECIAL = [
    "log_ndtr", "ndtri", "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
]  # fmt: skip
EXACT_UNARY = [
    "abs", "ceil", "floor", "neg", "relu", "round", "sgn", "sign", "trunc", "isnan", "isinf",
    "isfinite", "isposinf", "isneginf", "signbit", "logical_not", "nan_to_num",
]  # fmt: skip


@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_functions(name):
    check(getattr(aten, name).default, floats())
    check(getattr(aten, name).default, torch.tensor([0.2, 0.6, 0.9], dtype=torch.bfloat16))


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name):
    check(getattr(aten, f"special_{name}").default, floats())


def test_special_functions_in_double_precision():
    x = torch.linspace(-9, 30, 79, dtype=torch.float64)
    for name in ("scaled_modified_bessel_k0", "modified_bessel_k1", "i1e", "erfcx", "log_ndtr"):
        check(getattr(aten, f"special_{name}").default, x)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "atan", "lgamma", "angle", "deg2rad"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_become_floats(name, dtype):
    check(getattr(aten, name).default, torch.tensor([0, 1, 3]).to(dtype))


@pytest.mark.parametrize("name", EXACT_UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_exact_functions(name, dtype):
    x = floats(dtype) if dtype.is_floating_point else torch.tensor(INTS).to(dtype)
    check(getattr(aten, name).default, x)


@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "abs",
        "neg",
        "sqrt",
        "sgn",
        "reciprocal",
        "tanh",
        "angle",
        "_conj_physical",
        "sigmoid",
    ],
)
def test_complex_functions(name):
    check(getattr(aten, name).default, torch.tensor([1 + 2j, -0.5j, 0.3, -2 - 1j]))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
@pytest.mark.parametrize("name", ["exp", "neg", "gelu", "isnan", "round", "i0"])
def test_empty_and_0d(name, shape):
    check(getattr(aten, name).default, torch.rand(shape))


# ---- two operands
# ---------------------------------------------------------------------------------

BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "remainder.Tensor", "fmod.Tensor",
    "floor_divide", "atan2", "hypot", "copysign.Tensor", "maximum", "minimum", "fmax", "fmin",
    "logaddexp", "logaddexp2", "xlogy.Tensor", "heaviside", "eq.Tensor", "ne.Tensor",
    "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "logical_and", "logical_or",
    "logical_xor", "nextafter",
]  # fmt: skip


def resolve(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


@pytest.mark.parametrize("name", BINARY)
def test_float_pairs(name):
    check(resolve(name), *grid(EDGES, torch.float32))


@pytest.mark.parametrize(
    "name", ["add.Tensor", "mul.Tensor", "div.Tensor", "maximum", "lt.Tensor", "remainder.Tensor"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_float_pairs_of_other_dtypes(name, dtype):
    check(resolve(name), *grid([0.5, -1.5, 2.0, 3.25, INF, NAN], dtype))


INT_BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "remainder.Tensor", "fmod.Tensor", "floor_divide",
    "maximum", "minimum", "gcd", "lcm", "bitwise_and.Tensor", "bitwise_or.Tensor",
    "bitwise_xor.Tensor", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor",
    "eq.Tensor", "lt.Tensor", "div.Tensor",
]  # fmt: skip


@pytest.mark.parametrize("name", INT_BINARY)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_int_pairs(name, dtype):
    x, y = grid(INTS, dtype)
    if any(word in name for word in ("remainder", "fmod", "divide")):
        y = y.masked_fill(y == 0, 3)
    check(resolve(name), x, y)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_division_modes(mode, dtype):
    x, y = grid(EDGES if dtype.is_floating_point else INTS, dtype)
    check(
        aten.div.Tensor_mode,
        x,
        y if dtype.is_floating_point else y.masked_fill(y == 0, 3),
        rounding_mode=mode,
    )
    check(aten.div.Scalar_mode, x, -3, rounding_mode=mode)


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 2, 3, -0.5, -1, -2, 2.5, -3])
def test_power_of_floats(exponent):
    check(aten.pow.Tensor_Scalar, floats(), exponent)
    check(aten.pow.Scalar, exponent, floats())


def test_power():
    check(aten.pow.Tensor_Tensor, *grid(EDGES, torch.float32))
    check(aten.pow.Tensor_Tensor, torch.tensor(INTS)[:, None], torch.arange(-2, 70))
    check(aten.pow.Tensor_Scalar, torch.tensor(INTS), 5)
    check(aten.pow.Tensor_Scalar, torch.tensor(INTS), 1.5)
    check(
        aten.pow.Tensor_Tensor,
        torch.tensor([1 + 2j, 2j, -1 + 0j]),
        torch.tensor([2 + 0j, 0j, 0.5j]),
    )


def test_shifts_beyond_the_width():
    x, y = torch.tensor([-5, 5, 1 << 40, -1]), torch.tensor([64, 70, -1, 63])
    check(aten.bitwise_left_shift.Tensor, x, y)
    check(aten.bitwise_right_shift.Tensor, x, y)


# ---- scalars and promotion
# ------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "number"), [
    (torch.int64, 2), (torch.int64, 2.5), (torch.bool, 2), (torch.bool, 2.5), (torch.bfloat16, 3),
    (torch.uint8, 3),
    (torch.float16, 2.5), (torch.float32, 2 - 1j), (torch.complex64, 2),
])  # fmt: skip
def test_scalar_promotion(dtype, number):
    x = torch.tensor([0, 1, 3]).to(dtype)
    check(aten.add.Scalar, x, number)
    check(aten.mul.Scalar, x, number)
    if dtype != torch.bool:
        check(aten.rsub.Scalar, x, number)
    check(aten.eq.Scalar, x, number)


def test_alpha():
    x, y = torch.rand(2, 3), torch.rand(3)
    check(aten.add.Tensor, x, y, alpha=0.5)
    check(aten.sub.Tensor, x.int(), y.int(), alpha=3)
    check(aten.add.Tensor, x, torch.tensor(2), alpha=2)
    check(aten.rsub.Tensor, x, y, alpha=2)


def test_0d_tensors_promote_by_kind():
    check(
        aten.add.Tensor, torch.ones(3, dtype=torch.bfloat16), torch.tensor(2.0, dtype=torch.float64)
    )
    check(aten.add.Tensor, torch.ones(3, dtype=torch.int32), torch.tensor(2.5))
    check(aten.where.self, torch.tensor([True, False]), torch.tensor(1), torch.tensor([2.5, 3.5]))


@pytest.mark.parametrize("bounds", [(None, 1), (-1, None), (-0.5, 0.5), (1, -1)])
def test_clamp(bounds):
    check(aten.clamp.default, floats(), *bounds)
    check(aten.clamp.default, torch.tensor(INTS), *bounds)
    tensors = [
        None if x is None else torch.tensor(float(x)).expand(len(EDGES)).contiguous()
        for x in bounds
    ]
    check(aten.clamp.Tensor, floats(), *tensors)


def test_ternary():
    x, y, z = torch.rand(3, 1), torch.rand(4), torch.rand(3, 4) + 0.1
    check(aten.addcmul.default, x, y, z, value=0.5)
    check(aten.addcdiv.default, x, y, z, value=-2)
    check(aten.lerp.Tensor, x, y, z)
    check(aten.lerp.Scalar, x, y, 0.75)
    check(aten.addcmul.default, x.bfloat16(), y.bfloat16(), z.bfloat16())
    check(aten.addcmul.default, torch.tensor(INTS), torch.tensor(INTS), torch.tensor(INTS), value=2)


def test_others():
    check(aten.round.decimals, torch.tensor([1.2345, -2.5, 1234.5]), decimals=2)
    check(aten.round.decimals, torch.tensor([1.2345, -25.0, 1234.5]), decimals=-1)
    check(aten.nan_to_num.default, floats(), 1.0, 2.0, -2.0)
    check(aten.nan_to_num.default, torch.tensor([complex(NAN, INF), 1j]))
    check(aten.frexp.Tensor, torch.tensor([0.0, 1.0, -3.5, 1e-30, 1e30, INF]))
    check(aten.ldexp.Tensor, torch.tensor([1.5, -2.0]), torch.tensor([3, -1]))
    check(aten.polar.default, torch.rand(3), torch.rand(3))
    check(aten.complex.default, torch.rand(3), torch.rand(3))
    check(aten.view_as_real_copy.default, torch.rand(3, dtype=torch.complex64))
    check(aten.view_as_complex_copy.default, torch.rand(3, 2))
    check(aten.polygamma.default, 1, torch.tensor([0.3, 2.5, -1.5, 30.0]))
    check(aten.polygamma.default, 3, torch.tensor([0.3, 2.5, -8.4784, 30.0]))
    check(aten.special_zeta.default, torch.tensor([2.0, 3.0, 1.5]), torch.tensor([0.5, 1.0, 2.5]))
    a, x = grid([0.0, 0.5, 1.0, 4.0, 20.0, INF], torch.float32)
    check(aten.igamma.default, a, x)
    check(aten.igammac.default, a, x)


@pytest.mark.parametrize(
    "name",
    [
        "chebyshev_polynomial_t",
        "shifted_chebyshev_polynomial_w",
        "hermite_polynomial_h",
        "legendre_polynomial_p",
    ],
)
def test_polynomials(name):
    op = getattr(aten, f"special_{name}")
    check(op.default, torch.tensor([-0.5, 0.2, 1.5]), torch.tensor([-1.0, 0.0, 5.0]))
    check(op.n_scalar, torch.tensor([-0.5, 0.2, 1.5]), 3)


# ---- activations
# ----------------------------------------------------------------------------------

ACTIVATIONS = {
    "elu": (1.5, 0.5, 2.0), "celu": (1.5,), "leaky_relu": (0.1,), "threshold": (0.5, 7.0),
    "hardtanh": (-0.5, 2.0),
    "hardshrink": (0.5,), "softshrink": (0.5,), "softplus": (2.0, 3.0), "log_sigmoid_forward": (),
}  # fmt: skip
DERIVATIVES = {
    "leaky_relu_backward": (0.1, False), "threshold_backward": (0.5,),
    "hardtanh_backward": (-0.5, 2.0),
    "hardshrink_backward": (0.5,), "softshrink_backward": (0.5,), "softplus_backward": (2.0, 3.0),
    "hardsigmoid_backward": (), "hardswish_backward": (), "sigmoid_backward": (),
    "tanh_backward": (), "silu_backward": (),
    "mish_backward": (), "gelu_backward": (), "logit_backward": (0.1,),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(name, dtype):
    check(getattr(aten, name).default, floats(dtype), *ACTIVATIONS[name])


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_derivatives(name, dtype):
    x = torch.linspace(-4, 4, 25).to(dtype)
    check(getattr(aten, name).default, torch.rand(25).to(dtype), x, *DERIVATIVES[name])


@pytest.mark.parametrize("is_result", [False, True])
def test_elu_backward(is_result):
    check(
        aten.elu_backward.default,
        torch.rand(9),
        1.5,
        0.5,
        2.0,
        is_result,
        torch.linspace(-0.7, 2, 9),
    )


def test_gates():
    x = torch.randn(3, 4)
    check(aten.gelu.default, x, approximate="tanh")
    check(aten.gelu_backward.default, x, x, approximate="tanh")
    check(aten.glu.default, x, 1)
    check(aten.glu_backward.default, x[:, :2].contiguous(), x, -1)
    check(aten._prelu_kernel.default, x, torch.rand(4))
    check(aten._prelu_kernel_backward.default, x, x, torch.rand(3, 4))


# ---- casts and fills
# ------------------------------------------------------------------------------

DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64
]  # fmt: skip


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_casts(source, target):
    signed = source.is_signed and source != torch.bool
    check(
        aten._to_copy.default,
        torch.tensor([0, 1, -3 if signed else 3, 100]).to(source),
        dtype=target,
    )


@pytest.mark.parametrize("target", [torch.uint8, torch.int8, torch.int16])
def test_floats_beyond_a_narrow_integer_wrap(target):
    check(aten._to_copy.default, torch.tensor([-1.5, 255.0, 300.7, 70000.0]), dtype=target)


def test_fills():
    x = torch.rand(2, 3)
    check(aten.fill.Scalar, x, 2.5)
    check(aten.fill.Tensor, x.int(), torch.tensor(3.7))
    check(aten.zero.default, x)
    check(aten.copy.default, x.bfloat16(), torch.rand(3))
    check(aten.masked_fill.Scalar, x, torch.tensor([True, False, True]), -INF)
    check(aten.masked_fill.Tensor, x, x > 0.5, torch.tensor(7))
