"""`compile_for` and its parts: capture, lower, hand to a worker, read what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchtpu_core import _C
from torchtpu_core.aot import chips, hlo, pool, result
from torchtpu_core.aot.capture import Captured, Input, Target, capture
from torchtpu_core.aot.errors import (
    AotError,
    CompilerCrash,
    DoesNotFit,
    InvalidProgram,
    UnknownTopology,
)
from torchtpu_core.aot.lower import Program, lower
from torchtpu_core.aot.sharding import Mesh, Shardings
from torchtpu_core.cache import ProgramCache

#: seconds that one compilation may take unless told otherwise
TIMEOUT = 1800.0


def compile_for(
    target: Target | Captured,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    topology: str = "v6e:2x2",
    mesh: dict[str, int] | None = None,
    shardings: Shardings | None = None,
    precision: str | None = None,
    compiler_options: dict[str, str | bool | int | float] | None = None,
    timeout: float = TIMEOUT,
    report: bool = True,
) -> result.Compiled:
    """Compiles one call of a function, module or exported program for TPUs that need not be there.

    args, kwargs: tensors of which only shapes, strides and dtypes matter: meta tensors need no
    memory. topology: a chip and a slice's shape in chips. mesh: axis names and sizes; without one
    the program is for a single device. shardings: by name of the input (`sharding.Shardings`).
    precision: of float32 products, "default", "high" or "highest". compiler_options: XLA's, by
    name ({"xla_optimization_level": "EFFORT_O1"}), as far as libtpu knows them; to a program cache
    such a program is another one. timeout: in seconds. report: also read the optimized HLO, for
    what needs it (`hlo`, collectives, ops, buffers, the compiler's time).

    Raises UnknownTopology, LibtpuMissing, NotImplementedError (an op that is not lowered, with its
    line), DoesNotFit, InvalidProgram and CompilerCrash (with the operator and its line, where one
    alone is to blame), CompileTimeout.
    """
    chips.chip_of(topology)  # before the work of capturing
    captured = target if isinstance(target, Captured) else capture(target, args, kwargs)
    program = lowered(captured, mesh=mesh, shardings=shardings, precision=precision)
    if compiler_options:
        options = {**program.options, "overrides": dict(compiler_options)}
        program = dataclasses.replace(program, options=options)
    try:
        return compile_program(program, topology, timeout=timeout, report=report)
    except (InvalidProgram, CompilerCrash) as e:
        e.args = (f"{e}{_culprit(captured, topology, timeout)}",)
        raise


def _culprit(captured: Captured, topology: str, timeout: float) -> str:
    """Words on the operator that libtpu refuses, with its line; "" if it takes each by itself."""
    from torchtpu_core.compile import blame

    def compile_(text: str) -> None:
        try:
            alone = Program("one operator", text, (), {})
            compile_program(alone, topology, timeout=timeout, report=False)
        except (InvalidProgram, CompilerCrash) as e:
            raise _C.PjrtError(str(e)) from e

    placeholders = captured.gm.graph.find_nodes(op="placeholder")
    node = blame.culprit(captured.gm, placeholders, (), compile_)
    if node is None:
        return ""
    where = node.meta.get("stack_trace") or ""
    return f"\nthe operator that does not compile: {node.target}\n{where}".rstrip()


def lowered(
    target: Target | Captured,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    mesh: dict[str, int] | None = None,
    shardings: Shardings | None = None,
    precision: str | None = None,
) -> Program:
    """The StableHLO program that `compile_for` compiles."""
    captured = target if isinstance(target, Captured) else capture(target, args, kwargs)
    return lower(captured, Mesh(dict(mesh)) if mesh else None, shardings, precision)


def compile_many(
    programs: Sequence[Program],
    topologies: str | Sequence[str],
    *,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    report: bool = False,
    done: Callable[[int], None] | None = None,
) -> list[result.Compiled | AotError]:
    """Each program for its topology (or all for one), several at a time. What fails is an exception
    in the list's place; `done` is called with each index that is finished.
    """
    names = [topologies] * len(programs) if isinstance(topologies, str) else list(topologies)

    def one(i: int) -> result.Compiled | AotError:
        try:
            return compile_program(programs[i], names[i], timeout=timeout, report=report)
        except AotError as e:
            return e
        finally:
            if done is not None:
                done(i)

    count = min(workers or pool.max_workers(), pool.max_workers())
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(len(programs))))


def topology_of(name: str) -> result.Topology:
    """What the installed libtpu says about a topology; UnknownTopology if it says nothing."""
    chips.chip_of(name)
    with pool.worker() as worker:
        reply = worker.ask({"do": "topology", "topology": name}, pool.START)
    if not reply["ok"]:
        raise UnknownTopology(chips.unknown(name, _words(reply["message"])))
    return result.Topology(name, reply["devices"], reply["kind"], reply["memory"], reply["version"])


def compile_program(
    program: Program, topology: str, *, timeout: float = TIMEOUT, report: bool = True
) -> result.Compiled:
    """`compile_for` for a program that is StableHLO already."""
    where = topology_of(topology)
    devices = program.options.get("num_partitions", 1)
    if devices > where.devices:
        raise ValueError(
            f"the mesh has {devices} devices, the topology {topology} only {where.devices}"
        )
    with _folder() as folder:
        source = folder / "program.mlir"
        source.write_text(program.stablehlo)
        options = dict(program.options)
        if report:
            options["overrides"] = {
                **options.get("overrides", {}),
                "xla_dump_to": str(folder / "dump"),
                "xla_dump_hlo_as_text": True,
            }
        request = {
            "do": "compile",
            "topology": topology,
            "program": str(source),
            "options": options,
            "out": str(folder),
        }
        with pool.worker() as worker:
            reply = worker.ask(request, timeout)
        dump = _Dump(folder / "dump")
        if not reply["ok"]:
            raise _failure(reply, program, where, dump)
        text = dump.read("after_codegen") or dump.read("after_optimizations")
        return result.Compiled(
            name=program.name,
            topology=where,
            devices=devices,
            executable=(folder / "executable").read_bytes(),
            stablehlo=program.stablehlo,
            hlo=text,
            fingerprint=reply["fingerprint"],
            cache_key=_cache_key(program, reply["target"]),
            memory=result.memory_of(reply["memory"], where.memory),
            cost=reply["cost"],
            analysis=result.analyse(
                text,
                dump.read("after_optimizations-buffer-assignment"),
                dump.read("after_optimizations-live-range"),
                devices,
                [x.name for x in program.inputs],
            ),
            compile_seconds=reply["seconds"],
            inputs=tuple(_described(x) for x in program.inputs),
            outputs=tuple((t, tuple(d)) for t, d in reply["outputs"]),
        )


def _cache_key(program: Program, target: str) -> str:
    """What the dispatcher (csrc/dispatch/build.cc) looks the program up by where it is at home."""
    options = _C.pjrt.CompileOptions(**program.options).serialize()
    return ProgramCache.key(target, options, program.stablehlo)


def _described(x: Input) -> dict[str, Any]:
    return {**dataclasses.asdict(x), "dtype": str(x.dtype).removeprefix("torch.")}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="torchtpu-aot-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Dump:
    """What XLA wrote about a module: <number>.<name>.<version>.<what>.txt"""

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, what: str) -> str:
        found = sorted(self.folder.glob(f"*.{what}.txt")) if self.folder.is_dir() else []
        return found[-1].read_text(errors="replace") if found else ""


_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_NEEDED = re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")


def _failure(
    reply: dict[str, Any], program: Program, topology: result.Topology, dump: _Dump
) -> AotError:
    message = _words(reply["message"])
    if reply["error"] != "memory":
        return InvalidProgram(f"libtpu refuses {program.name} for {topology.name}: {message}")
    sizes = _NEEDED.search(message) or _USED.search(message)
    needed = _bytes(*sizes.groups()[:2]) if sizes else None
    available = _bytes(*sizes.groups()[2:]) if sizes else topology.memory
    module = hlo.parse(dump.read("after_optimizations"))
    values = hlo.buffers(dump.read("after_optimizations-buffer-assignment"))
    buffers = list(result.largest(module, values, [x.name for x in program.inputs], 10))
    lines = [f"{program.name} does not fit a device of {topology.name}"]
    if needed is not None:
        over = needed - available  # of numbers with two decimals
        much = f"{gib(over)} too much" if over > 0 else "a few MiB too much"
        lines[0] += (
            f": it needs {gib(needed)} of temporaries and arguments where {gib(available)} are "
            f"there, {much}"
        )
    if buffers:
        lines.append("largest buffers:")
        lines += [f"  {gib(x.size):>10}  {x.shape}  {x.name} {x.source}".rstrip() for x in buffers]
    lines.append(f"libtpu says: {message}")
    return DoesNotFit("\n".join(lines), needed, available, buffers)


def _words(message: str) -> str:
    """libtpu's message without the path of our plugin in front."""
    return re.sub(r"^.*cannot describe the topology '[^']*': ", "", message).strip()


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def gib(n: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1024
    return f"{n:.2f} TiB"
