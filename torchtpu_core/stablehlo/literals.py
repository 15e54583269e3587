"""StableHLO's literals and attributes as text."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtpu_core.stablehlo import types as T

Number = bool | int | float | complex


def ints(xs: Sequence[int]) -> str:
    """An array of 64-bit integers."""
    return f"array<i64: {', '.join(str(int(x)) for x in xs)}>" if len(xs) else "array<i64>"


def bools(xs: Sequence[bool]) -> str:
    """An array of booleans."""
    return (
        f"array<i1: {', '.join('true' if x else 'false' for x in xs)}>" if len(xs) else "array<i1>"
    )


def int_list(xs: Sequence[int]) -> str:
    """A list of integers inside an attribute."""
    return "[" + ", ".join(str(int(x)) for x in xs) + "]"


def layout(minor_to_major: Sequence[int]) -> str:
    """The order of a value's dimensions in memory, from the innermost out."""
    n = len(minor_to_major)
    return f"dense<{int_list(minor_to_major) if n else ''}> : tensor<{n}xindex>"


def scalar_text(value: Number, dtype: str) -> str:
    """An element's literal, floats as exact bit patterns."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype in T.INTS:
        lo, hi = T.int_limits(dtype)
        n = int(value.real if isinstance(value, complex) else value)
        if not lo <= n <= hi:
            n &= (1 << T.bits(dtype)) - 1
            if n > hi:
                n -= 1 << T.bits(dtype)
        return str(n)
    if dtype in T.COMPLEX:
        z, part = complex(value), T.real_of(dtype)
        return f"({scalar_text(z.real, part)}, {scalar_text(z.imag, part)})"
    x = float(value.real if isinstance(value, complex) else value)
    if dtype == "f64":
        return "0x" + struct.pack(">d", x).hex().upper()
    if dtype == "f32":
        return f"0x{_f32_bits(x):08X}"
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return f"0x{int(np.float16(x).view(np.uint16)):04X}"
    if dtype == "bf16":
        return f"0x{_bf16_bits(x):04X}"
    return repr(x)  # f8 kinds: decimal literals of representable values only


def _f32_bits(x: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(x).view(np.uint32))


def _bf16_bits(x: float) -> int:
    """Round to nearest even, through f32."""
    n = _f32_bits(x)
    if math.isnan(x):
        return (n >> 16) | 0x40
    return (n + 0x7FFF + ((n >> 16) & 1)) >> 16


def pairs(padding: Sequence[tuple[int, int]]) -> str:
    """Padding, low and high, of each dimension."""
    if not padding:
        return "dense<> : tensor<0x2xi64>"
    rows = ", ".join(f"[{lo}, {hi}]" for lo, hi in padding)
    return f"dense<[{rows}]> : tensor<{len(padding)}x2xi64>"


def nested(x: Any) -> str:
    """Nested lists of booleans, as a dense constant's elements."""
    if isinstance(x, list):
        return "[" + ", ".join(nested(v) for v in x) + "]"
    return "true" if x else "false"
