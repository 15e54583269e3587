"""The command `torchtpu`."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtpu_core import config
from torchtpu_core.aot.chips import CHIPS, chip_of

app = typer.Typer(
    help="Tools for PyTorch's device `tpu`.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback()
def _main() -> None:
    """Tools for PyTorch's device `tpu`."""


@app.command()
def topologies() -> None:
    """Lists the chips that the installed libtpu compiles for, with memory and published peaks."""
    from torchtpu_core import aot

    table = _table("chip", "one host", "devices", "HBM a device", "bf16", "HBM", "ICI")
    for chip in CHIPS.values():
        name = f"{chip.name}:{chip.shape}"
        try:
            found = aot.topology_of(name)
        except aot.UnknownTopology:
            continue
        except aot.AotError as e:
            _fail(e)
        table.add_row(
            chip.name, name, str(found.devices), f"{found.memory / 2**30:.2f} GiB",
            f"{chip.bf16 / 1e12:.0f} TFLOP/s", f"{chip.hbm_bandwidth / 1e9:.0f} GB/s",
            f"{chip.ici_bandwidth / 1e9:.0f} GB/s",
        )  # fmt: skip
    _print(table)
    _print(
        "Peaks are those published for a chip; v2, v3, v4 and tpu7x show two devices a chip. "
        "Larger slices: v5e:4x4, v5p:4x4x4."
    )


@app.command()
def aot(
    script: Annotated[
        Path | None,
        typer.Argument(help="a Python script; the arguments after -- are its own"),
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    topology: Annotated[str, typer.Option(help="chip and shape of the slice")] = "v6e:1x1",
    model: Annotated[
        str | None, typer.Option(help="a known configuration, or the path of a config.json")
    ] = None,
    batch: Annotated[int, typer.Option(help="sequences, over all devices")] = 1,
    seq: Annotated[int, typer.Option(help="tokens a sequence")] = 1024,
    layers: Annotated[int | None, typer.Option(help="another number of layers")] = None,
    train: Annotated[bool, typer.Option(help="a step of AdamW instead of the logits")] = False,
    recompute: Annotated[
        bool, typer.Option(help="blocks compute their forward pass again in backward")
    ] = False,
    fsdp: Annotated[int, typer.Option(help="devices that share weights and batch")] = 1,
    dtype: Annotated[str, typer.Option(help="dtype of the weights")] = "bfloat16",
    precision: Annotated[
        str | None, typer.Option(help="of float32 products: default, high or highest")
    ] = None,
    entry: Annotated[str, typer.Option(help="the script's function to call")] = "aot_program",
    timeout: Annotated[float, typer.Option(help="seconds a compilation may take")] = 1800.0,
    html: Annotated[Path | None, typer.Option(help="where to write the report")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="where to write the numbers")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="where to write the executable")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="folder for a script's executables: a TPU host's TORCHTPU_CACHE_DIR"),
    ] = None,
    stablehlo: Annotated[
        Path | None,
        typer.Option(help="where to write the program as StableHLO: text to *.mlir, else bytecode"),
    ] = None,
    stablehlo_version: Annotated[
        str | None, typer.Option(help="of the bytecode; by default that of 12 weeks ago")
    ] = None,
) -> None:
    """Compiles for a TPU that need not be there, and reports memory, cost and what dominates.

    With --model: the logits, or with --train a whole step, of a language model.

    With a script that defines `aot_program()`: what that returns, (function or module, arguments)
    or (function or module, arguments, keyword arguments), built on the meta device.

    Any other script is run as it is, here, and each program that its ops and compiled graphs build
    is compiled for the topology.
    """
    from torchtpu_core import aot as compiler

    if (script is None) == (model is None):
        raise typer.BadParameter("give either a script or --model")
    if cache is not None and (script is None or _has_entry(script, entry)):
        raise typer.BadParameter(
            "--cache keeps the programs of a script that is run; a function's own is kept by --save"
        )
    try:
        chip_of(topology)
    except compiler.UnknownTopology as e:
        _fail(e)
    mesh, shardings = ({"fsdp": fsdp}, compiler.fsdp("fsdp", fsdp)) if fsdp > 1 else (None, None)
    try:
        if model is not None:
            target, args, kwargs = _model(model, batch, seq, layers, train, dtype, recompute)
        else:
            assert script is not None
            found = _entry(script, entry)
            if found is None:
                if stablehlo is not None:
                    raise typer.BadParameter(f"--stablehlo writes one program: define {entry}()")
                _run(script, arguments or [], topology, timeout, json_file, cache)
                return
            target, args, kwargs = found
        with _working(f"compiling for {topology}"):
            program = compiler.lowered(
                target, args, kwargs, mesh=mesh, shardings=shardings, precision=precision
            )
            if stablehlo is not None:  # before the compiler, which may refuse the program
                _write_stablehlo(program.stablehlo, stablehlo, stablehlo_version)
            compiled = compiler.compile_program(program, topology, timeout=timeout)
    except (compiler.AotError, NotImplementedError, ValueError, ImportError) as e:
        _fail(e)
    _show(compiled)
    from torchtpu_core.aot import report, saved

    page = report.write(
        compiled, html or Path(f"{compiled.name}.{topology.replace(':', '-')}.html")
    )
    _print(f"report: {page}")
    if json_file is not None:
        json_file.write_text(compiled.to_json())
    if save is not None:
        _print(f"executable: {saved.save(compiled, save)}")


def _write_stablehlo(text: str, file: Path, version: str | None) -> None:
    if file.suffix == ".mlir":
        file.write_text(text)
    else:
        from torchtpu_core.compile.export import serialize

        file.write_bytes(serialize(text, version))
    _print(f"StableHLO: {file}")


def _model(
    name: str, batch: int, seq: int, layers: int | None, train: bool, dtype: str, again: bool
) -> tuple[Any, Sequence[Any], None]:
    import torch

    from torchtpu_core.aot import models, recompute

    key = "n_layer" if models.config_of(name).model_type == "gpt2" else "num_hidden_layers"
    changes = {} if layers is None else {key: layers}
    module = models.causal_lm(name, getattr(torch, dtype), **changes)
    if again:
        recompute.checkpoint(module)
    ids = torch.empty(batch, seq, dtype=torch.int64, device="meta")
    if not train:
        return models.logits(module), (ids,), None
    step, weights = models.train_step(module)
    return step, (weights, ids), None


def _has_entry(script: Path, name: str) -> bool:
    import ast

    tree = ast.parse(script.read_text(), str(script))
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in tree.body)


def _entry(script: Path, name: str) -> tuple[Any, Sequence[Any], Any] | None:
    """What the script's function of that name returns; None if it has none."""
    if not _has_entry(script, name):
        return None
    import torch

    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    sys.path.insert(0, str(script.parent.resolve()))
    spec.loader.exec_module(module)
    with torch.device("meta"):
        found = getattr(module, name)()
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(
            f"{script}: {name}() returns (function or module, arguments) or (function or module, "
            f"arguments, keyword arguments), not {type(found).__name__}"
        )
    target, args, *rest = found
    return target, args, rest[0] if rest else None


def _run(
    script: Path,
    arguments: Sequence[str],
    topology: str,
    timeout: float,
    json_file: Path | None,
    cache: Path | None,
) -> None:
    """Runs a script, then compiles what it built; exits with 1 if something does not compile."""
    from torchtpu_core import aot as compiler
    from torchtpu_core.aot import record

    compiler.topology_of(topology)
    before, sys.argv = sys.argv, [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        with record.programs() as programs:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    if not programs:
        _fail(f"{script} ran no program on the device tpu")
    with _Progress(f"compiling for {topology}", len(programs)) as step:
        results = compiler.compile_many(programs, topology, timeout=timeout, done=step)
    table = _table("program", "estimate of FLOP", "bytes", "peak", "compiled in")
    failures = []
    for program, r in zip(programs, results):
        if isinstance(r, compiler.Compiled):
            table.add_row(
                program.name, f"{r.flops:.3g}", f"{r.bytes_accessed:.3g}", _gib(r.memory.peak),
                f"{r.compile_seconds:.2f} s",
            )  # fmt: skip
        else:
            failures.append((program, r))
            table.add_row(program.name, "fails", "", "", "")
    _print(table)
    if cache is not None:
        from torchtpu_core.cache import ProgramCache

        store = ProgramCache(cache, config.get("TORCHTPU_CACHE_SIZE"))
        for r in results:
            if isinstance(r, compiler.Compiled):
                store.put(r.cache_key, r.executable)
        _print(f"executables: {store.stats.puts} in {cache}, for hosts with {topology}")
    for program, error in failures:
        _print(f"{program.name}: {error}")
    if json_file is not None:
        entries = [
            r.summary() if isinstance(r, compiler.Compiled) else {"name": p.name, "error": str(r)}
            for p, r in zip(programs, results)
        ]
        json_file.write_text(json.dumps(entries, indent=1))
    _print(f"{len(programs) - len(failures)} of {len(programs)} programs compile for {topology}")
    if failures:
        raise typer.Exit(1)


# ---- output --------------------------------------------------------------------------------------


def _show(c: Any) -> None:
    from torchtpu_core.aot import report

    m, r = c.memory, c.roofline
    table = _table("", f"{c.name} on {c.topology.name}, each of {c.devices} device(s)")
    verdict = "fits" if m.fits else f"does not fit by {_gib(m.needed - m.available)}"
    for name, value in (
        ("memory", f"{_gib(m.needed)} of {_gib(m.available)}: {verdict}"),
        ("  arguments", _gib(m.arguments)),
        ("  outputs", f"{_gib(m.outputs)}, {_gib(m.aliased)} of them in donated arguments"),
        ("  temporaries", _gib(m.temporaries)),
        ("FLOP", f"{c.flops:.4g}"),
        ("bytes accessed", f"{c.bytes_accessed:.4g}"),
        ("compiler's estimate", f"{report.seconds(c.compiler_seconds)} without collectives"),
        ("roofline", f"{report.seconds(r.seconds)}, bound by {r.bound}"),
        ("collectives", f"{_gib(sum(x.sent for x in c.collectives))} sent a step"),
        ("compiled in", f"{c.compile_seconds:.1f} s"),
    ):
        table.add_row(name, value)
    _print(table)
    if c.collectives:
        table = _table("collective", "devices", "times", "sent", "op or input", "line")
        for (kind, group), (n, _, sent) in c.traffic.items():
            table.add_row(kind, str(group), str(n), _gib(sent), "all", "")
        for x in c.collectives[:8]:
            table.add_row(x.kind, str(x.group), str(x.count), _gib(x.sent), x.name, x.source)
        _print(table)
    table = _table("share", "op", "line", "HBM")
    for op in c.top_ops[:12]:
        share = f"{100 * op.cycles / max(c.analysis.cycles, 1):.1f} %"
        table.add_row(share, op.name or "(no location)", op.source, _gib(op.bytes))
    _print(table)


def _gib(n: float) -> str:
    from torchtpu_core.aot.api import gib

    return gib(n)


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(what: Any) -> None:
    from rich.console import Console

    Console(soft_wrap=not hasattr(what, "columns")).print(what, markup=False, highlight=False)


def _working(what: str) -> Any:
    from rich.console import Console

    return Console(stderr=True).status(what)


class _Progress:
    """A bar on stderr; the context's value is to be called once an item."""

    def __init__(self, what: str, total: int):
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True))
        self.task = self.bar.add_task(what, total=total)

    def __enter__(self) -> Any:
        self.bar.start()
        return lambda _: self.bar.advance(self.task)

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()


def _fail(error: object) -> Any:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(f"error: {error}", markup=False, highlight=False)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
