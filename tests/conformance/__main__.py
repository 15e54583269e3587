"""The command line: `python -m tests.conformance` runs operators on a device, prints and keeps what
came of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.common.cache import use_test_cache
from tests.conformance import expected, report
from tests.conformance.check import Result
from tests.conformance.items import (
    DEFAULT_DTYPES,
    EXTENDED,
    FAST,
    VARIANTS,
    Item,
    dtype_named,
    select,
)
from tests.conformance.pool import run_items

_SAVE_SECONDS = 60.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _columns(dtypes: str, variants: str, samples: str) -> list[tuple[str, str, int | None]]:
    count = None if samples == "all" else int(samples)
    chosen = variants.split(",")
    for variant in chosen:
        if variant not in EXTENDED:
            raise typer.BadParameter(f"{variant!r} is not one of {', '.join(EXTENDED)}")
    for dtype in dtypes.split(","):
        try:
            dtype_named(dtype)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return [(variant, dtype, count) for variant in chosen for dtype in dtypes.split(",")]


def _check_device(device: str) -> None:
    try:
        torch.device(device)
    except RuntimeError as error:
        raise typer.BadParameter(f"no device {device!r}: {str(error).splitlines()[0]}") from None


@app.command()
def main(
    dtype: Annotated[str, typer.Option(help="Dtypes, with commas.")] = ",".join(DEFAULT_DTYPES),
    variant: Annotated[str, typer.Option(help="Variants, with commas.")] = ",".join(VARIANTS),
    ops: Annotated[str | None, typer.Option(help="Only operators that match this regex.")] = None,
    samples: Annotated[str, typer.Option(help="Samples per operator, or 'all'.")] = "4",
    fast: Annotated[bool, typer.Option("--fast", help="The subset of `make test`.")] = False,
    device: Annotated[str, typer.Option(help="The device under test.")] = "tpu",
    workers: Annotated[
        int, typer.Option("-j", min=1, help="Processes; 1 where a device has one owner (a TPU).")
    ] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds for one item.")] = 120.0,
    report_path: Annotated[
        Path | None, typer.Option("--report", help="JSON report to update with this run.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out what the report already has.")
    ] = False,
    summary: Annotated[
        Path | None, typer.Option(help="Markdown page to write from the report.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Report to compare with: exit code 1 on any change.")
    ] = None,
    load: Annotated[Path | None, typer.Option(help="Run nothing: print from this report.")] = None,
    top_failures: Annotated[int, typer.Option(help="How many causes to print.")] = 20,
    causes: Annotated[
        bool, typer.Option("--causes", help="Print every cause with all of its operators.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", help="Print each item that does not pass, with its sample.")
    ] = False,
    update_expected: Annotated[
        bool, typer.Option("--update-expected", help="Run the fast subset, write expected.json.")
    ] = False,
) -> None:
    """Run PyTorch's operator database on a device and compare with the CPU."""
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=120)
    if load is not None:
        _print(report.load(load), console, ops, causes, top_failures, verbose)
        return
    _check_device(device)
    if samples != "all" and not samples.isdigit():
        raise typer.BadParameter("--samples is a number or 'all'")
    fast = fast or update_expected
    items = select(FAST if fast else _columns(dtype, variant, samples), ops)
    if not items:
        raise typer.BadParameter("no operator matches")

    use_test_cache()
    before = report.load(baseline) if baseline is not None else None
    ran = report.Report()
    kept = ran
    if report_path is not None:
        kept = report.load(report_path)
        kept.info = ran.info
        if resume:
            items = [i for i in items if i.key not in kept.results.get(i.op, {})]
    _run(items, device, workers, timeout, [ran, kept], report_path, console)
    _print(ran, console, None, causes, top_failures, verbose)
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(report.markdown(kept))
    if update_expected:
        results = {item.name: ran.results[item.op][item.key] for item in items}
        groups = expected.updated(expected.load(), results)
        expected.save(groups)
        console.print(f"expected.json: {sum(len(g.items) for g in groups)} known failures")
    if before is not None and _print_changes(before, ran, console):
        raise typer.Exit(1)


def _run(
    items: list[Item],
    device: str,
    workers: int,
    timeout: float,
    reports: list[report.Report],
    path: Path | None,
    console: Console,
) -> None:
    """Run the items; the last of the reports is kept in the file as it grows, so that a run that is
    cut short can be resumed.
    """
    saved = time.monotonic()
    counts = {"pass": 0, "skip": 0, "bad": 0}
    progress = Progress(
        TextColumn("{task.fields[op]:<40.40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("", total=len(items), op="starting", counts="")

        def hear(item: Item, result: Result) -> None:
            nonlocal saved
            for one in reports:
                one.add(item, result)
            if path is not None and time.monotonic() - saved > _SAVE_SECONDS:
                report.save(reports[-1], path)
                saved = time.monotonic()
            counts[result.status if result.status in counts else "bad"] += 1
            text = f"{counts['pass']} pass, {counts['bad']} do not, {counts['skip']} skipped"
            progress.update(task, advance=1, op=item.name, counts=text)
            done = sum(counts.values())
            if not console.is_terminal and done * 20 // len(items) > (done - 1) * 20 // len(items):
                console.print(f"{done}/{len(items)} {text}", markup=False, highlight=False)

        run_items(
            items,
            device,
            workers=workers,
            timeout=timeout,
            on_result=hear,
            on_info=reports[0].info.update,
        )
    if path is not None:
        report.save(reports[-1], path)


def _print(
    shown: report.Report,
    console: Console,
    ops: str | None,
    causes: bool,
    top_failures: int,
    verbose: bool,
) -> None:
    if ops is not None:
        names = {item.op for item in select([("forward", d, None) for d in DEFAULT_DTYPES], ops)}
        kept = {op: columns for op, columns in shown.results.items() if op in names}
        shown = report.Report(shown.info, kept)
    if verbose:
        for op, key, result in shown.items():
            if result.status not in ("pass", "skip"):
                console.print(
                    f"{op}[{key}] {result.status}: {result.cause}\n    {result.detail}",
                    markup=False,
                    highlight=False,
                )
    report.print_causes(shown, console, limit=None if causes else top_failures, ops=causes)
    report.print_summary(shown, console)


def _print_changes(before: report.Report, ran: report.Report, console: Console) -> bool:
    """Print what passes now and did not, and the reverse; says whether anything changed."""
    changes = []
    for op, key, result in ran.items():
        old = before.results.get(op, {}).get(key)
        if old is None or (old.status in ("pass", "skip")) == (result.status in ("pass", "skip")):
            continue
        changes.append(f"{op}[{key}]: {old.status} -> {result.status} {result.cause}")
    for change in changes:
        console.print(change, markup=False, highlight=False)
    console.print(f"{len(changes)} changes against the baseline")
    return bool(changes)


if __name__ == "__main__":
    app(prog_name="python -m tests.conformance")
