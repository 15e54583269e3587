"""Element types by their MLIR spelling, and ranked tensor types.

The spellings are the ones of the StableHLO specification ("Types"): `i1` is bool, `i64` signed,
`ui8` unsigned,
`complex<f32>` a pair of f32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: bytes per element
ITEMSIZE = {
    "i1": 1,
    "i8": 1,
    "ui8": 1,
    "i16": 2,
    "ui16": 2,
    "i32": 4,
    "ui32": 4,
    "i64": 8,
    "ui64": 8,
    "f8E4M3FN": 1,
    "f8E5M2": 1,
    "f8E4M3FNUZ": 1,
    "f8E5M2FNUZ": 1,
    "f8E8M0FNU": 1,
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
    "complex<f32>": 8,
    "complex<f64>": 16,
}
FLOATS = frozenset(k for k in ITEMSIZE if k.startswith(("f", "bf")))
COMPLEX = frozenset(("complex<f32>", "complex<f64>"))
SIGNED = frozenset(("i8", "i16", "i32", "i64"))
UNSIGNED = frozenset(("ui8", "ui16", "ui32", "ui64"))
INTS = SIGNED | UNSIGNED

_NUMPY = {
    "i1": np.bool_,
    "i8": np.int8,
    "ui8": np.uint8,
    "i16": np.int16,
    "ui16": np.uint16,
    "i32": np.int32,
    "ui32": np.uint32,
    "i64": np.int64,
    "ui64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}

#: (mantissa bits without the hidden one, largest finite, smallest normal)
_FINFO = {
    "f16": (10, 65504.0, 2.0**-14),
    "bf16": (7, 3.3895313892515355e38, 2.0**-126),
    "f32": (23, 3.4028234663852886e38, 2.0**-126),
    "f64": (52, 1.7976931348623157e308, 2.0**-1022),
    "f8E4M3FN": (3, 448.0, 2.0**-6),
    "f8E5M2": (2, 57344.0, 2.0**-14),
    "f8E4M3FNUZ": (3, 240.0, 2.0**-7),
    "f8E5M2FNUZ": (2, 57344.0, 2.0**-15),
}


class TensorType(NamedTuple):
    """A ranked tensor type: element type and static shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{d}x' for d in self.shape)}{self.dtype}>"


def is_float(dtype: str) -> bool:
    """Floats of any width."""
    return dtype in FLOATS


def is_complex(dtype: str) -> bool:
    """A pair of floats."""
    return dtype in COMPLEX


def is_int(dtype: str) -> bool:
    """Integers, bool excluded."""
    return dtype in INTS


def is_signed(dtype: str) -> bool:
    """Signed integers."""
    return dtype in SIGNED


def real_of(dtype: str) -> str:
    """The element type of a complex number's parts; any other type unchanged."""
    return dtype[8:-1] if dtype in COMPLEX else dtype


def complex_of(dtype: str) -> str:
    """The complex type with parts of `dtype` ("f32" or "f64")."""
    return f"complex<{dtype}>"


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy type with the same bits; raises KeyError for types NumPy lacks (bf16, f8)."""
    return np.dtype(_NUMPY[dtype])


def bits(dtype: str) -> int:
    """Bits that carry the value; 1 for bool."""
    return 1 if dtype == "i1" else 8 * ITEMSIZE[dtype]


def int_limits(dtype: str) -> tuple[int, int]:
    """(lowest, highest) value of an integer type or bool."""
    if dtype == "i1":
        return 0, 1
    n = bits(dtype)
    return (-(1 << (n - 1)), (1 << (n - 1)) - 1) if dtype in SIGNED else (0, (1 << n) - 1)


def finfo_max(dtype: str) -> float:
    """The largest finite value."""
    return _FINFO[dtype][1]


def finfo_tiny(dtype: str) -> float:
    """The smallest positive normal value."""
    return _FINFO[dtype][2]


def finfo_eps(dtype: str) -> float:
    """The gap between 1 and the next value."""
    return 2.0 ** -_FINFO[dtype][0]


def lowest(dtype: str) -> float | int:
    """The identity of max: -inf for floats (lowest finite for types without inf), lowest for ints,
    0 for bool.
    """
    if dtype in FLOATS:
        return -finfo_max(dtype) if dtype.startswith("f8E4M3") else float("-inf")
    return int_limits(dtype)[0]


def highest(dtype: str) -> float | int:
    """The identity of min."""
    if dtype in FLOATS:
        return finfo_max(dtype) if dtype.startswith("f8E4M3") else float("inf")
    return int_limits(dtype)[1]
