"""Calls of graphs with open sizes: one program for each bucket of sizes (buckets.py), the sizes of
the call as numbers that it is fed.

Tensors of open size are stored padded (csrc/device/storage.h): what one graph returns, the next one
takes as it is. A tensor that is not padded yet is padded once, on the host, since a program would
have to be compiled for every size; its storage then holds the padded buffer.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

import torchtpu_core._C as _C
from torchtpu_core.compile import buckets, layers
from torchtpu_core.compile.control_flow import Interpreter
from torchtpu_core.compile.graph_program import GraphProgram
from torchtpu_core.compile.recompiles import Watch
from torchtpu_core.stablehlo import Module


@lru_cache(maxsize=4096)
def _number(value: int | float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


class BucketedGraph:
    """What calls a graph with open sizes: a list of arguments, which it empties, to results."""

    _boxed_call = True

    def __init__(self, name: str, program: GraphProgram, watch: Watch):
        from torchtpu_core.compile import padded
        from torchtpu_core.compile.padded.program import Interface

        self.name, self.program, self.watch = name, program, watch
        self.num_inputs = program.num_inputs + len(program.constants)
        self.exact = _C.Graph(name, self.num_inputs, watch.building(self._build_exact))
        self._inexact = padded.Inexact
        self._entries: dict[tuple, _Entry] = {}
        self._lock = threading.Lock()
        self._said = False
        self._interface: Interface | None = None
        try:
            self._interface = Interface(program)
        except padded.Inexact as e:
            self._specialise(e)

    @property
    def programs(self) -> int:
        """How many programs calls have needed so far."""
        entries = list(self._entries.values())
        return self.exact.programs + sum(e.graph.programs for e in entries)

    def __call__(self, args: list[Any]) -> list[Any]:
        interface = self._interface
        if interface is None or not buckets.enabled():
            return self._run_exact(args)
        sources = interface.symbols.values()
        values = [args[i] if d is None else args[i].shape[d] for i, d in sources]
        key = tuple(
            buckets.bucket(v, interface.limits[s]) if s in interface.limits else None
            for s, v in zip(interface.symbols, values)
        )
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:
                entry = self._entries.setdefault(key, _Entry(self, interface, key))
        given = list(args)
        args.clear()
        try:
            return entry(given, values)
        except self._inexact as e:
            self._specialise(e)
            return self._run_exact(given)

    def _run_exact(self, args: list[Any]) -> list[Any]:
        given = list(args) if self._aliases else []
        results = self.exact(args)
        if given:
            walk = Interpreter(Module().function("main", []), self.program.gm)
            walk.bind_call(self.program.placeholders, given)
            for place, source, placed in self._aliases:
                sizes, strides, offset = pytree.tree_map(
                    lambda n: int(sympy.sympify(n).xreplace(walk.symbols)), placed
                )
                results[place] = _view(given[source], sizes, strides, offset)
        return results

    @cached_property
    def _aliases(self) -> list[tuple[int, int, tuple]]:
        from torchtpu_core.compile.padded.program import aliases

        return aliases(self.program)

    def _build_exact(self, args: Sequence[Any]) -> Any:
        return self._shared.build(args)

    @cached_property
    def _shared(self) -> GraphProgram:
        """The graph with its repeated layers shared, for which padding has no rules. A copy: the
        policy may change back.
        """
        gm = self.program.gm
        return GraphProgram(layers.share(torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))))

    def _specialise(self, reason: Exception) -> None:
        """From now on a program for each set of sizes; says so once."""
        with self._lock:
            said, self._said = self._said, True
            self._interface = None
            self._entries = {}
        if not said:
            warnings.warn(
                f"{self.name}: padding its open sizes would not be exact, so it is compiled for "
                f"each set of sizes ({reason})",
                stacklevel=3,
            )


class _Entry:
    """The program of one bucket."""

    def __init__(self, owner: BucketedGraph, interface: Any, key: Sequence[tuple[int, int] | None]):
        self.interface = interface
        bounds = {s: b for s, b in zip(interface.symbols, key) if b is not None}
        self.rooms = interface.rooms(bounds)
        count = owner.num_inputs + len(interface.symbols)
        build = owner.watch.building(partial(interface.build, bounds))
        self.graph = _C.Graph(owner.name, count, build)

    def __call__(self, args: list[Any], values: Sequence[int]) -> list[Any]:
        """Takes the arguments, and the values of the symbols."""
        interface = self.interface
        in_bases, out_bases, out_sizes, numbers, views = interface.host(values)
        fed = list(args)
        for (i, port), base, room in zip(interface.inputs.items(), in_bases, self.rooms):
            fed[i] = _entered(args[i], base, room, port.order)
        for i, x in enumerate(fed):
            if isinstance(x, (int, float)):
                fed[i] = None  # sizes come with the symbols
        fed.extend(map(_number, values))
        outs = self.graph(fed, lambda: interface.random_blocks(values))
        made = [
            t if port is None else _C.corner(t, base, sizes, port.order)
            for t, port, base, sizes in zip(outs, interface.results, out_bases, out_sizes)
        ]
        for i, place in interface.written:
            if not _C.adopt(args[i], outs[place], out_bases[place], interface.inputs[i].order):
                args[i].copy_(made[place])
        left = iter(numbers)
        results = []
        for kind, *where in interface.outputs:
            if kind == "tensor":
                results.append(made[where[0]])
            elif kind == "arg":
                results.append(args[where[0]])
            elif kind == "view":
                results.append(_view(args[where[0]], *views[where[1]]))
            else:
                results.append(next(left) if kind == "number" else None)
        return results


def _entered(
    t: torch.Tensor, base: Sequence[int], room: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """The padded buffer of an argument, as a tensor of its own."""
    whole = _C.padded_view(t, base, room, order)
    if whole is not None:
        return whole
    with torch.no_grad():
        full = torch.zeros(room, dtype=t.dtype)
        corner = full[tuple(slice(0, n) for n in base)]
        corner.copy_(_on_host(t).permute(tuple(order)).reshape(base))
        whole = full.to(t.device)
    _C.adopt(t, whole, base, order)
    return whole


def _view(t: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int):
    return t.detach().as_strided(sizes, strides, t.storage_offset() + offset)


def _on_host(t: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that needs no program, whatever view `t` is."""
    storage = t.untyped_storage()
    n = storage.nbytes() // t.itemsize
    line = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, 0, (n,), (1,))
    host = line.cpu().as_strided(t.shape, t.stride(), t.storage_offset())
    if t.is_neg():
        host = host.neg()
    return host.conj() if t.is_conj() else host
