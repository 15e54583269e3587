"""torch.dtype <-> StableHLO element type."""

from __future__ import annotations

import torch

_TO_MLIR = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}
_TO_TORCH = {v: k for k, v in _TO_MLIR.items()}


def mlir(dtype: torch.dtype) -> str:
    """The element type of a torch dtype; NotImplementedError for dtypes XLA lacks."""
    try:
        return _TO_MLIR[dtype]
    except KeyError:
        raise NotImplementedError(f"dtype {dtype} has no StableHLO element type") from None


def torch_dtype(dtype: str) -> torch.dtype:
    """The inverse of `mlir`."""
    return _TO_TORCH[dtype]
