"""Activation functions and their derivatives."""

from __future__ import annotations

import math

from torchtpu_core.lowering.pointwise import conj, like, softplus
from torchtpu_core.lowering.promotion import DEFAULT
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
_GRAD = ("grad_output", "self")


def _act(*names, runtime=(), operands=("self",)):
    return lowering(*names, promote=DEFAULT, operands=operands, runtime=runtime)


def _grad(*names, runtime=(), operands=_GRAD):
    return lowering(*names, promote=DEFAULT, operands=operands, runtime=runtime)


# ---- sigmoid and tanh ---------------------------------------------------------------------------


@_grad("sigmoid_backward", operands=("grad_output", "output"))
def _sigmoid_backward(b, g, y):
    return g * conj(b, (1 - y) * y)


@_grad("tanh_backward", operands=("grad_output", "output"))
def _tanh_backward(b, g, y):
    return g * conj(b, 1 - y * y)


@_act("silu")
def _silu(b, x):
    return x * b.logistic(x)


@_grad("silu_backward")
def _silu_backward(b, g, x):
    s = b.logistic(x)
    return g * s * (1 + x * (1 - s))


@_act("mish")
def _mish(b, x):
    return x * b.tanh(softplus(b, x))


@_grad("mish_backward")
def _mish_backward(b, g, x):
    s, t = b.logistic(x), b.tanh(softplus(b, x))
    return g * (t + x * s * (1 - t * t))


@_act("log_sigmoid_forward")
def _log_sigmoid(b, x):
    z = b.exp(-b.abs(x))
    return b.minimum(x, like(b, 0, x)) - b.log1p(z), z


@_grad("log_sigmoid_backward")
def _log_sigmoid_backward(b, g, x, _buffer):
    return g * b.logistic(-x)


@_act("softplus", runtime=("beta", "threshold"))
def _softplus(b, x, beta, threshold):
    beta = like(b, beta, x)
    z = x * beta
    return b.select(z > like(b, threshold, x), x, b.log1p(b.exp(z)) / beta)


@_grad("softplus_backward", runtime=("beta", "threshold"))
def _softplus_backward(b, g, x, beta, threshold):
    z = x * like(b, beta, x)
    return b.select(z > like(b, threshold, x), g, g * b.logistic(z))


def _halves(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    n = x.shape[dim] // 2
    return b.slice_dim(x, dim, 0, n), b.slice_dim(x, dim, n, 2 * n)


@_act("glu")
def _glu(b, x, dim):
    a, gate = _halves(b, x, dim)
    return a * b.logistic(gate)


@lowering("glu_backward")
def _glu_backward(b, g, x, dim):
    a, gate = _halves(b, x.to(_wide(x)), dim)
    s, g = b.logistic(gate), g.to(a.dtype)
    return b.concatenate([s * g, (1 - s) * s * g * a], dim)


@lowering("glu_jvp")
def _glu_jvp(b, y, x, dx, dim):
    y, x, dx = (v.to(_wide(v)) for v in (y, x, dx))
    (da, dgate), (_, gate) = _halves(b, dx, dim), _halves(b, x, dim)
    s = b.logistic(gate)
    return da * s + dgate * (y - s * y)


def _wide(x: Value) -> str:
    return "f32" if x.dtype in ("bf16", "f16") else x.dtype


# ---- gelu ---------------------------------------------------------------------------------------

_CUBIC = 0.044715


@_act("gelu")
def _gelu(b, x, *, approximate):
    if approximate == "tanh":
        return 0.5 * x * (1 + b.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)))
    return 0.5 * x * (1 + b.erf(x * math.sqrt(0.5)))


@_grad("gelu_backward")
def _gelu_backward(b, g, x, *, approximate):
    if approximate == "tanh":
        k = math.sqrt(2 / math.pi)
        t = b.tanh(k * (x + _CUBIC * x * x * x))
        slope = 0.5 * x * (1 - t * t) * (k * (1 + 3 * _CUBIC * x * x))
        return g * (0.5 * (1 + t) + slope)
    cdf = 0.5 * (1 + b.erf(x * math.sqrt(0.5)))
    return g * (cdf + x * b.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


# ---- elu ----------------------------------------------------------------------------------------

_ELU = ("alpha", "scale", "input_scale")


@_act("elu", runtime=_ELU)
def _elu(b, x, alpha, scale, input_scale):
    alpha, scale, input_scale = (like(b, s, x) for s in (alpha, scale, input_scale))
    return b.select(x <= 0, b.expm1(x * input_scale) * (alpha * scale), x * scale)


@_grad("elu_backward", operands=("grad_output", "self_or_result"), runtime=_ELU)
def _elu_backward(b, g, alpha, scale, input_scale, is_result, x):
    alpha, scale, input_scale = (like(b, s, x) for s in (alpha, scale, input_scale))
    slope = x + alpha * scale if is_result else alpha * scale * b.exp(x * input_scale)
    return b.select(x <= 0, g * input_scale * slope, g * scale)


@_act("celu", runtime=("alpha",))
def _celu(b, x, alpha):
    alpha = like(b, alpha, x)
    return b.select(x <= 0, b.expm1(x / alpha) * alpha, x)


@_act("selu")
def _selu(b, x):
    return _elu(b, x, _SELU_ALPHA, _SELU_SCALE, 1)


# ---- piecewise linear ---------------------------------------------------------------------------


@_act("leaky_relu", runtime=("negative_slope",))
def _leaky_relu(b, x, slope):
    return b.select(x > 0, x, x * like(b, slope, x))


@_grad("leaky_relu_backward", runtime=("negative_slope",))
def _leaky_relu_backward(b, g, x, slope, _self_is_result):
    return b.select(x > 0, g, g * like(b, slope, x))


@_grad("rrelu_with_noise_backward", operands=("grad_output", "self", "noise"))
def _rrelu_backward(b, g, x, noise, lower, upper, training, _self_is_result):
    if training and upper - lower > 1e-6:
        return g * noise
    return _leaky_relu_backward(b, g, x, (lower + upper) / 2, False)


@_act("_prelu_kernel", operands=("self", "weight"))
def _prelu(b, x, w):
    return b.select(x > 0, x, x * w)


@_grad("_prelu_kernel_backward", operands=("grad_output", "self", "weight"))
def _prelu_backward(b, g, x, w):
    return b.select(x > 0, g, g * w), b.select(x > 0, 0, g * x)


@_act("threshold", runtime=("threshold", "value"))
def _threshold(b, x, threshold, value):
    return b.select(x <= like(b, threshold, x), like(b, value, x), x)


@_grad("threshold_backward", runtime=("threshold",))
def _threshold_backward(b, g, x, threshold):
    return b.select(x <= like(b, threshold, x), 0, g)


def _between(b: Builder, low: Value, x: Value, high: Value) -> Value:
    return b.minimum(b.maximum(x, low), high)


def relu6(b: Builder, x: Value) -> Value:
    """min(max(x, 0), 6)."""
    return _between(b, like(b, 0, x), x, like(b, 6, x))


lowering("relu6", promote=DEFAULT)(relu6)


@_act("hardtanh", runtime=("min_val", "max_val"))
def _hardtanh(b, x, low, high):
    return _between(b, like(b, low, x), x, like(b, high, x))


@_grad("hardtanh_backward", runtime=("min_val", "max_val"))
def _hardtanh_backward(b, g, x, low, high):
    return b.select((x <= like(b, low, x)) | (x >= like(b, high, x)), 0, g)


@_act("hardsigmoid")
def _hardsigmoid(b, x):
    return relu6(b, x + 3) / 6


@_grad("hardsigmoid_backward")
def _hardsigmoid_backward(b, g, x):
    return b.select((x > -3) & (x < 3), g / 6, 0)


@_act("hardswish")
def _hardswish(b, x):
    return x * relu6(b, x + 3) / 6


@_grad("hardswish_backward")
def _hardswish_backward(b, g, x):
    return b.select(x <= -3, 0, b.select(x < 3, g * (x / 3 + 0.5), g))


@_act("hardshrink", runtime=("lambd",))
def _hardshrink(b, x, lambd):
    lambd = like(b, lambd, x)
    return b.select((x >= -lambd) & (x <= lambd), 0, x)


@_act("softshrink", runtime=("lambd",))
def _softshrink(b, x, lambd):
    lambd = like(b, lambd, x)
    # x * 0 keeps a NaN
    return b.select(x > lambd, x - lambd, b.select(x < -lambd, x + lambd, x * 0))


def _shrink_backward(b, g, x, lambd):
    lambd = like(b, lambd, x)
    return b.select((x >= -lambd) & (x <= lambd), 0, g)


_grad("softshrink_backward", runtime=("lambd",))(_shrink_backward)
_grad("hardshrink_backward", operands=("grad_out", "self"), runtime=("lambd",))(_shrink_backward)
