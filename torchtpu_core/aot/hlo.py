"""Reads what libtpu writes about a program it compiled: the optimized HLO text and the buffer
assignment. Only as much of both as the reports need.

The text is XLA's own (xla/hlo/ir, HloModule::ToString, and xla/service/buffer_assignment): one
instruction a line, computations in braces, tables of source locations in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torchtpu_core.stablehlo.types import ITEMSIZE

#: HLO's spelling of element types -> bytes; what is missing here is MLIR's spelling
_BYTES = {
    **{k.lower(): v for k, v in ITEMSIZE.items()},
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "c64": 8,
    "c128": 16,
    **{f"{sign}{n}": n // 8 for sign in "su" for n in (8, 16, 32, 64)},
}
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"([a-z][a-z0-9-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"(?:branch|called)_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)"
)
_ROLES = re.compile(r"\b(condition|body)=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_GROUPS = re.compile(r"replica_groups=(\[[\d,]+\]|\{(?:\{[\d,]*\},?)*\})")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_CHANNEL = re.compile(r"channel_id=(\d+)")

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: shape and rest (from the opcode's parenthesis on) are HLO text."""

    name: str
    shape: str
    opcode: str
    rest: str
    root: bool

    @property
    def cycles(self) -> int:
        """What the compiler expects it to take; 0 where it says nothing."""
        found = _CYCLES.search(self.rest)
        return int(found[1]) if found else 0

    @property
    def op_name(self) -> str:
        """The name of the location it was made from."""
        found = _NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return [name for name, _ in self.values]

    @property
    def values(self) -> list[tuple[str, int | None]]:
        """Its operands: (name, index within its tuple, None for the whole)."""
        depth, end = 0, len(self.rest)
        for i, c in enumerate(self.rest):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                end = i
                break
        found = re.findall(r"%([\w.\-]+)(?:#(\d+))?", self.rest[:end])
        return [(name, int(index) if index else None) for name, index in found]

    @property
    def called(self) -> list[str]:
        """The computations that it calls."""
        names = _CALLED.findall(self.rest)
        for many, one in _BRANCHES.findall(self.rest):
            names += [n.strip().lstrip("%") for n in many.split(",")] if many else [one]
        return names

    @property
    def number(self) -> int | None:
        """The value of a constant that is an integer."""
        found = re.match(r"\((-?\d+)\)", self.rest) if self.opcode == "constant" else None
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Collective:
    """A collective: its kind, the instruction, bytes of its result, the name ("module/op", or an
    input's) and "file:line" of what it is for, "" where nothing says them.
    """

    kind: str
    instruction: Instruction
    bytes: int
    name: str
    source: str


def _scattered(c: Collective, body: list[Instruction]) -> Collective:
    """libtpu's reduce-scatter is a fusion of an all-reduce, of which each device takes a slice."""
    root = next((i for i in body if i.root), None)
    if (
        c.kind == "all-reduce"
        and root is not None
        and root.opcode == "dynamic-slice"
        and root.operands[:1] == [c.instruction.name]
    ):
        return replace(c, kind="reduce-scatter", bytes=shape_bytes(root.shape))
    return c


@dataclass
class HloModule:
    """Computations by name, each a list of instructions in schedule order."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""
    files: dict[int, str] = field(default_factory=dict)
    locations: dict[int, tuple[int, int]] = field(default_factory=dict)  # -> (file, line)
    frames: dict[int, int] = field(default_factory=dict)  # -> location

    def source(self, i: Instruction) -> str:
        """ "file:line" of the user's program, or ""."""
        found = _FRAME.search(i.rest)
        location = self.locations.get(self.frames.get(int(found[1]), 0)) if found else None
        return f"{self.files[location[0]]}:{location[1]}" if location else ""

    def walk(self) -> Iterator[tuple[Instruction, str, int]]:
        """Every instruction that runs on its own (a fusion is one), its computation, and how often
        it runs in one call of the program.
        """
        yield from self._walk(self.entry, 1)

    def _walk(self, name: str, times: int) -> Iterator[tuple[Instruction, str, int]]:
        for i in self.computations.get(name, ()):
            if i.opcode in ("while", "conditional", "call"):
                trips = self.trips(i, name) if i.opcode == "while" else 1
                for called in i.called:
                    yield from self._walk(called, times * trips)
            else:
                yield i, name, times

    def trips(self, loop: Instruction, where: str) -> int:
        """How often the body of a loop of the computation `where` runs: what the compiler notes, or
        what follows for a counter from one constant to below another by steps of a third; 1
        where neither says.
        """
        noted = _TRIPS.search(loop.rest)
        if noted:
            return int(noted[1])
        called = dict(_ROLES.findall(loop.rest))
        test, body = called.get("condition", ""), called.get("body", "")
        compare = self._root(test)
        if compare is None or "direction=LT" not in compare.rest or len(compare.values) != 2:
            return 1
        counter, limit = compare.values
        at = self._part(test, counter)
        end = self._constant(test, limit)
        step = self._constant(body, self._element(self._root(body), at), plus=at)
        start = self._constant(where, self._element(self._named(where, loop.operands[0]), at))
        if None in (at, end, step, start) or not step:
            return 1
        return max(0, -(-(end - start) // step))  # type: ignore[operator]

    def _root(self, name: str) -> Instruction | None:
        return next((i for i in self.computations.get(name, ()) if i.root), None)

    def _named(self, where: str, name: str) -> Instruction | None:
        return next((i for i in self.computations.get(where, ()) if i.name == name), None)

    def _element(self, i: Instruction | None, at: int | None) -> tuple[str, int | None] | None:
        fits = i is not None and i.opcode == "tuple" and at is not None and at < len(i.values)
        return i.values[at] if fits else None  # type: ignore[union-attr,index]

    def _part(self, where: str, value: tuple[str, int | None] | None) -> int | None:
        """Which element of a computation's parameter a value is, through copies."""
        while value is not None:
            i = self._named(where, value[0])
            if i is None:
                return None
            if i.opcode == "parameter":
                return value[1]
            if i.opcode == "get-tuple-element":
                found = re.search(r"index=(\d+)", i.rest)
                return int(found[1]) if found else None
            value = i.values[0] if i.opcode == "copy" else None
        return None

    def _constant(
        self, where: str, value: tuple[str, int | None] | None, plus: int | None = None
    ) -> int | None:
        """The integer that a value is, through copies; with `plus`, what it adds to that element of
        the computation's parameter.
        """
        while value is not None:
            i = self._named(where, value[0])
            if i is None:
                return None
            if plus is not None and i.opcode == "add":
                a, b = i.values
                for one, other in ((a, b), (b, a)):
                    if self._part(where, one) == plus:
                        return self._constant(where, other)
                return None
            if i.number is not None and plus is None:
                return i.number
            value = i.values[0] if i.opcode == "copy" else None
        return None

    def collectives(self, i: Instruction) -> Iterator[Collective]:
        """The collectives in an instruction: itself, or those in what it calls."""
        kind = next((k for k in COLLECTIVES if i.opcode in (k, k + "-start")), None)
        if kind is not None:
            yield Collective(kind, i, _result_bytes(i), i.op_name, self.source(i))
        elif i.opcode in ("fusion", "custom-call") or i.opcode.endswith("-start"):
            for called in i.called:
                body = self.computations.get(called, [])
                for inner in body:
                    for c in self.collectives(inner):
                        c = _scattered(c, body) if i.opcode == "fusion" else c
                        yield replace(
                            c, name=c.name or i.op_name, source=c.source or self.source(i)
                        )


def parse(text: str) -> HloModule:
    """The module of an HLO text."""
    module = HloModule()
    current: list[Instruction] | None = None
    table = ""
    for line in text.splitlines():
        if current is not None:
            if line.startswith("}"):
                current = None
            elif (i := _instruction(line)) is not None:
                current.append(i)
            continue
        header = _HEADER.match(line)
        if header:
            current = module.computations[header[2]] = []
            if header[1]:
                module.entry = header[2]
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = line
        elif table and line:
            _row(module, table, line)
    return module


def _instruction(line: str) -> Instruction | None:
    head = _INSTRUCTION.match(line)
    if not head:
        return None
    start = head.end()
    if line[start] == "(":  # a tuple's shape
        depth, at = 0, start
        while True:
            depth += (line[at] == "(") - (line[at] == ")")
            at += 1
            if depth == 0:
                break
    else:
        at = line.index(" ", start)
    opcode = _OPCODE.match(line, at + 1)
    if not opcode:
        return None
    return Instruction(
        head[2], line[start:at], opcode[1], line[opcode.end() - 1 :], head[1] is not None
    )


def _row(module: HloModule, table: str, line: str) -> None:
    number, _, rest = line.partition(" ")
    if not number.isdigit():
        return
    n = int(number)
    if table == "FileNames":
        module.files[n] = rest.strip('"')
    elif table == "FileLocations":
        fields = dict(f.split("=") for f in rest.strip("{}").split())
        module.locations[n] = (int(fields["file_name_id"]), int(fields["line"]))
    elif table == "StackFrames":
        module.frames[n] = int(
            dict(f.split("=") for f in rest.strip("{}").split())["file_location_id"]
        )


def shape_bytes(shape: str, hbm_only: bool = False) -> int:
    """Bytes of a shape's elements (without padding); `hbm_only` leaves out what is in other
    memories, whose layouts say so (S(1) is VMEM).
    """
    total = 0.0
    for dtype, dims, layout in _SHAPE.findall(shape):
        if dtype not in _BYTES or (hbm_only and "S(" in layout):
            continue
        sizes = [int(d.removeprefix("<=")) for d in dims.split(",") if d]
        total += math.prod(sizes) * _BYTES[dtype]
    return int(total)


def _result_bytes(i: Instruction) -> int:
    """Bytes of a collective's result; a start op's shape is (operands, results, ...)."""
    if not i.opcode.endswith("-start"):
        return shape_bytes(i.shape)
    parts = tuple_parts(i.shape)
    return shape_bytes(parts[1] if len(parts) > 1 else i.shape)


def tuple_parts(shape: str) -> list[str]:
    """The shapes in a tuple's shape; a shape that is none, alone."""
    if not shape.startswith("("):
        return [shape]
    parts, depth, start = [], 0, 1
    for at, c in enumerate(shape):
        depth += (c in "([{") - (c in ")]}")
        if (c == "," and depth == 1) or (c == ")" and depth == 0):
            parts.append(shape[start:at].strip())
            start = at + 1
    return parts


def group_size(i: Instruction, devices: int) -> int:
    """How many devices a collective's groups have."""
    mesh = _MESH_GROUPS.search(i.rest)
    if mesh:  # named form: mesh['x'=4,'y'=2] {'x'}
        sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        return math.prod(sizes[name] for name in re.findall(r"'([^']+)'", mesh[2]))
    found = _GROUPS.search(i.rest)
    if not found:
        return devices
    text = found[1]
    if text.startswith("["):  # iota form: [groups, size]
        return int(text.strip("[]").split(",")[-1])
    first = re.search(r"\{([\d,]+)\}", text)
    return len(first[1].split(",")) if first else devices


def channel(i: Instruction) -> str:
    """A collective's channel: start and done, and copies in fusions, share one."""
    found = _CHANNEL.search(i.rest)
    return found[1] if found else i.name


# ---- buffers -------------------------------------------------------------------------------------

_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+)(.*):$")
_VALUE = re.compile(r"^ value: <\d+ (\S+) @(\d+)> \(size=(\d+),offset=(\d+)\): (.*)$")
_RANGE = re.compile(r"^\s+([^\s:]+\{[\d,]*\}):(\d+)-(\d+)$")


@dataclass(frozen=True)
class Allocated:
    """A value in HBM: the instruction's name, the index within its tuple, bytes, place."""

    instruction: str
    index: str
    size: int
    allocation: int
    offset: int
    kind: str
    shape: str


def buffers(text: str) -> list[Allocated]:
    """The values in HBM (memory space 0), from a buffer assignment."""
    found = []
    allocation: tuple[int, str] | None = None
    for line in text.splitlines():
        head = _ALLOCATION.match(line)
        if head:
            attributes = head[3]
            allocation = None
            if "color" not in attributes and "thread-local" not in attributes:
                kinds = ("parameter", "constant", "preallocated-temp", "maybe-live-out")
                kind = next((k for k in kinds if k in attributes), "temporary")
                allocation = (int(head[1]), kind)
            continue
        value = _VALUE.match(line) if allocation else None
        if value and allocation:
            name, brace, index = value[1].partition("{")
            found.append(
                Allocated(
                    name, brace + index, int(value[3]), allocation[0], int(value[4]), allocation[1],
                    value[5],
                )
            )  # fmt: skip
    return found


def live_ranges(text: str) -> dict[str, tuple[int, int]]:
    """Value ("name{index}") -> first and last place in the schedule."""
    return {m[1]: (int(m[2]), int(m[3])) for m in map(_RANGE.match, text.splitlines()) if m}


def timeline(values: list[Allocated], ranges: dict[str, tuple[int, int]]) -> list[tuple[int, int]]:
    """(place in the schedule, bytes of temporaries alive from there on), where that changes."""
    changes: dict[int, int] = {}
    seen: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for v in values:
        span = ranges.get(v.instruction + (v.index or "{}"))
        if v.kind != "preallocated-temp" or span is None:
            continue
        # values that share their place are one buffer while their ranges touch
        seen.setdefault((v.allocation, v.offset, v.size), []).append(span)
    for (_, _, size), spans in seen.items():
        for first, last in _merged(sorted(spans)):
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    out, now = [], 0
    for at in sorted(changes):
        now += changes[at]
        out.append((at, now))
    return out


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for first, last in spans:
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out
