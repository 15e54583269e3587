"""Why graphs are compiled: the programs of each graph, and what of a call made a new one.

A graph has a program for each key (see docs/architecture.md). The reason for a new one is what
differs from the known call that is most alike. TORCHTPU_LOG=recompiles prints it, and
`torchtpu_core.stats` counts it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtpu_core import config
from torchtpu_core.lowering.specs import TensorSpec
from torchtpu_core.plans import Plan

#: what of a tensor is part of a key, with the words for it
_PARTS = (
    ("sizes", "shape"),
    ("strides", "strides"),
    ("offset", "offset"),
    ("dtype", "dtype"),
    ("base_dtype", "dtype of its storage"),
    ("base_dims", "size of its storage"),
    ("initialised", "initialised"),
    ("slot", "tensor that it shares storage with"),
    ("host", "being a CPU number"),
    ("conj", "lazy conjugation"),
    ("neg", "lazy negation"),
)


@dataclass
class _Graph:
    programs: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


_graphs: dict[str, _Graph] = {}
_counts = dict.fromkeys(("graphs_traced", "graphs_from_disk", "graphs_lowered"), 0)


def count(what: str) -> None:
    """Counts one graph more: that AOTAutograd made, that was found on disk in its place, or that
    was lowered for a call whose program no earlier process had kept.
    """
    _counts[what] += 1


def counts() -> dict[str, int]:
    """How many there were of each."""
    return dict(_counts)


class Watch:
    """Records the programs of the graph `name`, whose arguments have the names `arguments`."""

    def __init__(self, name: str, arguments: Sequence[str]):
        self.name, self.arguments = name, arguments
        self.known: list[tuple[Any, ...]] = []
        #: what was lowered last, until the call that asked for it is over
        self.fresh: tuple[Sequence[Any], Plan] | None = None

    def building(self, build: Callable[[Sequence[Any]], Plan]) -> Callable[[Sequence[Any]], Plan]:
        """`build`, which the graph's table calls for each new key, with its reasons recorded."""

        def watching(args: Sequence[Any]) -> Plan:
            self._record(tuple(_described(x) for x in args))
            plan = build(args)
            self.fresh = args, plan
            return plan

        return watching

    def _record(self, described: tuple[Any, ...]) -> None:
        graph = _graphs.setdefault(self.name, _Graph())
        graph.programs += 1
        alike = [k for k in reversed(self.known) if len(k) == len(described)]
        if alike:
            reasons = min((_differences(self.arguments, k, described) for k in alike), key=len)
            reasons = reasons or ["flags that change numerics, or the device"]
            graph.reasons.update(reasons)
            if "recompiles" in config.get("TORCHTPU_LOG"):
                print(f"torchtpu recompile {self.name}: " + "; ".join(reasons), file=sys.stderr)
        self.known.append(described)


def _described(x: Any) -> Any:
    return tuple(getattr(x, a) for a, _ in _PARTS) if isinstance(x, TensorSpec) else x


def _differences(names: Sequence[str], old: Sequence[Any], new: Sequence[Any]) -> list[str]:
    reasons = []
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        if a == b and type(a) is type(b):
            continue
        name = names[i] if i < len(names) else f"constant {i - len(names)}"
        if not (isinstance(a, tuple) and isinstance(b, tuple)):
            reasons.append(f"{name}: {a!r} -> {b!r}")
            continue
        changed = [(w, p, q) for (_, w), p, q in zip(_PARTS, a, b) if p != q]
        # Another shape brings other strides and another base along.
        word, p, q = changed[0]
        reasons.append(f"{name}: {word} {p} -> {q}")
    return reasons


def report() -> dict[str, dict[str, Any]]:
    """For each graph, by name: how many programs it has had built, how often for which reason."""
    return {
        name: {"programs": g.programs, "reasons": dict(g.reasons)} for name, g in _graphs.items()
    }


def reset() -> None:
    """Forgets the counts."""
    _graphs.clear()
    _counts.update(dict.fromkeys(_counts, 0))
