"""Does libtpu compile what we lower? `python -m tests.aot.sweep` asks for every lowering, and for
the graphs of models and examples.

PyTorch's OpInfo samples (conformance's and the lowering tests' own source) are run on the CPU,
forward and backward; of each ATen operator with a registered lowering, the first call in each dtype
class is lowered as the dispatcher would and compiled for each chip. What no sample reaches gets
arguments made from its schema (samples.py). Verdicts are kept in a file, by program, chip and
libtpu, so that a run that was stopped goes on where it was.

    python -m tests.aot.sweep [--topologies v5e:1x1,v6e:1x1,tpu7x:1x1x1] [--only 'linalg.*']
                              [--minutes 30] [--report docs/reports/aot]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tests.aot import graphs
from tests.aot.cases import Case, cases, unreached
from tests.aot.summary import Results, Verdict, markdown, summarise
from torchtpu_core import aot
from torchtpu_core.aot import pool
from torchtpu_core.aot.lower import Program

TOPOLOGIES = ("v5e:1x1", "v6e:1x1", "tpu7x:1x1x1")
_ROOT = Path(__file__).resolve().parents[2]


class Verdicts:
    """What libtpu said about a program for a topology, in a file of JSON lines."""

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[str, Verdict] = {}
        if path.is_file():
            for line in path.read_text().splitlines():
                key, verdict = json.loads(line)
                self.known[key] = Verdict(**verdict)

    def put(self, key: str, verdict: Verdict) -> None:
        """Keeps a verdict; that time ran out says something about this run only."""
        self.known[key] = verdict
        if verdict.error.startswith(aot.CompileTimeout.__name__):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as f:
            f.write(json.dumps([key, vars(verdict)]) + "\n")


def compile_all(
    found: Iterable[Case],
    topologies: Iterable[str],
    verdicts: Verdicts,
    timeout: float,
    until: float = math.inf,
) -> tuple[list[Case], Results]:
    """Compiles cases as they come, and asks for no more `until` that time."""
    kept: list[Case] = []
    versions = {name: aot.topology_of(name).version for name in topologies}
    lock = threading.Lock()

    def one(key: str, program: Program, name: str) -> None:
        if key in verdicts.known or time.monotonic() > until:
            return
        try:
            c = aot.compile_program(program, name, timeout=timeout, report=False)
            verdict = Verdict("", c.compile_seconds, c.memory.needed, c.flops)
        except aot.AotError as e:
            verdict = Verdict(_reason(e))
        with lock:
            verdicts.put(key, verdict)

    names = list(versions)
    with (
        Progress("{task.description} {task.completed}", console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(pool.max_workers()) as threads,
    ):
        lowered = bar.add_task("programs", total=None)
        for case in found:
            kept.append(case)
            bar.advance(lowered)
            if case.program is None:
                continue
            for name in names:
                key = f"{case.key} {name} {versions[name]}"
                threads.submit(one, key, case.program, name)
            if time.monotonic() > until:
                break
    results: Results = {}
    for name in names:
        keys = {i: f"{c.key} {name} {versions[name]}" for i, c in enumerate(kept) if c.program}
        results[name] = {i: verdicts.known[k] for i, k in keys.items() if k in verdicts.known}
    return kept, results


def _reason(e: BaseException) -> str:
    # libtpu's verdict on the program, or the line it died with ("F" and a date)
    died = re.search(r"^F\d{4} .*(?:\n.*){0,3}", getattr(e, "log", ""), re.MULTILINE)
    text = " ".join((died[0] if died else str(e)).split())[:300]
    text = re.sub(r"^libtpu refuses \S+ for \S+: ", "", text)
    return f"{type(e).__name__}: {text}"


def main() -> None:
    """Runs the sweep and prints the report."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--topologies", default=",".join(TOPOLOGIES))
    p.add_argument("--only", default=".*", help="a regular expression on operator and graph names")
    p.add_argument("--timeout", type=float, default=900.0, help="seconds a program may take")
    p.add_argument("--minutes", type=float, default=math.inf, help="stop after that")
    p.add_argument("--verdicts", type=Path, default=_ROOT / "build" / "aot-sweep.jsonl")
    p.add_argument("--report", type=Path, help="write REPORT.json and REPORT.md")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    until = time.monotonic() + 60 * a.minutes
    whole: list[int] = []
    complete = False

    def everything() -> Iterator[Case]:
        nonlocal complete
        ops: list[str] = []
        for case in cases(a.only):
            ops.append(case.op)
            yield case
        for case in unreached(ops, a.only):
            ops.append(case.op)
            yield case
        for i, case in enumerate(graphs.cases(a.only)):
            whole.append(len(ops) + i)
            yield case
        complete = True

    found, results = compile_all(
        everything(), a.topologies.split(","), Verdicts(a.verdicts), a.timeout, until
    )
    summary: dict[str, Any] = summarise(found, results, whole, a.only, not complete)
    print(markdown(summary))
    if a.report:
        a.report.parent.mkdir(parents=True, exist_ok=True)
        a.report.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
        a.report.with_suffix(".md").write_text(markdown(summary))


if __name__ == "__main__":
    main()
