"""Random numbers: fills, factories, dropout, sampling without loops. Every bit comes from
random_bits.py.

Distributions that need rejection loops (gamma, Poisson, binomial) are in random_loops.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchtpu_core.lowering import random_bits
from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.factory import default_dtype
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand
from torchtpu_core.stablehlo.wide import high_product


def _is_zero(x: Operand) -> bool:
    return not isinstance(x, Value) and x == 0


def _is_one(x: Operand) -> bool:
    return not isinstance(x, Value) and x == 1


def _parts(b: Builder, dtype: str, shape: Sequence[int], draw) -> Value:
    """`draw(real dtype, shape)`, or a complex value of two draws."""
    if dtype not in T.COMPLEX:
        return draw(dtype, shape)
    part = T.real_of(dtype)
    return b.complex(b.convert(draw(part, shape), part), b.convert(draw(part, shape), part))


# ---- uniform and normal --------------------------------------------------------------------------


def uniform(
    b: Builder, dtype: str, shape: Sequence[int], low: Operand = 0, high: Operand = 1
) -> Value:
    """Uniform in [low, high) after rounding to `dtype`."""

    def draw(part: str, shape: Sequence[int]) -> Value:
        u = random_bits.unit(b, part, shape)
        if _is_zero(low) and _is_one(high):
            return b.convert(u, part)
        lo, hi = b.lift(low, u.dtype), b.lift(high, u.dtype)
        x = b.convert(u * (hi - lo) + lo, part)
        return b.select(
            x >= b.convert(hi, part), b.convert(lo, part), x
        )  # rounding may reach `high`

    return _parts(b, dtype, shape, draw)


def normal(
    b: Builder, dtype: str, shape: Sequence[int], mean: Operand = 0, std: Operand = 1
) -> Value:
    """Normal numbers; a complex number's parts share the variance."""

    def draw(part: str, shape: Sequence[int]) -> Value:
        z = random_bits.normal(b, part, shape)
        scale = b.lift(std, z.dtype) * math.sqrt(0.5) if dtype in T.COMPLEX else std
        if not _is_one(scale):
            z = z * b.lift(scale, z.dtype)
        return z if _is_zero(mean) else z + b.lift(mean, z.dtype)

    return _parts(b, dtype, shape, draw)


@lowering("uniform", runtime=("from", "to"))
def _uniform(b: Builder, x: Value, low: Operand, high: Operand) -> Value:
    return uniform(b, x.dtype, x.shape, low, high)


@lowering("normal_functional", runtime=("mean", "std"))
def _normal_functional(b: Builder, x: Value, mean: Operand, std: Operand) -> Value:
    return normal(b, x.dtype, x.shape, mean, std)


@lowering(
    "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", runtime=("mean", "std")
)
def _normal_of_tensors(b: Builder, mean: Operand, std: Operand) -> Value:
    like = b.broadcast(mean, std)[0]
    return normal(b, like.dtype, like.shape, mean, std)


@lowering("normal.float_float", runtime=("mean", "std"))
def _normal_of_numbers(b, mean: Operand, std: Operand, size: Sequence[int], *, dtype=None) -> Value:
    return normal(b, default_dtype(dtype), size, mean, std)


@lowering("rand", "rand.generator")
def _rand(b: Builder, size: Sequence[int], *, dtype=None) -> Value:
    return uniform(b, default_dtype(dtype), size)


@lowering("randn", "randn.generator")
def _randn(b: Builder, size: Sequence[int], *, dtype=None) -> Value:
    return normal(b, default_dtype(dtype), size)


@lowering("rand_like", "rand_like.generator")
def _rand_like(b: Builder, x: Value, *, dtype=None) -> Value:
    return uniform(b, mlir(dtype) if dtype is not None else x.dtype, x.shape)


@lowering("randn_like", "randn_like.generator")
def _randn_like(b: Builder, x: Value, *, dtype=None) -> Value:
    return normal(b, mlir(dtype) if dtype is not None else x.dtype, x.shape)


@lowering("prims::uniform", runtime=("low", "high"))
def _prim_uniform(
    b: Builder, shape: Sequence[int], *, low: Operand, high: Operand, dtype, stride
) -> Value:
    return uniform(b, mlir(dtype), shape, low, high)


@lowering("prims::normal", runtime=("mean", "std"))
def _prim_normal(b: Builder, shape: Sequence[int], *, mean: Operand, std: Operand, dtype) -> Value:
    return normal(b, mlir(dtype), shape, mean, std)


# ---- integers ------------------------------------------------------------------------------------


def integers(b: Builder, dtype: str, shape: Sequence[int], low: Operand, high: Operand) -> Value:
    """Whole numbers in [low, high). Bounds wrap at 64 bits, so a range of 2^64 is (0, 0)."""
    lo = b.bitcast(b.lift(low, "i64"), "ui64")
    count = b.bitcast(b.lift(high, "i64"), "ui64") - lo
    if T.bits(dtype) == 64:
        raw = random_bits.bits(b, "ui64", shape)
        x = b.select(count.eq(0), raw, high_product(b, raw, b.splat(count, shape)))
    else:
        raw = b.convert(random_bits.bits(b, "ui32", shape), "ui64")
        x = b.binary("shift_right_logical", *b.broadcast(raw * count, 32))
    return b.convert(b.bitcast(x + lo, "i64"), dtype)


def _past_largest(dtype: str) -> int:
    """One more than the largest number `random_` gives without an upper bound."""
    if dtype in T.FLOATS:
        return round(2 / T.finfo_eps(dtype)) + 1
    return T.int_limits(dtype)[1] + 1


@lowering("random.from", "random.to", "random", runtime=("from", "to"))
def _random(b: Builder, x: Value, *bounds: Operand | None) -> Value:
    low, high = (0, None) if not bounds else (0, *bounds) if len(bounds) == 1 else bounds
    return integers(b, x.dtype, x.shape, low, _past_largest(x.dtype) if high is None else high)


def _int_dtype(dtype) -> str:
    return (
        mlir(dtype) if isinstance(dtype, torch.dtype) else "i64"
    )  # the schema's default is a number


@lowering("randint", "randint.generator", runtime=("high",))
def _randint(b: Builder, high: Operand, size: Sequence[int], *, dtype=None) -> Value:
    return integers(b, _int_dtype(dtype), size, 0, high)


@lowering("randint.low", "randint.low_generator", runtime=("low", "high"))
def _randint_low(b, low: Operand, high: Operand, size: Sequence[int], *, dtype=None) -> Value:
    return integers(b, _int_dtype(dtype), size, low, high)


@lowering(
    "randint_like", "randint_like.generator", "randint_like.Tensor",
    "randint_like.Tensor_generator", runtime=("high",),
)  # fmt: skip
def _randint_like(b: Builder, x: Value, high: Operand, *, dtype=None) -> Value:
    return integers(b, mlir(dtype) if dtype is not None else x.dtype, x.shape, 0, high)


@lowering("randint_like.low_dtype", "randint_like.low_generator_dtype", runtime=("low", "high"))
def _randint_like_low(b: Builder, x: Value, low: Operand, high: Operand, *, dtype=None) -> Value:
    return integers(b, mlir(dtype) if dtype is not None else x.dtype, x.shape, low, high)


@lowering("randperm", "randperm.generator")
def _randperm(b: Builder, n: int, *, dtype=None) -> Value:
    # keys wide enough that equal ones, which stay in order, are too rare to show
    keys = random_bits.bits(b, "ui32" if n < 2**12 else "ui64", (n,))
    index = b.iota("i32" if n < 2**31 else "i64", (n,))
    if n > 1:
        index = b.sort([keys, index], 0, lambda x, y, *_: x < y)[1]
    return b.convert(index, _int_dtype(dtype))


# ---- choices -------------------------------------------------------------------------------------


def chance(b: Builder, p: Operand, shape: Sequence[int]) -> Value:
    """i1 values, true with probability `p` (a number or a tensor that broadcasts to `shape`)."""
    dtype = "f64" if isinstance(p, Value) and p.dtype == "f64" and not p.weak else "f32"
    return random_bits.unit(b, dtype, shape) < b.expand(b.lift(p, dtype), shape)


@lowering("bernoulli")
def _bernoulli(b: Builder, p: Value) -> Value:
    return chance(b, p, p.shape)


@lowering("bernoulli.p", "bernoulli.Tensor", runtime=("p",))
def _bernoulli_p(b: Builder, x: Value, p: Operand) -> Value:
    return b.convert(chance(b, p, x.shape), x.dtype)


def _scaled(b: Builder, x: Value, mask: Value, scale: Operand) -> Value:
    """x * mask * scale (a product, so that NaN stays NaN where it is dropped)."""
    compute = opmath(x.dtype)
    return b.convert(x, compute) * (b.convert(mask, compute) * b.lift(scale, compute))


def _dropped(b: Builder, x: Value, keep: Operand) -> tuple[Value, Value]:
    """(x scaled where kept, i1 mask), `keep` being the probability."""
    keep = b.lift(keep, "f64" if x.dtype in ("f64", "complex<f64>") else "f32")
    mask = chance(b, keep, x.shape)
    return _scaled(b, x, mask, b.select(keep.eq(0), 0, 1 / keep)), mask


@lowering("native_dropout", runtime=("p",))
def _native_dropout(b: Builder, x: Value, p: Operand, train: bool | None) -> tuple[Value, Value]:
    if train is False:
        return x, b.constant(True, "i1", x.shape)
    wide = x.dtype in ("f64", "complex<f64>")
    return _dropped(b, x, 1 - b.lift(p, "f64" if wide else "f32"))


@lowering("_fused_dropout", runtime=("p",))
def _fused_dropout(b: Builder, x: Value, keep: Operand, generator=None) -> tuple[Value, Value]:
    return _dropped(b, x, keep)


@lowering("native_dropout_backward", "_masked_scale", runtime=("scale",))
def _native_dropout_backward(b: Builder, grad: Value, mask: Value, scale: Operand) -> Value:
    return _scaled(b, grad, mask, scale)


@lowering("multinomial")
def _multinomial(b: Builder, probs: Value, count: int, replacement: bool) -> Value:
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > probs.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if probs.shape[-1] > 2**24:  # as PyTorch, for any device
        raise RuntimeError("number of categories cannot exceed 2^24")
    p = b.convert(probs, opmath(probs.dtype))
    if p.ndim == 1:
        p = b.reshape(p, (1, *p.shape))
    out = _with_replacement(b, p, count) if replacement and count > 1 else _race(b, p, count)
    return b.convert(b.reshape(out, (*probs.shape[:-1], count)), "i64")


def _race(b: Builder, p: Value, count: int) -> Value:
    """Exponential arrival times of rate `p`: the first `count` to arrive are a sample without
    replacement.
    """
    u = random_bits.unit(b, p.dtype, p.shape, half=True)
    speed = p / -b.log(u)
    index = b.iota("i32", p.shape, 1)
    order = b.sort([speed, index], 1, lambda x, y, *_: x > y)[1]
    return b.slice_dim(order, 1, 0, count)


def _with_replacement(b: Builder, p: Value, count: int) -> Value:
    """For each draw, how many steps of the distribution function lie below it."""
    rows, n = p.shape
    total = cumulative_sum(b, p, 1)
    last = b.slice_dim(total, 1, n - 1, n)
    draw = random_bits.unit(b, p.dtype, (rows, count)) * last
    shape = (rows, count, n)
    below = b.broadcast_in_dim(total, shape, (0, 2)) <= b.broadcast_in_dim(draw, shape, (0, 1))
    index = b.reduce_op("add", b.convert(below, "i32"), [2])
    possible = b.reduce_op("maximum", b.select(p > 0, b.iota("i32", p.shape, 1), 0), [1])
    return b.minimum(index, b.broadcast_in_dim(possible, index.shape, (0,)))  # rounding


# ---- by the inverse of the distribution function -------------------------------------------------


@lowering("exponential", runtime=("lambd",))
def _exponential(b: Builder, x: Value, lambd: Operand) -> Value:
    e = -b.log(random_bits.unit(b, x.dtype, x.shape, half=True))
    return e / b.lift(lambd, e.dtype)


@lowering("cauchy", runtime=("median", "sigma"))
def _cauchy(b: Builder, x: Value, median: Operand, sigma: Operand) -> Value:
    u = random_bits.unit(b, opmath(x.dtype), x.shape, half=True)
    wave = b.unary("tan", (u - 0.5) * math.pi)
    return wave * b.lift(sigma, u.dtype) + b.lift(median, u.dtype)


@lowering("log_normal", runtime=("mean", "std"))
def _log_normal(b: Builder, x: Value, mean: Operand, std: Operand) -> Value:
    return b.exp(b.convert(normal(b, x.dtype, x.shape, mean, std), opmath(x.dtype)))


@lowering("geometric", runtime=("p",))
def _geometric(b: Builder, x: Value, p: Operand) -> Value:
    dtype = "f64" if x.dtype in ("f64", "i64") else "f32"
    u = random_bits.unit(b, dtype, x.shape, half=True)
    tries = b.ceil(b.log(u) / b.log1p(-b.lift(p, dtype)))
    return b.maximum(*b.broadcast(tries, 1))


@lowering("rrelu_with_noise_functional", runtime=("lower", "upper"))
def _rrelu_with_noise(
    b: Builder,
    x: Value,
    noise: Value,
    lower: Operand,
    upper: Operand,
    training: bool,
    generator=None,
) -> tuple[Value, Value]:
    compute = opmath(x.dtype)
    wide = b.convert(x, compute)
    if not training:
        slope = (b.lift(lower, compute) + b.lift(upper, compute)) * 0.5
        return b.select(wide > 0, wide, wide * slope), noise
    slope = b.convert(uniform(b, x.dtype, x.shape, lower, upper), compute)
    slope = b.select(wide > 0, 1, slope)
    return wide * slope, slope
