"""Products of matrices of few bits with scales beside them, and fake quantization.

Quantized dtypes (torch.qint8, ...) are not supported: numbers of few bits are int8, uint8 or float8
tensors, and their scales are tensors of their own. `_int_mm` is in `matmul.py`.
"""

from __future__ import annotations

import math

from torchtpu_core.lowering.dtypes import torch_dtype
from torchtpu_core.lowering.matmul import dot
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.value import Operand

_FLOAT8 = frozenset(("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"))
_SCALES = frozenset(("f32", "f8E8M0FNU"))


# ---- matrix products -----------------------------------------------------------------------------


def _is_outer(scale: Value, x: Value, axis: int) -> bool:
    """Whether a scale is constant along the contracted dimension: one number, or one for each index
    of `axis`."""
    return math.prod(scale.shape) == 1 or (
        scale.ndim == 2 and scale.shape[axis] == x.shape[axis] and scale.shape[1 - axis] == 1
    )


def _blocks(b: Builder, scale: Value, x: Value) -> Value:
    """A scale for each block of `x`, as one for each element, f32."""
    if scale.ndim != 2 or any(s == 0 or n % s for n, s in zip(x.shape, scale.shape)):
        raise NotImplementedError(
            f"aten::_scaled_mm: a scale of shape {scale.shape} for a matrix of shape {x.shape} is "
            "not supported; it must be one number, one for each row (M, 1) and column (1, N), or "
            "one for each of equal blocks, not swizzled"
        )
    (m, n), (p, q) = x.shape, scale.shape
    wide = b.broadcast_in_dim(scale.to("f32"), (p, m // p, q, n // q), (0, 2))
    return b.reshape(wide, (m, n))


def _scaled_product(b: Builder, x: Value, y: Value, scale_x: Value, scale_y: Value) -> Value:
    """(M, K) @ (K, N) of float8 with their scales, f32."""
    for v, scale in ((x, scale_x), (y, scale_y)):
        if v.dtype not in _FLOAT8 or scale.dtype not in _SCALES:
            raise NotImplementedError(
                f"aten::_scaled_mm: expected float8 matrices with float32 or float8_e8m0fnu "
                f"scales, got {torch_dtype(v.dtype)} with {torch_dtype(scale.dtype)}"
            )
    if not (_is_outer(scale_x, x, 0) and _is_outer(scale_y, y, 1)):
        scaled = (v.to("f32") * _blocks(b, s, v) for v, s in ((x, scale_x), (y, scale_y)))
        return dot(b, *scaled, ((1,), (0,)))
    # bf16 holds every float8 number and its products are exact in f32
    out = dot(b, x.to("bf16"), y.to("bf16"), ((1,), (0,)))
    for scale in (scale_x, scale_y):
        shape = scale.shape if scale.ndim == 2 else (1, 1)
        out = out * b.expand(b.reshape(scale.to("f32"), shape), out.shape)
    return out


def _with_bias(b: Builder, out: Value, bias: Value | None) -> Value:
    return out if bias is None else out + b.expand(bias.to("f32"), out.shape)


@lowering("_scaled_mm")
def _scaled_mm(
    b,
    x,
    y,
    scale_a,
    scale_b,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
):
    """(M, K) float8 @ (K, N) float8 -> (M, N) of `out_dtype`; scales of one number, (M, 1) and
    (1, N), or one for each of equal blocks. A float8 result is divided by `scale_result`, as on
    CPU."""
    out = _with_bias(b, _scaled_product(b, x, y, scale_a, scale_b), bias)
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        out = out / b.expand(b.reshape(scale_result.to("f32"), (1, 1)), out.shape)
    return out


@lowering("_scaled_mm_v2")
def _scaled_mm_v2(
    b,
    x,
    y,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
):
    """The same for ScalingType.TensorWise (0) and RowWise (1); the layouts of the others are those
    of one vendor's kernels."""
    if any(kind > 1 for kind in [*recipe_a, *recipe_b]):
        raise NotImplementedError(
            "aten::_scaled_mm_v2: scales of blocks are not supported; use ScalingType.TensorWise "
            "or RowWise, or torch._scaled_mm with scales of (M, K / 128) and (K / 128, N / 128)"
        )
    return _with_bias(b, _scaled_product(b, x, y, scale_a[0], scale_b[0]), bias)


@lowering("_weight_int8pack_mm")
def _weight_int8pack_mm(b, x, w, scales):
    """(M, K) floats @ (N, K) int8, transposed, times scales (N,)."""
    out = dot(b, x, w.to(x.dtype), ((1,), (1,)))
    return (out * b.expand(scales.to(out.dtype), out.shape)).to(x.dtype)


# An int4 weight of (N, K) packs to whatever a device likes, in a shape that PyTorch fixes. Here:
# two values a byte, the first in the high half, row by row.


@lowering("_convert_weight_to_int4pack")
def _pack_int4(b, w, inner_k_tiles):
    """(N, K / 2) uint8 -> int32 (N / 8, K / (16 * tiles), 32, tiles / 2), the same bytes."""
    n, k = w.shape[0], w.shape[1] * 2
    words = b.bitcast(b.reshape(w, (n * k // 8, 4)), "i32")
    return b.reshape(words, (n // 8, k // (inner_k_tiles * 16), 32, inner_k_tiles // 2))


@lowering("_convert_weight_to_int4pack_for_cpu")
def _pack_int4_bytes(b, w, inner_k_tiles):
    """(N, K) int32 of 0..15 -> (N, K / 2) uint8."""
    n, k = w.shape
    pairs = b.reshape(w, (n, k // 2, 2))
    high, low = (b.reshape(b.slice_dim(pairs, 2, i, i + 1), (n, k // 2)) for i in (0, 1))
    return (high * 16 + low).to("ui8")


def _int4_product(b: Builder, x: Value, packed: Value, group: int, pairs: Value) -> Value:
    """(M, K) @ the transpose of (w - 8) * scale + zero, where (scale, zero) = pairs[k // group, n]
    and `packed` holds w of (N, K)."""
    k, n = x.shape[1], pairs.shape[1]
    data = b.reshape(packed, (n, k // 2))
    fours = (
        b.unsqueeze(b.binary("shift_right_logical", data, b.constant(4, "ui8", data.shape)), 2),
        b.unsqueeze(data & 15, 2),
    )
    w = b.reshape(b.concatenate(fours, 2), (n, k)).to("f32") - 8.0
    scale, zero = (
        b.reshape(
            b.broadcast_in_dim(
                b.transpose(b.reshape(b.slice_dim(pairs, 2, i, i + 1), (k // group, n)), (1, 0)),
                (n, k // group, group),
                (0, 1),
            ),
            (n, k),
        ).to("f32")
        for i in (0, 1)
    )
    return dot(b, x.to("f32"), w * scale + zero, ((1,), (1,))).to(x.dtype)


@lowering("_weight_int4pack_mm")
def _weight_int4pack_mm(b, x, packed, group, pairs):
    words = b.reshape(packed, (math.prod(packed.shape),))
    return _int4_product(b, x, b.bitcast(words, "ui8"), group, pairs)


@lowering("_weight_int4pack_mm_for_cpu")
def _weight_int4pack_mm_bytes(b, x, packed, group, pairs):
    return _int4_product(b, x, packed, group, pairs)


# ---- fake quantization ---------------------------------------------------------------------------


def _channel(b: Builder, v: Operand, x: Value, axis: int | None, dtype: str) -> Value:
    """A scale or zero point, one number or one for each index of `axis`, as `dtype` and of the
    shape of `x`."""
    if not isinstance(v, Value) or v.ndim == 0:
        return b.lift(v, dtype, x.shape)
    if axis is None:
        return b.expand(b.reshape(v.to(dtype), (1,) * x.ndim), x.shape)
    return b.broadcast_in_dim(v.to(dtype), x.shape, (axis,))


def _quantize(b, x, scale, zero, low, high, axis):
    """(quantized value before clamping, as float; scale; zero point), all of the shape of `x`."""
    dtype = opmath(x.dtype)
    x = x.to(dtype)
    scale = b.lift(scale, "f32").to("f32")  # as on CPU, whatever the dtype of x
    floating = isinstance(zero, Value) and zero.dtype.startswith(("f", "bf"))
    inverse = _channel(b, 1.0 / scale, x, axis, dtype)
    z = _channel(b, zero, x, axis, dtype)
    scaled = x * inverse
    if floating:
        q = b.unary("round_nearest_even", scaled + z)
    else:
        q = b.unary("round_nearest_even", scaled) + z
    q = b.select(b.is_nan(q), float("-inf"), q)  # NaN becomes the least number
    return q, _channel(b, scale, x, axis, dtype), z


def _fake_quantize(b, x, scale, zero, low, high, axis=None):
    q, s, z = _quantize(b, x, scale, zero, low, high, axis)
    lo, hi = (b.constant(v, q.dtype, q.shape) for v in (low, high))
    out = ((b.clamp(lo, q, hi) - z).to("f32") * s.to("f32")).to(x.dtype)  # rounded as on CPU
    return out, b.compare(q, lo, "GE") & b.compare(q, hi, "LE")


@lowering("fake_quantize_per_tensor_affine_cachemask", runtime=("scale",))
def _per_tensor(b, x, scale, zero_point, quant_min, quant_max):
    """(x rounded to the grid scale * (q - zero_point), quant_min <= q <= quant_max; mask of the q
    that were in range)."""
    return _fake_quantize(b, x, scale, zero_point, quant_min, quant_max)


@lowering("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_qparams(b, x, scale, zero_point, enabled, quant_min, quant_max):
    out, mask = _fake_quantize(b, x, scale, zero_point, quant_min, quant_max)
    off = b.expand(b.reshape(enabled.eq(0), (1,) * x.ndim), x.shape)
    return b.select(off, x.to(out.dtype), out), off | mask


@lowering("fake_quantize_per_channel_affine_cachemask")
def _per_channel(b, x, scale, zero_point, axis, quant_min, quant_max):
    return _fake_quantize(b, x, scale, zero_point, quant_min, quant_max, axis)


def _learnable(b, x, scale, zero_point, *rest):
    """Fake quantization whose zero point is a float, rounded and brought into range."""
    *axis, low, high, _ = rest
    zero = _rounded(b, zero_point, low, high)
    return _fake_quantize(b, x, scale, zero, low, high, axis[0] if axis else None)[0]


def _rounded(b: Builder, zero: Value, low: int, high: int) -> Value:
    z = b.unary("round_nearest_even", zero)
    lo, hi = (b.constant(v, z.dtype, z.shape) for v in (low, high))
    return b.clamp(lo, z, hi).to("i64")


@lowering("_fake_quantize_learnable_per_tensor_affine")
def _learnable_tensor(b, x, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    return _learnable(b, x, scale, zero_point, quant_min, quant_max, grad_factor)


@lowering("_fake_quantize_learnable_per_channel_affine")
def _learnable_channel(b, x, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    return _learnable(b, x, scale, zero_point, axis, quant_min, quant_max, grad_factor)


def _learnable_backward(b, grad, x, scale, zero_point, axis, low, high, factor):
    """Gradients of the input (where in range), of the scale and of the zero point: derivatives of
    (clamp(round(x / scale) + zero) - zero) * scale with a straight-through round."""
    zero = _rounded(b, zero_point, low, high)
    q, s, z = _quantize(b, x, scale, zero, low, high, axis)
    lo, hi = (b.constant(v, q.dtype, q.shape) for v in (low, high))
    g, x = grad.to(q.dtype), x.to(q.dtype)
    below, above = q < lo, q > hi
    outside = below | above
    by_scale = b.select(below, lo - z, b.select(above, hi - z, q - z - x / s))
    dims = [d for d in range(x.ndim) if d != axis]

    def total(v: Value) -> Value:
        v = b.reduce_op("add", v * g, dims) * factor
        return v if axis is not None else b.reshape(v, scale.shape)

    by_zero = b.select(outside, -s, b.constant(0, s.dtype, s.shape))
    return b.select(outside, 0.0, g), total(by_scale), total(by_zero)


@lowering("_fake_quantize_learnable_per_tensor_affine_backward")
def _learnable_tensor_backward(
    b, grad, x, scale, zero_point, quant_min, quant_max, grad_factor=1.0
):
    return _learnable_backward(
        b, grad, x, scale, zero_point, None, quant_min, quant_max, grad_factor
    )


@lowering("_fake_quantize_learnable_per_channel_affine_backward")
def _learnable_channel_backward(
    b, grad, x, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0
):
    return _learnable_backward(
        b, grad, x, scale, zero_point, axis % x.ndim, quant_min, quant_max, grad_factor
    )
