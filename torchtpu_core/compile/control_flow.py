"""Graphs with more than ATen ops in them: higher-order operators as XLA's own control flow, and
sizes that the graph leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from torchtpu_core.lowering import graph
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.random_bits import random_blocks
from torchtpu_core.stablehlo import Builder, TensorType, Value

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Interpreter(graph.Interpreter):
    """Walks a graph whose symbols are bound to numbers."""

    def __init__(
        self,
        b: Builder,
        gm: torch.fx.GraphModule,
        symbols: dict[sympy.Symbol, sympy.Basic] | None = None,
    ):
        super().__init__(b, gm)
        self.symbols: dict[sympy.Symbol, sympy.Basic] = {} if symbols is None else symbols

    # ---- open sizes ------------------------------------------------------------------------------

    def bind(self, val: Any, sizes: Sequence[int], strides: Sequence[int]) -> None:
        """Learns the symbols of a placeholder's fake tensor from the call's sizes and strides."""
        if not isinstance(val, torch.Tensor):
            return
        for fake, actual in zip((*val.shape, *val.stride()), (*sizes, *strides)):
            self.bind_number(fake, actual)

    def bind_number(self, fake: Any, actual: Any) -> None:
        """Learns a symbol; expressions of several follow from the others."""
        if isinstance(fake, _SYMBOLIC) and fake.node.expr.is_symbol:
            self.symbols.setdefault(fake.node.expr, sympy.sympify(actual))

    def concrete(self, x: Any) -> Any:
        """A size or number with the symbols replaced."""
        if not isinstance(x, _SYMBOLIC):
            return x
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(x)]
        value = x.node.expr.xreplace(self.symbols)
        if value.free_symbols:
            raise NotImplementedError(
                f"a size that depends on data ({x}) is not known when a graph is compiled for tpu"
            )
        return kind(value)

    def expected(self, node: torch.fx.Node) -> Any:
        return pytree.tree_map_only(torch.Tensor, self._concrete_tensor, super().expected(node))

    def _concrete_tensor(self, t: torch.Tensor) -> torch.Tensor:
        if not any(isinstance(n, torch.SymInt) for n in (*t.shape, *t.stride())):
            return t
        sizes, strides = ([self.concrete(n) for n in ns] for ns in (t.shape, t.stride()))
        return torch.empty_strided(sizes, strides, dtype=t.dtype, device="meta")

    # ---- higher-order operators ------------------------------------------------------------------

    def attribute(self, node: torch.fx.Node) -> Any:
        value = getattr(self.gm, str(node.target))
        return value if isinstance(value, torch.nn.Module) else super().attribute(node)

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            handler = _HANDLERS.get(node.target.name())
            if handler is None:
                raise NotImplementedError(
                    f"the higher-order operator {node.target.name()} is not lowered to StableHLO"
                )
            return handler(self, node, *args, **kwargs)
        return super().call(node, args, kwargs)

    def inline(self, gm: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """The results of a subgraph, emitted here."""
        sub = Interpreter(self.b, gm, self.symbols)
        out = sub.run(args)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    def types(self, node: torch.fx.Node) -> list[TensorType]:
        """The types of a node's results."""
        tensors = self.expected(node)
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return [TensorType(mlir(t.dtype), tuple(t.shape)) for t in tensors]


def _cond(
    walk: Interpreter, node: torch.fx.Node, pred: Any, then: Any, other: Any, operands: Any = ()
) -> Any:
    if not isinstance(pred, Value):
        return walk.inline(then if pred else other, operands)
    b, types = walk.b, walk.types(node)

    def branch(gm: torch.fx.GraphModule) -> Callable[[], list[Value]]:
        return lambda: [_as_type(b, v, t) for v, t in zip(walk.inline(gm, operands), types)]

    return b.if_(b.reshape(pred, ()), branch(then), branch(other), types)


def _while_loop(
    walk: Interpreter, node: torch.fx.Node, cond: Any, body: Any, carried: Any, extra: Any = ()
) -> Any:
    b = walk.b
    state = [v if isinstance(v, Value) else b.constant(v, _number(v)) for v in carried]
    drawn = random_blocks(b)
    out = b.while_(
        state,
        lambda *s: b.reshape(walk.inline(cond, [*s, *extra])[0], ()),
        lambda *s: [_as_type(b, v, i.type) for v, i in zip(walk.inline(body, [*s, *extra]), state)],
    )
    if random_blocks(b) != drawn:
        raise NotImplementedError("random numbers in while_loop would repeat each round")
    return out


def _invoke_subgraph(
    walk: Interpreter, node: torch.fx.Node, gm: Any, name: Any, *operands: Any
) -> Any:
    return walk.inline(gm, operands)


def _number(x: Any) -> str:
    return {bool: "i1", int: "i64", float: "f32"}[type(x)]


def _as_type(b: Builder, v: Any, t: TensorType) -> Value:
    v = v if isinstance(v, Value) else b.constant(v, t.dtype, t.shape)
    return b.convert(v, t.dtype)


_HANDLERS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "invoke_subgraph": _invoke_subgraph,
}
