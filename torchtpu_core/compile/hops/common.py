"""What the handlers of higher-order operators share: values of given types, and which subgraphs
draw random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Builder, TensorType, Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


def as_value(b: Builder, x: Any) -> Value:
    """A tensor's Value, or a number as a 0-d one."""
    if isinstance(x, Value):
        return x
    return b.constant(x, {bool: "i1", int: "i64", float: "f32"}[type(x)])


def as_type(b: Builder, v: Any, t: TensorType) -> Value:
    """`v`, a Value or a number, as a Value of type `t`."""
    return b.convert(v, t.dtype) if isinstance(v, Value) else b.constant(v, t.dtype, t.shape)


def draws(*subgraphs: Any) -> bool:
    """Whether some op of the subgraphs, or of theirs, draws random numbers."""
    for gm in subgraphs:
        for node in gm.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                return True
            if node.op == "get_attr":
                inner = getattr(gm, str(node.target))
                if isinstance(inner, torch.fx.GraphModule) and draws(inner):
                    return True
    return False


def result_types(walk: Interpreter, gm: torch.fx.GraphModule) -> list[TensorType | None]:
    """The types of a subgraph's results; None for those that are None."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    outs = output.args[0]
    types: list[TensorType | None] = []
    for x in outs if isinstance(outs, (list, tuple)) else [outs]:
        val = x.meta["val"] if isinstance(x, torch.fx.Node) else x
        if isinstance(val, torch.Tensor):
            shape = tuple(walk.concrete(n) for n in val.shape)
            types.append(TensorType(mlir(val.dtype), shape))
        else:
            types.append(None if val is None else TensorType(number(val), ()))
    return types


def number(x: Any) -> str:
    """The element type of a number."""
    kinds = ((bool, "i1"), (torch.SymBool, "i1"), (int, "i64"), (torch.SymInt, "i64"))
    return next((t for kind, t in kinds if isinstance(x, kind)), "f32")


def select(b: Builder, x: Value, dim: int, at: Value) -> Value:
    """x.select(dim, at) for a 0-d integer `at` that is known only when the program runs."""
    dim = dim % x.ndim
    at = b.select(at < 0, at + x.shape[dim], at)
    front = b.transpose(x, [dim, *(d for d in range(x.ndim) if d != dim)])
    return first_slice(b, front, at)


def first_slice(b: Builder, x: Value, at: Value) -> Value:
    """x[at] for a 0-d integer `at`."""
    zero = b.constant(0, at.dtype)
    starts: Sequence[Value] = [at, *[zero] * (x.ndim - 1)]
    return b.reshape(b.dynamic_slice(x, starts, (1, *x.shape[1:])), x.shape[1:])
