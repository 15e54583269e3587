"""What the compiler made of a program, and what follows from it: memory, cost, roofline,
collectives, dominant ops.

All numbers are those of one device (for a mesh: of each of its devices).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtpu_core.aot import cost, hlo
from torchtpu_core.aot.chips import Chip, chip_of


@dataclass(frozen=True)
class Topology:
    """A slice: its name, how many devices PJRT shows, and the bytes of HBM a program may use on
    each; version: of the libtpu that described it.
    """

    name: str
    devices: int
    kind: str
    memory: int
    version: str

    @property
    def chip(self) -> Chip:
        """What is published about its chip."""
        return chip_of(self.name)


@dataclass(frozen=True)
class Memory:
    """Bytes of HBM. aliased: outputs that are in the place of donated arguments; peak: the most in
    use at one time, arguments included, as libtpu counts it: with what is in VMEM; available: what
    a program may use.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    generated_code: int
    peak: int
    available: int

    @property
    def needed(self) -> int:
        """Bytes that must be there for the program to run: libtpu lays all temporaries out in one
        block of that size.
        """
        parts = self.arguments + self.outputs - self.aliased + self.temporaries
        return parts + self.generated_code

    @property
    def fits(self) -> bool:
        """Whether the program runs on the chip alone, with nothing else in its memory."""
        return self.needed <= self.available


@dataclass(frozen=True)
class Buffer:
    """A value in memory: bytes, HLO shape, and the op, module and line that made it."""

    size: int
    shape: str
    kind: str
    name: str
    source: str


@dataclass(frozen=True)
class Op:
    """What belongs to one op of one line: name ("module/op"), source ("file:line"), how many HLO
    instructions, cycles that the compiler expects, bytes of HBM read and written, opcodes.
    """

    name: str
    source: str
    count: int
    cycles: int
    bytes: int
    opcodes: tuple[str, ...]


@dataclass(frozen=True)
class Collective:
    """A kind of collective over groups of one size: how often it runs, bytes of its results on a
    device, and bytes that each device sends (ring algorithms: all-gather and reduce-scatter send
    (n-1)/n of the whole, all-reduce twice that). source: "file:line"; name: of the op, or of the
    input that is gathered.
    """

    kind: str
    group: int
    count: int
    bytes: int
    sent: int
    source: str
    name: str = ""


@dataclass(frozen=True)
class Roofline:
    """Seconds below which the chip cannot run the program: peak FLOP/s, HBM and ICI bandwidth, each
    alone. `bound` names the largest.
    """

    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self.compute, self.memory, self.network)

    @property
    def bound(self) -> str:
        """compute, memory or network."""
        parts = {"compute": self.compute, "memory": self.memory, "network": self.network}
        return max(parts, key=lambda k: parts[k])


@dataclass(frozen=True)
class Analysis:
    """What is read off the optimized HLO.

    cycles: the compiler's estimates added up, loops by their trip counts (collectives and copies
    that run beside the computation have none); repeated_flops, repeated_bytes: of products and HBM
    in the rounds of loops after the first, which libtpu's cost analysis does not count; timeline:
    (place in the schedule, bytes of temporaries).
    """

    cycles: int = 0
    repeated_flops: int = 0
    repeated_bytes: int = 0
    instructions: int = 0
    fusions: int = 0
    ops: tuple[Op, ...] = ()
    collectives: tuple[Collective, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    timeline: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A program compiled for a topology.

    executable: bytes for PJRT's deserialize-and-load; stablehlo: what went in; hlo: what came out,
    as text ("" if no report was asked for); fingerprint: libtpu's, of the executable; cache_key:
    the program's in the program cache of a host with such chips (cache.py); cost: the compiler's
    cost analysis as it gives it.
    """

    name: str
    topology: Topology
    devices: int
    executable: bytes = field(repr=False)
    stablehlo: str = field(repr=False)
    hlo: str = field(repr=False)
    fingerprint: str
    cache_key: str
    memory: Memory
    cost: dict[str, float] = field(repr=False)
    analysis: Analysis = field(repr=False)
    compile_seconds: float
    inputs: tuple[dict[str, Any], ...] = field(repr=False, default=())
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = field(repr=False, default=())

    @property
    def flops(self) -> float:
        """Floating-point operations of one call on one device."""
        return self.cost.get("flops", 0.0) + self.analysis.repeated_flops

    @property
    def bytes_accessed(self) -> float:
        """Bytes that the program's instructions read and write."""
        return self.cost.get("bytes accessed", 0.0) + self.analysis.repeated_bytes

    @property
    def compiler_seconds(self) -> float:
        """The compiler's own estimate: its cycles at the chip's clock, without collectives."""
        return self.analysis.cycles / self.topology.chip.clock

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """By kind, op and line, those that send most first."""
        return self.analysis.collectives

    @property
    def traffic(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Collectives by (kind, group): (count, bytes, sent), those that send most first."""
        found: dict[tuple[str, int], tuple[int, int, int]] = {}
        for c in self.collectives:
            n, size, sent = found.get((c.kind, c.group), (0, 0, 0))
            found[c.kind, c.group] = n + c.count, size + c.bytes, sent + c.sent
        return dict(sorted(found.items(), key=lambda kv: -kv[1][2]))

    @property
    def top_ops(self) -> tuple[Op, ...]:
        """By line and op, those that take most cycles first."""
        return self.analysis.ops

    @property
    def roofline(self) -> Roofline:
        """Lower bounds of the time of one call from the chip's published peaks."""
        chip = self.topology.chip
        return Roofline(
            self.flops / chip.device_bf16,
            self.bytes_accessed / chip.device_hbm_bandwidth,
            sum(c.sent for c in self.collectives) / chip.device_ici_bandwidth,
        )

    def summary(self) -> dict[str, Any]:
        """All numbers, as JSON takes them."""
        roofline = self.roofline
        return {
            "name": self.name,
            "topology": dataclasses.asdict(self.topology),
            "devices": self.devices,
            "fingerprint": self.fingerprint,
            "memory": {
                **dataclasses.asdict(self.memory),
                "needed": self.memory.needed,
                "fits": self.memory.fits,
            },
            "flops": self.flops,
            "bytes_accessed": self.bytes_accessed,
            "compiler_seconds": self.compiler_seconds,
            "roofline": {
                **dataclasses.asdict(roofline),
                "seconds": roofline.seconds,
                "bound": roofline.bound,
            },
            "analysis": dataclasses.asdict(self.analysis),
            "compile_seconds": self.compile_seconds,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }

    def to_json(self) -> str:
        """`summary` as text."""
        return json.dumps(self.summary(), indent=1)


def memory_of(stats: dict[str, int], available: int) -> Memory:
    """From PJRT's memory statistics."""
    return Memory(
        stats["arguments"],
        stats["outputs"],
        stats["alias"],
        stats["temp"],
        stats["generated_code"],
        stats["peak"],
        available,
    )


def analyse(
    text: str, assignment: str, ranges: str, devices: int, inputs: Sequence[str]
) -> Analysis:
    """Reads an optimized module, its buffer assignment and live ranges (texts, "" if missing).
    `inputs`: the names of the program's arguments.
    """
    module = hlo.parse(text)
    ops: dict[tuple[str, str], list[Any]] = {}
    collectives: dict[tuple[str, int, str, str], list[int]] = {}
    channels: set[str] = set()
    shapes = {name: {i.name: i.shape for i in body} for name, body in module.computations.items()}
    cycles = instructions = fusions = repeated_flops = repeated_bytes = 0
    for i, where, times in module.walk():
        if i.opcode in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast"):
            continue
        instructions += 1
        fusions += i.opcode == "fusion"
        cycles += i.cycles * times
        moved = cost.moved(module, i, shapes[where])
        if times > 1:
            repeated_flops += (times - 1) * cost.flops(module, i, shapes[where])
            repeated_bytes += (times - 1) * moved
        entry = ops.setdefault((i.op_name, module.source(i)), [0, 0, 0, set()])
        entry[0] += times
        entry[1] += i.cycles * times
        entry[2] += moved * times
        entry[3].add(i.opcode)
        for c in module.collectives(i):
            mark = f"{c.kind} {hlo.channel(c.instruction)}"
            if mark not in channels:
                channels.add(mark)
                _count(collectives, c, times, devices)
    values = hlo.buffers(assignment)
    return Analysis(
        cycles,
        repeated_flops,
        repeated_bytes,
        instructions,
        fusions,
        tuple(
            sorted(
                (Op(n, s, e[0], e[1], e[2], tuple(sorted(e[3]))) for (n, s), e in ops.items()),
                key=lambda o: (-o.cycles, -o.bytes),
            )
        ),
        tuple(
            sorted(
                (
                    Collective(k, g, c[0], c[1], c[2], s, n)
                    for (k, g, s, n), c in collectives.items()
                ),
                key=lambda c: -c.sent,
            )
        ),
        largest(module, values, inputs),
        tuple(hlo.timeline(values, hlo.live_ranges(ranges))),
    )


def _count(
    into: dict[tuple[str, int, str, str], list[int]],
    c: hlo.Collective,
    times: int,
    devices: int,
) -> None:
    n = hlo.group_size(c.instruction, devices)
    whole = c.bytes * n if c.kind == "reduce-scatter" else c.bytes
    if c.kind == "collective-permute":
        sent = c.bytes
    else:
        sent = whole * (n - 1) // n * (2 if c.kind == "all-reduce" else 1)
    entry = into.setdefault((c.kind, n, c.source, c.name), [0, 0, 0])
    for at, value in enumerate((1, c.bytes, sent)):
        entry[at] += value * times


def largest(
    module: hlo.HloModule, values: list[hlo.Allocated], inputs: Sequence[str], n: int = 20
) -> tuple[Buffer, ...]:
    """The largest values in HBM; of those that share a place, the first."""
    where = {i.name: i for body in module.computations.values() for i in body}
    places: dict[tuple[int, int], hlo.Allocated] = {}
    for v in values:
        places.setdefault((v.allocation, v.offset), v)
    out = []
    for v in sorted(places.values(), key=lambda v: -v.size)[:n]:
        i = where.get(v.instruction)
        out.append(
            Buffer(
                v.size,
                v.shape.split("{")[0],
                v.kind,
                _name(i, inputs) if i else v.instruction,
                module.source(i) if i else "",
            )
        )
    return tuple(out)


def _name(i: hlo.Instruction, inputs: Sequence[str]) -> str:
    if i.opcode != "parameter":
        return i.op_name or i.opcode
    number = int(i.rest[1 : i.rest.index(")")])
    return inputs[number] if number < len(inputs) else i.name
