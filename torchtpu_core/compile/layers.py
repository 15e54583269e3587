"""Repeated layers: runs of identical pieces in a graph, such as the blocks of a transformer, become
calls of one subgraph, which is then lowered once (outline.py).

Nobody marks the layers. Two pieces are identical if they hold the same operators in the same order,
with the same arguments, on tensors of the same types, wired alike; what they read from outside
(their weights, the previous layer's result) may differ. Runs are found as periods: where a node
looks like the one p places further on, for p nodes in a row, two neighbours of length p look alike.
Candidates for p are the distances between nodes that look alike; where each layer begins is then
chosen so that few values cross from one to the next.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchtpu_core import precision
from torchtpu_core.compile.pieces import extract, outside

_aten = torch.ops.aten

#: nodes from which a piece is worth a function
_SMALLEST = 8
#: distances that are tried in one stretch of a graph
_TRIED = 8


def repeated(gm: torch.fx.GraphModule, *inputs: Any) -> Any:
    """A node of this target calls the subgraph `gm`, as others with the same one do."""
    return gm(*inputs)


@dataclass(frozen=True)
class _Run:
    """`count` identical pieces of `period` nodes from `start` on."""

    start: int
    period: int
    count: int

    @property
    def saved(self) -> int:
        return self.period * (self.count - 1)


def share(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm` itself, its repeated layers replaced by calls of subgraphs."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    tokens = _tokens(nodes)
    stretches = [(0, len(nodes))]
    found = False
    while stretches:
        low, high = stretches.pop()
        run = _longest_run(nodes, tokens, low, high)
        if run is None:
            continue
        stretches += [(low, run.start), (run.start + run.period * run.count, high)]
        pieces = [
            nodes[run.start + i * run.period : run.start + (i + 1) * run.period]
            for i in range(run.count)
        ]
        _replace(gm, pieces)
        found = True
    if found:
        gm.recompile()
    return gm


# ---- what makes nodes alike ----------------------------------------------------------------------


def _tokens(nodes: Sequence[Node]) -> list[int]:
    """A number for each node: equal ones have equal targets, numbers and types."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(look(n), len(known)) for n in nodes]


def look(node: Node) -> Hashable:
    """Equal for nodes with equal targets, numbers and types; a node like no other is itself."""
    val = node.meta.get("val")
    leaves = val if isinstance(val, (list, tuple)) else [val]
    hops = isinstance(node.target, torch._ops.HigherOrderOperator)
    if node.target is _aten.copy_.default or not (
        hops or all(x is None or type(x) is int or isinstance(x, torch.Tensor) for x in leaves)
    ):
        return node  # a write, or a number that is known only at the call: like no other
    return node.target, _frozen((node.args, node.kwargs), _type), _type(node), precision.mark(node)


def _type(node: Node) -> Hashable:
    """What a node gives: types of its tensors. Frozen once, since every user of a node asks."""
    if "val" not in node.meta:
        return node.op
    val, frozen = node.meta.get("torchtpu_type", (None, None))
    if val is not node.meta["val"]:
        val = node.meta["val"]
        frozen = _Hashed(_frozen(val, None))
        node.meta["torchtpu_type"] = val, frozen
    return frozen


class _Hashed:
    """A structure that is hashed once and compared by identity first."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Hashable):
        self.value, self.hash = value, hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Hashed) and self.hash == other.hash and self.value == other.value
        )


def _frozen(x: Any, of_node: Callable[[Node], Hashable] | None) -> Hashable:
    """A structure of arguments or of fake tensors as something hashable."""
    if isinstance(x, Node):
        assert of_node is not None
        return Node, of_node(x)
    if isinstance(x, (list, tuple)):
        return tuple(_frozen(v, of_node) for v in x)
    if isinstance(x, dict):
        return tuple((k, _frozen(v, of_node)) for k, v in x.items())
    if isinstance(x, slice):
        return tuple(_frozen(v, of_node) for v in (x.start, x.stop, x.step))
    if isinstance(x, torch.Tensor):
        sizes = tuple(n if type(n) is int else str(n) for n in (*x.shape, *x.stride()))
        return x.dtype, sizes, x.device.type
    if x is None or type(x) in (int, str, torch.dtype, torch.device):
        return x
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    return type(x), repr(x)


def structure(gm: torch.fx.GraphModule) -> Hashable:
    """Equal for graphs that compute the same: operators, arguments, types and wiring."""
    index = {n: i for i, n in enumerate(gm.graph.nodes)}
    return tuple(
        (
            n.op,
            _attribute(gm, n) if n.op == "get_attr" else "" if n.op == "placeholder" else n.target,
            _frozen((n.args, n.kwargs), index.__getitem__),
            _type(n),
            precision.mark(n),
        )
        for n in gm.graph.nodes
    )


def _attribute(gm: torch.fx.GraphModule, node: Node) -> Hashable:
    value = getattr(gm, str(node.target))
    return structure(value) if isinstance(value, torch.fx.GraphModule) else id(value)


def _wiring(piece: Sequence[Node]) -> Hashable:
    """How the nodes of a piece are connected, and the types of what they read from outside."""
    inside = {n: i for i, n in enumerate(piece)}
    inputs = {n: i for i, n in enumerate(outside(piece))}

    def place(n: Node) -> Hashable:
        return ("inside", inside[n]) if n in inside else ("outside", inputs[n], _type(n))

    return tuple(_frozen((n.args, n.kwargs), place) for n in piece)


# ---- runs ----------------------------------------------------------------------------------------


def _longest_run(nodes: Sequence[Node], tokens: Sequence[int], low: int, high: int) -> _Run | None:
    """The run in nodes[low:high] that saves most nodes, or None."""
    best: _Run | None = None
    for period in _periods(tokens, low, high):
        for start, stop in _stretches(tokens, low, high, period):
            # Neighbours look alike from `start` to `stop`, so pieces can end `period` later.
            if best is not None and stop - start < best.saved:
                continue
            run = _aligned(nodes, start, stop + period, period)
            if run is not None and (best is None or run.saved > best.saved):
                best = run
    return best


def _periods(tokens: Sequence[int], low: int, high: int) -> list[int]:
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for i in range(low, high):
        t = tokens[i]
        if t in last and i - last[t] >= _SMALLEST:
            gaps[i - last[t]] += 1
        last[t] = i
    return sorted(p for p, _ in gaps.most_common(_TRIED))


def _stretches(
    tokens: Sequence[int], low: int, high: int, period: int
) -> Iterator[tuple[int, int]]:
    """Maximal ranges, of at least `period` nodes, that look like what follows `period` later."""
    start = low
    for i in range(low, high - period + 1):
        if i < high - period and tokens[i] == tokens[i + period]:
            continue
        if i - start >= period:
            yield start, i
        start = i + 1


def _aligned(nodes: Sequence[Node], low: int, high: int, period: int) -> _Run | None:
    """The run of pieces wired alike in nodes[low:high], cut where fewest values cross."""
    count = (high - low) // period
    slack = min(period, high - low - count * period + 1)
    crossing = _crossings(nodes, low, high)
    at = min(range(low, low + slack), key=lambda i: crossing[i + period - low])
    best: _Run | None = None
    first, wiring = at, None
    for start in range(at, high - period + 1, period):
        here = _wiring(nodes[start : start + period])
        if here != wiring:
            first, wiring = start, here
        run = _Run(first, period, (start - first) // period + 1)
        if run.count > 1 and (best is None or run.saved > best.saved):
            best = run
    return best


def _crossings(nodes: Sequence[Node], low: int, high: int) -> list[int]:
    """For each place in nodes[low:high], how many of their values are made before, used after."""
    index = {n: i for i, n in enumerate(nodes[low:high])}
    steps = [0] * (high - low + 1)
    for n, i in index.items():
        last = max((index.get(u, high - low) for u in n.users), default=i)
        steps[i + 1] += 1
        if last + 1 <= high - low:
            steps[last + 1] -= 1
    total, out = 0, []
    for s in steps:
        total += s
        out.append(total)
    return out


# ---- rewriting -----------------------------------------------------------------------------------


def _replace(gm: torch.fx.GraphModule, pieces: Sequence[Sequence[Node]]) -> None:
    """Makes a subgraph of the first piece, and a call of it of each."""
    period = len(pieces[0])
    results = sorted({i for piece in pieces for i in range(period) if _leaves(piece, i)})
    shared = extract(gm, pieces[0], [pieces[0][i] for i in results])
    name = next(f"layer_{i}" for i in range(len(gm.graph.nodes)) if not hasattr(gm, f"layer_{i}"))
    gm.add_submodule(name, shared)
    for piece in pieces:
        inputs = outside(piece)
        with gm.graph.inserting_before(piece[-1]):
            call = gm.graph.call_function(repeated, (gm.graph.get_attr(name), *inputs))
            call.meta["val"] = tuple(piece[i].meta.get("val") for i in results)
            call.meta["stack_trace"] = piece[0].meta.get("stack_trace")
            for j, i in enumerate(results):
                taken = gm.graph.call_function(operator.getitem, (call, j))
                taken.meta = dict(piece[i].meta)
                piece[i].replace_all_uses_with(taken)
        for node in reversed(piece):
            gm.graph.erase_node(node)


def _leaves(piece: Sequence[Node], i: int) -> bool:
    inside = set(piece)
    return any(u not in inside for u in piece[i].users)
