"""A graph for one bucket of sizes as one program, and what its calls need to know of it.

`Interface` says how tensors of open size enter and leave: their buffers have the rooms of the
bucket, one dimension a factor, in the order of the strides that PyTorch promises; the symbols
follow the graph's arguments as numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sympy
import torch

from torchtpu_core import precision
from torchtpu_core.compile.graph_program import CHECKS, GraphProgram, log, reads
from torchtpu_core.compile.padded.layout import Dim, Layouts, Padded, room
from torchtpu_core.compile.padded.random import OpenRandomState
from torchtpu_core.compile.padded.sizes import (
    SYMBOLIC,
    Inexact,
    Sizes,
    expression,
    host_function,
    is_open,
)
from torchtpu_core.compile.padded.walk import Walk
from torchtpu_core.lowering import graph, program
from torchtpu_core.lowering.dtypes import mlir, torch_dtype
from torchtpu_core.stablehlo import Builder, Module, TensorType, Value, strided

Bounds = dict[sympy.Symbol, tuple[int, int]]


class Port(NamedTuple):
    """A tensor of open size at the edge of a graph: its sizes, and its dimensions in memory,
    outermost first.
    """

    sizes: tuple[sympy.Basic, ...]
    order: tuple[int, ...]


class Interface:
    """What does not depend on the bucket.

    symbols: where each open symbol's value is found in a call, as (argument, dimension or None).
    limits: the symbols that are sizes, with the most they can be, or None.
    inputs: the ports of arguments.
    outputs: one entry a result: ("tensor", place among the program's results) | ("arg", argument) |
        ("view", argument, place among `views`) | ("number", expression) | ("none",).
    written: arguments of open size that the graph writes, with the place of the new contents.

    Raises Inexact for a graph whose symbols cannot be told from its arguments.
    """

    def __init__(self, owner: GraphProgram):
        self.owner = owner
        vals = [n.meta.get("val") for n in owner.placeholders]
        self.symbols: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for i, val in enumerate(vals):
            if isinstance(val, torch.Tensor):
                for d, n in enumerate(val.shape):
                    self._learn(n, (i, d))
        for i, val in enumerate(vals):
            self._learn(val, (i, None))
        self.random_blocks: Callable[[Sequence[int]], int] | None = None
        self._find_sizes()
        self.order = {s: i for i, s in enumerate(self._ages())}
        self.inputs = {i: p for i, v in enumerate(vals) if (p := self._port(v)) is not None}
        self._find_outputs()
        boundary = Layouts(None, _Unbounded()).boundary  # type: ignore[arg-type]
        ports = [*self.inputs.values(), *self.results]
        dims = [[boundary(n, self.order) for n in p.sizes] if p else None for p in ports]
        bases = tuple(
            tuple(f.size for d in p.order for f in ds[d]) if p else None
            for p, ds in zip(ports, dims)
        )
        shapes = tuple(p.sizes if p else None for p in self.results)
        numbers = tuple(o[1] for o in self.outputs if o[0] == "number")
        n = len(self.inputs)
        #: from the symbols' values: (bases of inputs, bases of results, their sizes, numbers,
        #: views as sizes, strides and how far beyond the argument's offset)
        self.host = host_function(
            list(self.symbols), (bases[:n], bases[n:], shapes, numbers, tuple(self.views))
        )

    def _learn(self, x: Any, source: tuple[int, int | None]) -> None:
        if isinstance(x, (torch.SymInt, torch.SymFloat)) and expression(x).is_Symbol:
            self.symbols.setdefault(expression(x), source)

    def _find_sizes(self) -> None:
        self.limits: dict[sympy.Symbol, int | None] = {}
        for node in self.owner.gm.graph.nodes:
            val = node.meta.get("val")
            for t in val if isinstance(val, (list, tuple)) else [val]:
                if not isinstance(t, torch.Tensor):
                    continue
                for n in t.shape:
                    if isinstance(n, torch.SymInt):
                        for s in expression(n).free_symbols:
                            self.limits.setdefault(s, _limit(n, s))
        unknown = self.limits.keys() - self.symbols.keys()
        if unknown:
            raise Inexact(f"sizes that no argument tells: {', '.join(map(str, unknown))}")

    def _ages(self) -> list[sympy.Symbol]:
        """The symbols, the oldest first: forward and backward graphs agree about that."""
        for node in self.owner.gm.graph.nodes:
            for x in _symbolic(node.meta.get("val")):
                env = x.node.shape_env
                known = getattr(env, "backed_var_to_val", None)
                known = env.var_to_val if known is None else known
                backed = [s for s in known if s in self.symbols]
                # Sizes that are data have no values there; their names count up.
                rest = sorted(
                    self.symbols.keys() - set(backed), key=lambda s: (len(s.name), s.name)
                )
                return backed + rest
        return list(self.symbols)

    def _port(self, val: Any) -> Port | None:
        if not isinstance(val, torch.Tensor) or not _symbolic(val):
            return None
        # The order of the strides is the same for all sizes; these are unlike and divide well.
        trial = {s: sympy.Integer(1 << 10 + 2 * i) for i, s in enumerate(self.symbols)}
        sizes, strides = (
            [expression(n).xreplace(trial) for n in ns] for ns in (val.shape, val.stride())
        )
        order = None
        if all(x.is_Integer for x in (*sizes, *strides)):
            order = strided.dense_order([int(n) for n in sizes], [int(n) for n in strides])
        return Port(tuple(map(expression, val.shape)), order or tuple(range(val.ndim)))

    def _find_outputs(self) -> None:
        owner = self.owner
        position = {n: i for i, n in enumerate(owner.placeholders)}
        nodes = next(n for n in owner.gm.graph.nodes if n.op == "output").args[0]
        self.outputs: list[tuple] = []
        self.views: list[tuple] = []
        self.nodes: list[torch.fx.Node] = []  # the program's results: returned tensors, once each
        for node in nodes:
            target = owner.copies.get(node, node)
            if node is None or not isinstance(node, torch.fx.Node):
                self.outputs.append(("none",) if node is None else ("number", sympy.sympify(node)))
            elif target in position:
                self.outputs.append(("arg", position[target]))
            elif (source := _viewed(owner, node, position)) is not None:
                self.outputs.append(("view", source, len(self.views)))
                self.views.append(_placed(node, owner.placeholders[source]))
            elif isinstance(node.meta.get("val"), torch.Tensor):
                if node not in self.nodes:
                    self.nodes.append(node)
                self.outputs.append(("tensor", self.nodes.index(node)))
            elif node.meta.get("val") is None:
                self.outputs.append(("none",))
            else:
                self.outputs.append(("number", expression(node.meta["val"])))
        #: results that become the contents of an argument, as (argument, place among the results)
        self.written: list[tuple[int, int]] = []
        for node, target in owner.copies.items():
            if position[target] in self.inputs:
                self.written.append((position[target], len(self.nodes)))
                self.nodes.append(node)
        self.results: list[Port | None] = [self._port(n.meta["val"]) for n in self.nodes]
        for i, place in self.written:
            self.results[place] = self.inputs[i]

    def rooms(self, bounds: Bounds) -> list[tuple[int, ...]]:
        """The dims of the inputs' buffers in a bucket."""
        layouts = Layouts(None, Sizes(None, bounds, {}))  # type: ignore[arg-type]
        dims = [[layouts.boundary(n, self.order) for n in p.sizes] for p in self.inputs.values()]
        return [
            tuple(f.room for d in p.order for f in ds[d])
            for p, ds in zip(self.inputs.values(), dims)
        ]

    def build(self, bounds: Bounds, args: Sequence[Any]) -> program.Plan:
        """The plan for a bucket. `args`: specs of the placeholders, the constants, the symbols.

        Sets `random_blocks`, a function of the symbols' values, for a graph that draws numbers.

        Raises Inexact, which names the op, where padding cannot be made exact.
        """
        owner = self.owner
        module = Module("graph", **precision.of_products())
        b = module.function("main", [], public=True)
        inputs = program.Inputs(b)
        bases: dict[int, Value] = {}
        walk = _Lowering(b, self, bounds, args, inputs, bases)
        walk.run([walk.argument(i, n) for i, n in enumerate(owner.placeholders)])
        plan = program.Plan()
        results: list[Value] = []
        for node, port in zip(self.nodes, self.results):
            value = walk.env[node]
            if port is None:
                program.new_output(b, plan, results, value, node.meta["val"])
            else:
                _leave(walk, plan, results, value, port)
        plan.returns = [("out", i) for i in range(len(results))]
        position = {n: i for i, n in enumerate(owner.placeholders)}
        targets = [
            (args[position[target]], walk.env[n])
            for n, target in owner.copies.items()
            if position[target] not in self.inputs
        ]
        program.write_all(b, plan, results, inputs, bases, targets)
        state = b.random
        if not state.blocks:
            b.random = None
        program.seal(b, module, plan, results, inputs)
        if state.blocks and self.random_blocks is None:
            self.random_blocks = host_function(list(self.symbols), state.total)
        log(plan)
        return plan


def aliases(owner: GraphProgram) -> list[tuple[int, int, tuple]]:
    """(place among the results, argument, (sizes, strides, offset)) of the results that are views
    of arguments. AOTAutograd makes the user's tensor anew from what such a result looks like.
    """
    position = {n: i for i, n in enumerate(owner.placeholders)}
    nodes = next(n for n in owner.gm.graph.nodes if n.op == "output").args[0]
    found = []
    for place, node in enumerate(nodes):
        if not isinstance(node, torch.fx.Node) or owner.copies.get(node, node) in position:
            continue
        source = _viewed(owner, node, position)
        if source is not None:
            found.append((place, source, _placed(node, owner.placeholders[source])))
    return found


def _viewed(
    owner: GraphProgram, node: torch.fx.Node, position: dict[torch.fx.Node, int]
) -> int | None:
    """The argument that a result is a view of, if the graph does not write it."""
    while node.target is operator.getitem or getattr(node.target, "is_view", False):
        node = node.args[0]
    if node not in position or node in owner.copies.values():
        return None
    val = node.meta["val"]
    on_device = isinstance(val, torch.Tensor) and val.device.type == "tpu"
    return position[node] if on_device else None


def _placed(node: torch.fx.Node, source: torch.fx.Node) -> tuple:
    """(sizes, strides, offset) of a view, the offset counted from that of its source."""
    val, base = node.meta["val"], source.meta["val"]
    offset = expression(val.storage_offset()) - expression(base.storage_offset())
    return tuple(map(expression, val.shape)), tuple(map(expression, val.stride())), offset


class _Unbounded:
    """In place of Sizes where only the structure of layouts is asked for."""

    def room(self, size: sympy.Basic) -> int:
        return int(size) if size.is_Integer else -1


def _leave(walk: Walk, plan: program.Plan, results: list[Value], x: Any, port: Port) -> None:
    """Adds a result of open size."""
    dims = [walk.layouts.boundary(n, walk.order) for n in port.sizes]
    v = walk.layouts.as_(walk.layouts.of(x), dims).value
    v = walk.b.transpose(v, port.order)
    v = walk.b.reshape(v, [f.room for d in port.order for f in dims[d]])
    results.append(v)
    strides = strided.contiguous_strides(v.shape)
    plan.outputs.append((torch_dtype(v.dtype), v.shape, v.shape, strides, -1))


class _Lowering(Walk):
    def __init__(
        self,
        b: Builder,
        interface: Interface,
        bounds: Bounds,
        args: Sequence[Any],
        inputs: program.Inputs,
        bases: dict[int, Value],
    ):
        owner = interface.owner
        first = len(args) - len(interface.symbols)

        def number(spec: program.TensorSpec) -> Value:
            return inputs.get(("host", spec.index, spec.dtype), TensorType(mlir(spec.dtype), ()))

        values = {s: (lambda x=args[first + i]: number(x)) for i, s in enumerate(interface.symbols)}
        super().__init__(b, owner.gm, Sizes(b, bounds, values))
        b.random = OpenRandomState(b, self.sizes)
        self.owner, self.interface, self.args = owner, interface, args
        self.inputs, self.bases, self.order = inputs, bases, interface.order

    def argument(self, i: int, node: torch.fx.Node) -> Any:
        """What a placeholder stands for; one that is only written or returned is not read."""
        x, val = self.args[i], node.meta.get("val")
        if not isinstance(x, program.TensorSpec):
            return expression(val) if isinstance(val, SYMBOLIC) else x
        port = self.interface.inputs.get(i)
        if port is None or not reads(self.owner, node):
            return self.owner.argument(self.b, self.inputs, self.bases, node, x)
        v = program.read(self.b, self.inputs, self.bases, x)
        dims: list[Dim] = [self.layouts.boundary(n, self.order) for n in port.sizes]
        v = self.b.reshape(v, [room(dims[d]) for d in port.order])
        v = self.b.transpose(v, [port.order.index(d) for d in range(len(dims))])
        return Padded(v, tuple(dims))

    def attribute(self, node: torch.fx.Node) -> Any:
        index = self.owner.constant_index.get(str(node.target))
        if index is None:
            return super().attribute(node)
        return program.read(self.b, self.inputs, self.bases, self.args[index])

    def call(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if node.target in CHECKS:
            return None
        if node not in self.owner.copies:
            return super().call(node, args, kwargs)
        src, sizes = args[1], self.shape(node)
        if isinstance(src, Value) and not any(map(is_open, sizes)):
            op = torch.ops.aten.copy.default
            return graph.lower_op(self.b, op, args, kwargs, self.expected(node))
        if not isinstance(src, (Padded, Value)):
            raise Inexact("a copy of a number")
        dims = self.layouts.common(sizes, [src])
        v = self.b.expand(self.layouts.aligned(src, dims), list(map(room, dims)))
        return self.result(node, v, dims)


def _symbolic(val: Any) -> list[Any]:
    """The open sizes and numbers of a node's value."""
    if isinstance(val, torch.Tensor):
        return [n for n in val.shape if isinstance(n, torch.SymInt)]
    if isinstance(val, (list, tuple)):
        return [x for v in val for x in _symbolic(v)]
    return [val] if isinstance(val, SYMBOLIC) else []


def _limit(n: torch.SymInt, symbol: sympy.Symbol) -> int | None:
    """The most that a symbol can be by its guards and by `mark_dynamic(max=)`."""
    upper = n.node.shape_env.bound_sympy(symbol).upper
    return int(upper) if upper.is_Integer and upper < 1 << 40 else None
