"""Dtype conversion, copies, fills, and tensors seen as other kinds of numbers."""

from __future__ import annotations

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.pointwise import like
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T

_NARROW = frozenset(("i8", "ui8", "i16", "ui16"))


def cast(b: Builder, x: Value, dtype: str) -> Value:
    """`x` as `dtype`. A float beyond a narrow integer's range wraps, as on CPU, not saturates."""
    if x.dtype in T.COMPLEX and dtype not in T.COMPLEX and dtype != "i1":
        x = b.real(x)
    if x.dtype in T.FLOATS and dtype in _NARROW:
        x = b.convert(x, "i32")
    return b.convert(x, dtype)


@lowering("_to_copy")
def _to_copy(b, x, *, dtype):
    return x if dtype is None else cast(b, x, mlir(dtype))


@lowering("prims::convert_element_type")
def _convert_element_type(b, x, dtype):
    return cast(b, x, mlir(dtype))


@lowering("copy")
def _copy(b, x, src, _non_blocking):
    return b.expand(cast(b, src, x.dtype), x.shape)


@lowering("fill.Scalar", "fill.Tensor", "prims::fill", runtime=("value",))
def _fill(b, x, value):
    return like(b, value, x)


@lowering("zero")
def _zero(b, x):
    return like(b, 0, x)


@lowering("masked_fill.Scalar", "masked_fill.Tensor", runtime=("value",))
def _masked_fill(b, x, mask, value):
    if mask.dtype != "i1":
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if isinstance(value, Value) and value.dtype in T.COMPLEX and x.dtype not in T.COMPLEX:
        raise RuntimeError(f"value cannot be converted to type {x.dtype} without overflow")
    return b.select(mask, b.lift(value, x.dtype), x)


@lowering("view_as_real_copy")
def _view_as_real(b, x):
    return b.concatenate([b.unsqueeze(b.real(x), -1), b.unsqueeze(b.imag(x), -1)], -1)


@lowering("view_as_complex_copy")
def _view_as_complex(b, x):
    parts = (b.slice_dim(x, -1, i, i + 1) for i in range(2))
    return b.complex(*(b.reshape(p, x.shape[:-1]) for p in parts))
