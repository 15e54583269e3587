"""Lowers a functional FX graph of ATen ops, node by node, into one function; and a single op, by whichever route it has."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchtpu_core.lowering import decompose, registry
from torchtpu_core.stablehlo import Builder, Value


def lower_op(b: Builder, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], expected: Any = None) -> Any:  # fmt: skip
    """Emits one functional op. `expected`: meta tensors of the results, when known (their dtypes are then kept)."""
    rule = registry.find(op)
    if rule is not None:
        out = registry.apply(rule, b, op, args, kwargs)
    else:
        out = decompose.lower(b, op, args, kwargs)
    return registry.conform(b, op, out, expected)


def lower_graph(b: Builder, gm: torch.fx.GraphModule, inputs: Sequence[Value]) -> Any:
    """Emits a whole graph; returns the output node's structure with Values in place of nodes."""
    env: dict[torch.fx.Node, Any] = {}
    feed = iter(inputs)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(feed)
        elif node.op == "get_attr":
            env[node] = _constant(b, getattr(gm, node.target))
        elif node.op == "output":
            return _read(env, node.args[0])
        elif node.target is operator.getitem:
            env[node] = _read(env, node.args[0])[node.args[1]]
        elif isinstance(node.target, OpOverload):
            args, kwargs = _read(env, node.args), _read(env, node.kwargs)
            try:
                env[node] = lower_op(b, node.target, args, kwargs, _expected(node))
            except NotImplementedError as e:
                where = node.meta.get("stack_trace")
                raise NotImplementedError(f"{e}\n{where}" if where else str(e)) from e
        else:
            raise NotImplementedError(f"graph node {node.format_node()} is not an ATen op")
    raise AssertionError("a graph has an output node")


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


def _expected(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def _constant(b: Builder, x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.device.type == "meta":
        raise NotImplementedError("a graph constant has no data (meta tensor)")
    x = x.detach().cpu()
    if x.dtype in (torch.bfloat16,) or x.dtype.itemsize == 1 and x.dtype.is_floating_point:
        from torchtpu_core.lowering.dtypes import mlir

        return b.convert(b.array(x.float().numpy()), mlir(x.dtype))
    return b.array(x.numpy())
