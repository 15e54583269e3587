"""Operators that have no lowering, or results whose size is data, in the middle of a graph: the
graph is cut there, what lies before and after becomes programs of their own, and PyTorch runs the
operator itself on the device's tensors, as it does in eager mode (custom operators written in
Python, operators of the host table, the counted CPU fallback where enabled).

Under `fullgraph=True` that goes without saying only for operators that eager mode runs too; for the
others the error is raised while the graph is compiled.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from torchtpu_core.compile import hops, pieces
from torchtpu_core.lowering import decompose, program, registry

_aten = torch.ops.aten

#: reads a number of a tensor, which only the call knows
_READS = frozenset((_aten._local_scalar_dense.default, _aten.item.default))

Runner = Callable[[list[Any]], Any]


class NotLowered(UnsupportedOperatorException, NotImplementedError):
    """An operator without a lowering; Dynamo takes it for what it is and names the operator."""


def refusal(node: Node) -> str | None:
    """Why a node cannot be part of a program, as far as its operator tells; None if it can."""
    op = node.target
    if node.op != "call_function":
        return None
    if isinstance(op, HigherOrderOperator):
        return hops.refusal(op.name())
    if not isinstance(op, OpOverload) or op is _aten.copy_.default:
        return None
    if op in _READS:
        return f"{op.name()} reads a number of a tensor"
    val = node.meta.get("val")
    if isinstance(val, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return None
    if _size_is_data(node, op):
        return f"{op.name()}: the size of its result is data"
    if not op._schema.returns or registry.find(op) is not None or decompose.find(op) is not None:
        return None
    return f"{op.name()} is not lowered to StableHLO and has no decomposition"


def _size_is_data(node: Node, op: OpOverload) -> bool:
    """Whether a result has a size that no input has."""
    if torch.Tag.dynamic_output_shape not in op.tags:
        return False
    known = [n.meta.get("val") for n in node.all_input_nodes]
    return bool(_unbacked(node.meta.get("val")) - _unbacked(known))


def _unbacked(vals: Any) -> set[Any]:
    """The symbols that stand for data, in the sizes of tensors or in numbers."""
    leaves = [x for x in pytree.tree_leaves(vals) if x is not None]
    return set().union(*map(free_unbacked_symbols, leaves))


def runs_eagerly(op: Any) -> bool:
    """Whether eager mode has a way to run an operator on the device."""
    if isinstance(op, HigherOrderOperator):
        return True
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "PrivateUse1"):
        return True
    kind, _, _ = program.route(op._schema.name, op._schema.overload_name)
    return kind != program.UNSUPPORTED


def check(gm: GraphModule, whole: bool) -> set[Any]:
    """The operators of a graph at which to cut it. `whole`: the user wants no graph breaks; then an
    operator that eager mode cannot run either raises NotLowered, with its line.
    """
    found = set()
    for node in gm.graph.nodes:
        why = refusal(node)
        if why is None:
            continue
        if whole and not runs_eagerly(node.target):
            error = NotLowered(node.target)
            error.args = (f"{why}\n{node.meta.get('stack_trace') or ''}".rstrip(),)
            raise error
        found.add(node.target)
    return found


def runner(gm: GraphModule, cut: set[Any], make: Callable[[GraphModule], Runner]) -> Runner:
    """Runs a graph cut at the operators `cut`, as `make` makes a runner of each part."""
    for op in cut:
        _note(op)
    nodes = _with_elements(gm)
    steps: list[Callable[[dict[Node, Any]], None]] = []
    part: list[Node] = []
    (results,) = next(n for n in gm.graph.nodes if n.op == "output").args

    def close() -> None:
        if part:
            steps.append(_Part(gm, list(part), make))
        part.clear()

    for node in nodes:
        eager = node.target in cut or any(
            n.target in cut for n in node.all_input_nodes if node.target is operator.getitem
        )
        if eager:
            close()
            steps.append(_Eager(gm, node))
        else:
            part.append(node)
    close()
    placeholders = gm.graph.find_nodes(op="placeholder")
    dying = _last_uses(steps, results)

    def run(args: list[Any]) -> list[Any]:
        env = dict(zip(placeholders, args, strict=True))
        args.clear()
        for step, dead in zip(steps, dying):
            step(env)
            for n in dead:
                env.pop(n, None)
        return [env[n] if isinstance(n, Node) else n for n in results]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _with_elements(gm: GraphModule) -> list[Node]:
    """What a graph calls, in order, the elements of a tuple right after it: the tuple itself cannot
    be handed from one part to another.
    """
    ordered: list[Node] = []

    def add(node: Node) -> None:
        ordered.append(node)
        for user in node.users:
            if user.target is operator.getitem:
                add(user)

    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            add(node)
    return ordered


class _Eager:
    """A node that PyTorch runs."""

    def __init__(self, gm: GraphModule, node: Node):
        self.gm, self.node, self.reads = gm, node, list(node.all_input_nodes)

    def __call__(self, env: dict[Node, Any]) -> None:
        def value(n: Node) -> Any:
            return getattr(self.gm, str(n.target)) if n.op == "get_attr" else env[n]

        node = self.node
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
        assert callable(node.target)  # a call_function
        env[node] = node.target(*args, **kwargs)


class _Part:
    """Nodes that are one program."""

    def __init__(self, gm: GraphModule, nodes: list[Node], make: Callable[[GraphModule], Runner]):
        inside = set(nodes)
        reads = pieces.outside(nodes)
        attributes = [n for n in reads if n.op == "get_attr"]
        self.reads = [n for n in reads if n.op != "get_attr"]
        self.results = [
            n
            for n in nodes
            if any(u not in inside for u in n.users) or n.target is _aten.copy_.default
        ]
        self.run = make(pieces.extract(gm, [*attributes, *nodes], self.results))

    def __call__(self, env: dict[Node, Any]) -> None:
        env.update(zip(self.results, self.run([env[n] for n in self.reads]), strict=True))


def _last_uses(steps: Sequence[Any], results: Sequence[Any]) -> list[list[Node]]:
    """For each step, the values that nothing after it needs."""
    needed = {n for n in results if isinstance(n, Node)}
    dying: list[list[Node]] = []
    for step in reversed(steps):
        dying.append([n for n in step.reads if n not in needed])
        needed.update(step.reads)
    return dying[::-1]


_noted: set[str] = set()


def _note(op: Any) -> None:
    name = op.name()
    if name in _noted:
        return
    _noted.add(name)
    lowered = isinstance(op, OpOverload) and registry.find(op) is not None
    why = "has results whose size is data" if lowered else "is not lowered to StableHLO"
    warnings.warn(
        f"torch.compile on tpu: {name} {why}; the graph is cut there, and the operator runs by "
        "itself",
        stacklevel=2,
    )
