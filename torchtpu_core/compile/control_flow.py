"""Graphs with more than ATen ops in them: higher-order operators (one module a family in hops/),
and sizes that the graph leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from torchtpu_core.compile import hops, layers, outline, partition
from torchtpu_core.compile.hops import common
from torchtpu_core.lowering import graph
from torchtpu_core.lowering.program import TensorSpec
from torchtpu_core.stablehlo import Builder, Value

_aten = torch.ops.aten
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
        self.device = torch.device("tpu")
        #: the private functions of the program (outline.py)
        self.functions: dict[Any, Any] = {}

    # ---- open sizes ------------------------------------------------------------------------------

    def bind_call(self, placeholders: Sequence[torch.fx.Node], args: Sequence[Any]) -> None:
        """Learns the symbols of a call from its arguments: tensors, their specs, or numbers."""
        for node, x in zip(placeholders, args):
            val = node.meta.get("val")
            if isinstance(x, torch.Tensor):
                self.bind(val, x.shape, x.stride())
            elif isinstance(x, TensorSpec):
                self.bind(val, x.sizes, x.strides)
            else:
                self.bind_number(val, x)

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

    def run(self, inputs: Sequence[Any]) -> Any:
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        for node, x in zip(placeholders, inputs):
            val = node.meta.get("val")
            if isinstance(x, Value) and isinstance(val, torch.Tensor):
                self._rebind(val.shape, x.shape)
        return super().run(inputs)

    def _rebind(self, fakes: Sequence[Any], actual: Sequence[int]) -> None:
        """A subgraph has symbols of its own, and may be called with several sizes."""
        for fake, n in zip(fakes, actual):
            if isinstance(fake, torch.SymInt) and fake.node.expr.is_symbol:
                self.symbols[fake.node.expr] = sympy.Integer(n)

    # ---- higher-order operators ------------------------------------------------------------------

    def attribute(self, node: torch.fx.Node) -> Any:
        value = getattr(self.gm, str(node.target))
        return value if isinstance(value, torch.nn.Module) else super().attribute(node)

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if node.target is _aten._local_scalar_dense.default:
            return args[0]  # in a loop's body a number stays a value
        if node.target is _aten.select.int and isinstance(args[2], Value):
            return common.select(self.b, *args)
        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
            return None  # an assertion, about what guards or torch.export have settled
        val = node.meta.get("val")
        if isinstance(val, (bool, int, float, *_SYMBOLIC)):
            return self.concrete(val)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return hops.handler(node.target.name())(self, node, *args, **kwargs)
        if node.target is layers.repeated:
            return outline.call(self, args[0], "layer", args[1:])
        if node.target is partition.barrier:
            return self.b.barrier(args)
        return super().call(node, args, kwargs)

    def inline(self, gm: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        """The results of a subgraph, emitted here."""
        out = self.inside(self.b, gm).run(args)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    def inside(self, b: Builder, gm: torch.fx.GraphModule) -> Interpreter:
        """A walk over a subgraph, which is emitted by `b`."""
        walk = Interpreter(b, gm, dict(self.symbols))
        walk.device, walk.functions = self.device, self.functions
        return walk
