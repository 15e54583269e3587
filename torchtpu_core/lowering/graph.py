"""Lowers a functional FX graph of ATen ops, node by node, into one function; and a single op, by
whichever route it has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core import precision
from torchtpu_core.lowering import decompose, registry
from torchtpu_core.stablehlo import Builder, Value


def lower_op(
    b: Builder, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], expected: Any = None
) -> Any:
    """Emits one functional op. `expected`: meta tensors of the results, when known (their dtypes
    are then kept).
    """
    rule = registry.find(op)
    if rule is not None:
        out = registry.apply(rule, b, op, args, kwargs)
    else:
        out = decompose.lower(b, op, args, kwargs)
    return registry.conform(b, op, out, expected)


def lower_graph(b: Builder, gm: torch.fx.GraphModule, inputs: Sequence[Value]) -> Any:
    """Emits a whole graph; returns the output node's structure with Values in place of nodes."""
    return Interpreter(b, gm).run(inputs)


class Interpreter:
    """Walks a graph and emits its nodes in order. What a node that is no ATen op means, a subclass
    says.
    """

    #: gives a node's ops their place in the user's program, where that is asked for
    locate: Callable[[torch.fx.Node], str] | None = None

    def __init__(self, b: Builder, gm: torch.fx.GraphModule):
        self.b, self.gm = b, gm
        self.env: dict[torch.fx.Node, Any] = {}

    def run(self, inputs: Sequence[Any]) -> Any:
        """The output node's structure, with `inputs` for the placeholders."""
        feed = iter(inputs)
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = next(feed)
            elif node.op == "get_attr":
                self.env[node] = self.attribute(node)
            elif node.op == "output":
                return _read(self.env, node.args[0])
            else:
                self.env[node] = self._located(node)
            self.env[node] = _with_layout(self.env[node], self.expected(node))
        raise AssertionError("a graph has an output node")

    def attribute(self, node: torch.fx.Node) -> Any:
        """What a get_attr node stands for."""
        return _constant(self.b, getattr(self.gm, node.target))

    def expected(self, node: torch.fx.Node) -> Any:
        """Meta or fake tensors of a node's results, or None."""
        return node.meta.get("val")

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of a node that calls something."""
        if node.target is operator.getitem:
            return args[0][args[1]]
        if isinstance(node.target, OpOverload):
            values = _VALUES_ONLY.get(node.target)
            if values is not None and all(_takes(user, 0) for user in node.users):
                return [lower_op(self.b, values, args, kwargs)]
            out = lower_op(self.b, node.target, args, kwargs, self.expected(node))
            if any(isinstance(v, registry.Bounded) for v in pytree.tree_leaves(out)):
                raise NotImplementedError(
                    f"{node.target.name()}: the shape of the result depends on the data"
                )
            return out
        raise NotImplementedError(f"graph node {node.format_node()} is not an ATen op")

    def _located(self, node: torch.fx.Node) -> Any:
        """`call`, whose errors name the user's line."""
        args, kwargs = _read(self.env, node.args), _read(self.env, node.kwargs)
        where = node.meta.get("stack_trace")
        if self.locate is not None:
            self.b.location = self.locate(node)
        try:
            with precision.of_node(self.b, node):
                return self.call(node, args, kwargs)
        except NotImplementedError as e:
            if not where or where in str(e):
                raise
            raise NotImplementedError(f"{e}\n{where}") from e
        except Exception as e:
            if where and where not in getattr(e, "__notes__", ()):
                e.add_note(where)
            raise


#: ops that find positions beside values, and those that do without
_VALUES_ONLY = {
    torch.ops.aten.max_pool2d_with_indices.default: torch.ops.aten.max_pool2d.default,
    torch.ops.aten.max_pool3d_with_indices.default: torch.ops.aten.max_pool3d.default,
}


def _takes(user: torch.fx.Node, i: int) -> bool:
    """Whether a node takes the i-th result of its argument and no other."""
    return user.target is operator.getitem and user.args[1] == i


def _with_layout(x: Any, expected: Any) -> Any:
    """`x` marked with the contiguity that eager mode would see (a few gradients depend on it)."""
    if not isinstance(x, Value) or not isinstance(expected, torch.Tensor):
        return x
    row_major = expected.is_contiguous()
    if x.row_major == row_major:
        return x
    marked = Value(x.b, x.name, x.dtype, x.shape, x.weak)  # another node may share `x`
    marked.row_major, marked.origin = row_major, x.origin
    return marked


def _read(env: dict[torch.fx.Node, Any], x: Any) -> Any:
    # FX's immutable lists and dicts become plain ones: decompositions may edit what they are given.
    if isinstance(x, torch.fx.Node):
        return env[x]
    if isinstance(x, (list, tuple)):
        items = [_read(env, v) for v in x]
        return tuple(items) if isinstance(x, tuple) else items
    if isinstance(x, dict):
        return {k: _read(env, v) for k, v in x.items()}
    return x


def _constant(b: Builder, x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.device.type == "meta":
        raise NotImplementedError("a graph constant has no data (meta tensor)")
    x = x.detach().cpu()
    if x.dtype in (torch.bfloat16,) or (x.dtype.itemsize == 1 and x.dtype.is_floating_point):
        from torchtpu_core.lowering.dtypes import mlir

        return b.convert(b.array(x.float().numpy()), mlir(x.dtype))
    return b.array(x.numpy())
