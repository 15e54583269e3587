"""One call of a functional graph as one program: what the dispatcher asks for when it meets the
graph with new shapes or views.

The counterpart of lowering/program.py for a graph: the same specs come in, the same plan goes out.
Sizes that the graph leaves open are those of the call, so that each set of them is a program of its
own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu_core import precision, programs
from torchtpu_core.compile import control_flow
from torchtpu_core.lowering import graph, program
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Builder, Module, TensorType, Value

_aten = torch.ops.aten

#: elements up to which a constant on the CPU is part of the program
_EMBEDDED = 16

#: assertions about sizes: they hold for those of the call, or Dynamo's guards had stopped it
CHECKS = frozenset(
    (
        _aten._assert_scalar.default,
        _aten.sym_constrain_range.default,
        _aten.sym_constrain_range_for_size.default,
    )
)


class GraphProgram:
    """A functional graph, from AOTAutograd or torch.export, ready to be lowered for any call of it.

    num_inputs: how many placeholders it has; has_open_sizes: whether some of them differ in size or
    number from call to call; constants: tensors that follow them as arguments;
    device: where it runs.
    """

    def __init__(self, gm: torch.fx.GraphModule, device: torch.device | None = None):
        self.gm = gm
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.num_inputs = len(self.placeholders)
        self.device = _device(nodes) if device is None else device
        self.has_open_sizes = any(_is_open(n.meta.get("val")) for n in self.placeholders)
        self.constants: list[torch.Tensor] = []
        self.constant_index: dict[str, int] = {}
        for name in dict.fromkeys(n.target for n in nodes if n.op == "get_attr"):
            value = getattr(gm, name)
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() > _EMBEDDED or value.device.type == "tpu":
                self.constant_index[name] = self.num_inputs + len(self.constants)
                self.constants.append(value)
        self.copies = {n: n.args[0] for n in nodes if n.target is _aten.copy_.default}
        for n, target in self.copies.items():
            if target not in self.placeholders:
                raise NotImplementedError(f"graph node {n.format_node()} writes to no argument")

    def build(
        self,
        args: Sequence[Any],
        annotate: Callable[[Module, Builder, program.Plan], None] | None = None,
        locate: Callable[[torch.fx.Node], str] | None = None,
    ) -> program.Plan:
        """The plan for one call. `args`: TensorSpecs and numbers, for the placeholders and then the
        constants. `annotate` as in program.seal, `locate` as in graph.Interpreter: for programs
        that are looked at, not for those that run.
        """
        module = Module("graph", **precision.of_products())
        b = module.function("main", [], public=True)
        inputs = program.Inputs(b)
        bases: dict[int, Value] = {}
        lowering = _Lowering(b, self, args, inputs, bases)
        lowering.locate = locate
        lowering.run([lowering.argument(n, x) for n, x in zip(self.placeholders, args)])
        b.location = ""
        plan = program.Plan()
        results: list[Value] = []
        self._returns(lowering, args, plan, results)
        position = {n: i for i, n in enumerate(self.placeholders)}
        targets = [
            (args[position[target]], lowering.env[n])
            for n, target in self.copies.items()
            if lowering.env[n] is not lowering.env[target]  # written as it is
        ]
        program.write_all(b, plan, results, inputs, bases, targets)
        program.seal(b, module, plan, results, inputs, annotate)
        log(plan)
        return plan

    def argument(
        self,
        b: Builder,
        inputs: program.Inputs,
        bases: dict[int, Value],
        node: torch.fx.Node,
        x: Any,
    ) -> Any:
        """What a placeholder stands for; one that is only written or returned is not read."""
        if not isinstance(x, program.TensorSpec):
            return x
        if not reads(self, node):
            return None
        if x.host:
            v = inputs.get(("host", x.index, x.dtype), TensorType(mlir(x.dtype), ()))
            v.weak = x.weak
            return v
        return program.read(b, inputs, bases, x)

    def _returns(
        self, lowering: _Lowering, args: Sequence[Any], plan: program.Plan, results: list[Value]
    ) -> None:
        """Fills in the plan's returns; a node that is returned twice is one tensor."""
        position = {n: i for i, n in enumerate(self.placeholders)}
        done: dict[torch.fx.Node, tuple] = {}
        output = next(n for n in self.gm.graph.nodes if n.op == "output")
        for node in output.args[0]:
            if not isinstance(node, torch.fx.Node):
                plan.returns.append(("none",) if node is None else ("value", node))
                continue
            target = self.copies.get(node, node)
            if target in position:
                plan.returns.append(("arg", position[target]))
                continue
            if node not in done:
                value = lowering.env[node]
                if value is None:
                    done[node] = ("none",)
                elif isinstance(value, Value):
                    done[node] = ("out", len(results))
                    program.new_output(lowering.b, plan, results, value, lowering.expected(node))
                else:
                    done[node] = ("value", value)
            plan.returns.append(done[node])


class _Lowering(control_flow.Interpreter):
    """The walk over a graph for one call: open sizes are bound to those of its arguments."""

    def __init__(
        self,
        b: Builder,
        owner: GraphProgram,
        args: Sequence[Any],
        inputs: program.Inputs,
        bases: dict[int, Value],
    ):
        super().__init__(b, owner.gm)
        self.owner, self.args, self.inputs, self.bases = owner, args, inputs, bases
        self.bind_call(owner.placeholders, args)

    def argument(self, node: torch.fx.Node, x: Any) -> Any:
        """What a placeholder stands for."""
        return self.owner.argument(self.b, self.inputs, self.bases, node, x)

    def attribute(self, node: torch.fx.Node) -> Any:
        index = self.owner.constant_index.get(str(node.target))
        if index is None:
            return super().attribute(node)
        return program.read(self.b, self.inputs, self.bases, self.args[index])

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if node.target in CHECKS:
            return None
        val = node.meta.get("val")
        if isinstance(val, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.concrete(val)
        if node in self.owner.copies and args[0] is None:
            return args[1]  # the target is not read; `write_all` converts
        if node in self.owner.copies:
            return graph.lower_op(self.b, _aten.copy.default, args, kwargs, self.expected(node))
        return super().call(node, args, kwargs)


def reads(owner: GraphProgram, node: torch.fx.Node) -> bool:
    """Whether a placeholder is used for more than being written or returned."""
    users = (u for u in node.users if u.op != "output")
    return not all(owner.copies.get(u) is node and u.args[1] is not node for u in users)


def log(plan: program.Plan) -> None:
    """One line for a program that was built, where they are logged."""
    if programs.logged():
        ops, n = plan.text.count(" = "), len(plan.inputs)
        shown = f"{'graph':<40} {ops:>5} ops  {n} inputs  {programs.write(plan.text)}"
        print(f"torchtpu program {shown}", file=sys.stderr)


def _is_open(val: Any) -> bool:
    sizes = val.shape if isinstance(val, torch.Tensor) else (val,)
    return any(isinstance(n, (torch.SymInt, torch.SymFloat)) for n in sizes)


def _device(nodes: Sequence[torch.fx.Node]) -> torch.device:
    """The device of a graph: that of its tensors which are not on the CPU."""
    for node in nodes:
        val = node.meta.get("val")
        for x in val if isinstance(val, (list, tuple)) else [val]:
            if isinstance(x, torch.Tensor) and x.device.type == "tpu":
                return x.device
    return torch.device("tpu", torch.accelerator.current_device_index())
