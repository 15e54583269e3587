"""The `_foreach_*` operators: the per-tensor operator along the lists, all in one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torchtpu_core.lowering import graph
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_aten = torch.ops.aten


def _resolve(name: str) -> OpOverload:
    """ "add.Tensor" -> torch.ops.aten.add.Tensor."""
    op, _, overload = name.partition(".")
    return getattr(getattr(_aten, op), overload or "default")


def _map(b: Builder, op: OpOverload, *columns: Any, **kwargs: Any) -> list[Any]:
    """`op` on each row; a column that is not a list is the same in every row."""
    n = next(len(c) for c in columns if isinstance(c, (list, tuple)))
    rows = zip(*(c if isinstance(c, (list, tuple)) else [c] * n for c in columns))
    return [graph.lower_op(b, op, row, kwargs) for row in rows]


def _each(base: str) -> Callable[..., list[Value]]:
    op = _resolve(base)
    return lambda b, *columns: _map(b, op, *columns)


_UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p
    log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero clone copy"""
for _name in _UNARY.split():
    lowering(f"_foreach_{_name}")(_each(_name))

# foreach operator: (operator with a tensor, operator with a number)
_BINARY = {
    "mul": ("mul.Tensor", "mul.Scalar"),
    "div": ("div.Tensor", "div.Scalar"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min"),
    "clamp_max": ("clamp_max.Tensor", "clamp_max"),
    "maximum": ("clamp_min.Tensor", "clamp_min"),
    "minimum": ("clamp_max.Tensor", "clamp_max"),
}
for _name, (_tensor, _scalar) in _BINARY.items():
    lowering(f"_foreach_{_name}.List")(_each(_tensor))
    lowering(f"_foreach_{_name}.Scalar", runtime=("scalar",))(_each(_scalar))
    lowering(f"_foreach_{_name}.ScalarList", runtime=("scalars",))(_each(_scalar))
for _name in ("mul", "div"):
    lowering(f"_foreach_{_name}.Tensor")(_each(f"{_name}.Tensor"))

for _name in ("add", "sub"):
    _op = _resolve(f"{_name}.Tensor")
    _overloads = ("List", "Tensor") if _name == "add" else ("List",)
    lowering(*(f"_foreach_{_name}.{o}" for o in _overloads), runtime=("alpha",))(
        lambda b, xs, ys, *, alpha, _op=_op: _map(b, _op, xs, ys, alpha=alpha)
    )
    lowering(f"_foreach_{_name}.Scalar", runtime=("scalar",))(_each(f"{_name}.Scalar"))
    lowering(f"_foreach_{_name}.ScalarList", runtime=("scalars",))(_each(f"{_name}.Scalar"))

lowering("_foreach_pow.List")(_each("pow.Tensor_Tensor"))
lowering("_foreach_pow.Scalar", "_foreach_pow.ScalarList")(_each("pow.Tensor_Scalar"))
lowering("_foreach_pow.ScalarAndTensor", runtime=("self",))(_each("pow.Scalar"))

lowering("_foreach_lerp.List")(_each("lerp.Tensor"))
lowering("_foreach_lerp.Scalar", "_foreach_lerp.ScalarList", runtime=("weight",))(
    _each("lerp.Scalar")
)

lowering("_foreach_max")(_each("max"))
lowering("_foreach_mm")(_each("mm"))


# With the numbers in a (CPU) tensor, PyTorch unpacks it and calls the ScalarList overload.
for _name in ("addcmul", "addcdiv"):
    _op = _resolve(_name)

    @lowering(
        *(f"_foreach_{_name}.{o}" for o in ("Scalar", "ScalarList")), runtime=("value", "scalars")
    )
    def _addc(b, xs, t1s, t2s, values, _op=_op):
        values = values if isinstance(values, (list, tuple)) else [values] * len(xs)
        rows = zip(xs, t1s, t2s, values)
        return [graph.lower_op(b, _op, row[:3], {"value": row[3]}) for row in rows]


@lowering("_foreach_norm.Scalar")
def _norm(b, xs, ord, dtype):
    return _map(b, _aten.linalg_vector_norm.default, xs, ord, dtype=dtype)


@lowering("_foreach_powsum.Scalar")
def _powsum(b, xs, ord, dtype):
    powers = _map(b, _aten.pow.Tensor_Scalar, _map(b, _aten.abs.default, xs), ord)
    return _map(b, _aten.sum.default, powers, dtype=dtype)
