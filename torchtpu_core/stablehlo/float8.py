"""Conversion to 8-bit floats with PyTorch's edges, where `stablehlo.convert` has others.

float8_e4m3fn saturates at its greatest number, infinity included (convert: NaN); NaN of float8_e5m2
has all bits of the mantissa set; float8_e8m0fnu takes the exponent of any number, whatever its
sign, rounded (convert: NaN for zero and negative numbers). Every source goes by way of float32.
"""

from __future__ import annotations

from collections.abc import Callable

from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.builder import Builder, Value

Convert = Callable[[Value, str], Value]  # stablehlo.convert


def to_float8(b: Builder, x: Value, dtype: str, convert: Convert) -> Value:
    """`x` as `dtype`, an 8-bit float."""
    x = convert(x, "f32")
    if dtype == "f8E4M3FN":
        most = T.finfo_max(dtype)
        low, high = (b.constant(v, x.dtype, x.shape) for v in (-most, most))
        return convert(b.select(b.is_nan(x), x, b.clamp(low, x, high)), dtype)
    if dtype == "f8E5M2":
        nan = (_shifted(b, b.bitcast(x, "ui32"), 24) | 0x7F).to("ui8")  # the sign and ones
        bits = b.bitcast(convert(x, dtype), "ui8")
        return b.bitcast(b.select(b.is_nan(x), nan, bits), dtype)
    return _exponent(b, x) if dtype == "f8E8M0FNU" else convert(x, dtype)


def _shifted(b: Builder, bits: Value, by: int) -> Value:
    return b.binary("shift_right_logical", bits, b.constant(by, bits.dtype, bits.shape))


def _exponent(b: Builder, x: Value) -> Value:
    """float32 -> f8E8M0FNU: the biased exponent; half of the way up rounds up, unless the number is
    subnormal."""
    bits = b.bitcast(x, "ui32")
    exponent = _shifted(b, bits, 23) & 0xFF
    mantissa = bits & 0x7FFFFF
    up = (mantissa > 0x400000) | (mantissa.eq(0x400000) & (exponent > 0))
    special = exponent.eq(0xFF)
    rounded = b.select(up & ~special, exponent + 1, exponent)
    return b.bitcast(rounded.to("ui8"), "f8E8M0FNU")
