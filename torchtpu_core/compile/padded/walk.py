"""The walk over a graph whose tensors are padded, and the table of rules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core.compile import control_flow, partition
from torchtpu_core.compile.padded.layout import Dim, Layouts, Padded, room
from torchtpu_core.compile.padded.sizes import SYMBOLIC, Inexact, Sizes, expression, is_open
from torchtpu_core.lowering import graph
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Builder, Value

Rule = Callable[..., Any]

_RULES: dict[OpOverload, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers what ops ("view", "sum.dim_IntList") do with padded tensors.

    The function gets the walk, the node, and the op's arguments: tensors as Padded, or as Value
    where nothing is open; open numbers as SymPy expressions. It returns such tensors.
    """

    def register(fn: Rule) -> Rule:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if op in _RULES:
                raise ValueError(f"{name} has two rules")
            _RULES[op] = fn
        return fn

    return register


#: elementwise ops that PyTorch does not tag so
_ELEMENTWISE = """
    clone _to_copy detach alias lift_fresh lift_fresh_copy copy zeros_like ones_like full_like
    empty_like masked_fill.Scalar masked_fill.Tensor where.self where.Scalar where.ScalarOther
    where.ScalarSelf threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
    hardtanh_backward hardswish_backward hardsigmoid_backward elu_backward leaky_relu_backward
    softplus_backward logit_backward mish_backward log_sigmoid_backward native_dropout_backward
    softshrink_backward hardshrink_backward _conj real imag isclose nan_to_num
"""


def is_elementwise(op: Any) -> bool:
    """Whether an element of the result depends on nothing but the same one of each operand."""
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    name = op._opname + ("" if op._overloadname == "default" else f".{op._overloadname}")
    return torch.Tag.pointwise in op.tags or (
        op.namespace == "aten" and name in _ELEMENTWISE.split()
    )


def has_rule(op: Any) -> bool:
    """Whether a padded program can have the op."""
    return op in _RULES or is_elementwise(op)


class Walk(control_flow.Interpreter):
    """Emits a graph for the sizes of a bucket."""

    def __init__(self, b: Builder, gm: torch.fx.GraphModule, sizes: Sizes):
        super().__init__(b, gm)
        self.sizes = sizes
        self.layouts = Layouts(b, sizes)

    # ---- the walk --------------------------------------------------------------------------------

    def expected(self, node: torch.fx.Node) -> Any:
        """The fake tensors of a node where no size is open, else None."""
        val = node.meta.get("val")
        return None if _has_open(val) else val

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        val = node.meta.get("val")
        if isinstance(val, (bool, int, float, *SYMBOLIC)):
            return expression(val) if isinstance(val, SYMBOLIC) else val
        args, kwargs = pytree.tree_map(_number, (list(args), dict(kwargs)))
        if node.target is operator.getitem:
            return args[0][args[1]]
        leaves = pytree.tree_leaves((args, kwargs))
        if not _has_open(val) and not any(isinstance(x, (Padded, sympy.Basic)) for x in leaves):
            return super().call(node, args, kwargs)
        if node.target is partition.barrier:
            return self.barrier(args)
        fn = _RULES.get(node.target)
        try:
            if fn is not None:
                return fn(self, node, *args, **kwargs)
            if is_elementwise(node.target):
                return self.elementwise(node, args, kwargs)
        except Inexact as e:
            raise Inexact(f"{node.target}: {e}") from e
        raise Inexact(f"{node.target} has no rule for padding")

    def barrier(self, xs: Sequence[Any]) -> list[Any]:
        """`partition.barrier`, which moves nothing."""
        held = self.b.barrier([x.value if isinstance(x, Padded) else x for x in xs])
        return [Padded(v, x.dims) if isinstance(x, Padded) else v for v, x in zip(held, xs)]

    # ---- for rules -------------------------------------------------------------------------------

    def shape(self, node: torch.fx.Node, i: int | None = None) -> list[sympy.Basic]:
        """The sizes of a node's result, or of its `i`-th."""
        val = node.meta["val"]
        return [expression(n) for n in (val if i is None else val[i]).shape]

    def dims(self, x: Any) -> tuple[Dim, ...]:
        """The layout of any tensor."""
        return self.layouts.of(x).dims

    def lower(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The ordinary lowering of an op, on Values at the sizes of the bucket."""
        return graph.lower_op(self.b, op, args, kwargs)

    def result(self, node: torch.fx.Node, v: Value, dims: Sequence[Dim], i: int | None = None):
        """A result in the dtype that PyTorch says."""
        val = node.meta["val"]
        val = val if i is None else val[i]
        return self.layouts.result(self.b.convert(v, mlir(val.dtype)), dims)

    def elementwise(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An elementwise op: the padding of the result is that of the operands."""
        val = node.meta["val"]
        first = val[0] if isinstance(val, (list, tuple)) else val
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, (Padded, Value))]
        dims = self.layouts.common([expression(n) for n in first.shape], tensors)

        def operand(x: Any) -> Any:
            if isinstance(x, (Padded, Value)):
                return self.layouts.aligned(x, dims)
            return self.sizes.number(x)

        args, kwargs = pytree.tree_unflatten([operand(x) for x in leaves], spec)
        if not any(isinstance(x, Value) for x in pytree.tree_leaves(args)):
            raise Inexact("an elementwise op without tensors")
        out = self.lower(node.target, *args, **kwargs)
        if isinstance(out, (list, tuple)):
            return [self.result(node, v, dims, i) for i, v in enumerate(out)]
        out = self.b.expand(out, list(map(room, dims)))
        return self.result(node, out, dims)


def _number(x: Any) -> Any:
    """A closed expression as the number it is."""
    if not isinstance(x, sympy.Basic) or is_open(x):
        return x
    return int(x) if x.is_Integer else bool(x) if x.is_Boolean else float(x)


def _has_open(val: Any) -> bool:
    return any(
        isinstance(n, SYMBOLIC)
        for t in pytree.tree_leaves(val)
        for n in (t.shape if isinstance(t, torch.Tensor) else (t,))
    )
