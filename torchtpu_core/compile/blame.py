"""Which operator of a graph the compiler does not take.

The compiler's errors speak of its own instructions. When a graph fails to compile, each of its
operators is compiled by itself, as a program of one; the first that fails is the one, and its node
knows the user's line. Operators that look alike are tried once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from torchtpu_core import _C, plugin, programs
from torchtpu_core.compile import layers, pieces
from torchtpu_core.compile.control_flow import Interpreter
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.program import Plan
from torchtpu_core.lowering.random_bits import random_input
from torchtpu_core.stablehlo import Module, TensorType, Value

Compile = Callable[[str], Any]


def explain(
    error: BaseException,
    gm: GraphModule,
    placeholders: Sequence[Node],
    args: Sequence[Any],
    plan: Plan,
) -> None:
    """Adds to an error of the compiler the operator, its line and the file of the program."""
    if programs.logged():
        error.add_note(f"the program: {programs.write(plan.text)}")
    else:
        error.add_note("TORCHTPU_LOG=programs writes the program to a file")
    try:
        client = _C.pjrt.load_plugin(str(plugin.find().path)).create_client()
        node = culprit(gm, placeholders, args, client.compile)
    except Exception:  # the error itself is what matters
        return
    if node is not None:
        where = node.meta.get("stack_trace") or ""
        error.add_note(f"the operator that does not compile: {node.target}\n{where}")


def culprit(
    gm: GraphModule, placeholders: Sequence[Node], args: Sequence[Any], compile_: Compile
) -> Node | None:
    """The first node that `compile_` does not take by itself; None if it takes each."""
    walk = Interpreter(Module().function("main", []), gm)
    walk.bind_call(placeholders, args)
    return _first(gm, walk, compile_, set())


def _first(
    gm: GraphModule, walk: Interpreter, compile_: Compile, seen: set[Hashable]
) -> Node | None:
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if node.target is layers.repeated:
            found = _first(getattr(gm, str(node.args[0].target)), walk, compile_, seen)
            if found is not None:
                return found
            continue
        look = layers.look(node)
        if look in seen or look is node:
            continue
        seen.add(look)
        text = _alone(gm, node, walk)
        try:
            if text is not None:
                compile_(text)
        except _C.PjrtError:
            return node
    return None


def _alone(gm: GraphModule, node: Node, walk: Interpreter) -> str | None:
    """The program of one node; None for one that is no program by itself."""
    attributes = [n for n in node.all_input_nodes if n.op == "get_attr"]
    sub = pieces.extract(gm, [*attributes, node], [node])
    module = Module("one")
    b = module.function("main", [], public=True)
    inputs: list[Any] = []
    for n in sub.graph.find_nodes(op="placeholder"):
        val = n.meta.get("val")

        def argument(t: Any) -> Any:
            if not isinstance(t, torch.Tensor):
                return walk.concrete(t)
            return b.add_arg(TensorType(mlir(t.dtype), tuple(walk.concrete(s) for s in t.shape)))

        inputs.append(pytree.tree_map(argument, val))
    try:
        out = Interpreter(b, sub, dict(walk.symbols)).run(inputs)
    except Exception:
        return None
    random_input(b)
    b.finish([v for v in pytree.tree_leaves(out) if isinstance(v, Value)])
    return str(module)
