"""Does libtpu compile what we lower? `python -m tests.aot.sweep` asks for every lowering.

PyTorch's OpInfo samples (conformance's and the lowering tests' own source) are run on the CPU,
forward and backward; of each ATen operator with a registered lowering, the first call in each dtype
class is lowered and compiled for each chip. Verdicts are kept in a file, by program, chip and
libtpu, so that a run that was stopped goes on where it was. The report says which lowerings no
sample reaches.

    python -m tests.aot.sweep [--topologies v5e:1x1,v6e:1x1,tpu7x:1x1x1] [--only 'linalg.*']
                              [--report docs/reports/aot]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.lowering import harness
from tests.lowering.opinfo import record
from torchtpu_core import aot
from torchtpu_core.aot import pool
from torchtpu_core.aot.lower import Program
from torchtpu_core.lowering import registry

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
TOPOLOGIES = ("v5e:1x1", "v6e:1x1", "tpu7x:1x1x1")
_SAMPLES = 1
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """A lowering in a dtype class; `error`: why it has no program."""

    op: str
    dtype: str
    program: Program | None
    error: str = ""

    @property
    def key(self) -> str:
        """The identity of its program."""
        text = self.program.stablehlo if self.program else ""
        return hashlib.sha256(text.encode()).hexdigest()


def cases(
    only: str = ".*", dtypes: Iterable[torch.dtype] = DTYPES, entries: Iterable[Any] = op_db
) -> Iterator[Case]:
    """The first call of each lowering whose name matches, in each dtype class."""
    rules = registry.rules()
    seen: set[tuple[str, str]] = set()
    every = list(entries)
    for dtype in dtypes:
        for entry in every:
            for func, args, kwargs in _calls(entry, dtype):
                name = registry.name_of(func)
                kind = _class(args, kwargs, dtype)
                if name not in rules or not re.search(only, name) or (name, kind) in seen:
                    continue
                seen.add((name, kind))
                try:
                    text = harness.build(func, args, kwargs)[0]
                    yield Case(name, kind, Program(name, text, (), {}))
                except NotImplementedError as e:
                    yield Case(name, kind, None, f"not lowered: {_line(e)}")
                except Exception as e:
                    yield Case(name, kind, None, f"{type(e).__name__}: {_line(e)}")


def _calls(entry: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Any, Any]]:
    if dtype not in entry.dtypes:
        return
    backward = entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    samples = entry.sample_inputs("cpu", dtype, requires_grad=backward)
    while True:
        try:
            found = list(islice(samples, 1))
            if not found or _CONSUMED[entry.full_name, dtype] >= _SAMPLES:
                return
            _CONSUMED[entry.full_name, dtype] += 1
            calls = record(entry, found[0], backward, random=True)
        except Exception:  # what the CPU refuses is no sample
            continue
        yield from (c for c in calls if c[1] is not None)


_CONSUMED: Counter[tuple[str, torch.dtype]] = Counter()


def _class(args: Any, kwargs: Any, default: torch.dtype) -> str:
    """The dtype class of a call: that of its first tensor."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return str(leaf.dtype).removeprefix("torch.")
    return str(default).removeprefix("torch.")


def _line(e: BaseException) -> str:
    return " ".join(str(e).split())[:300]


class Verdicts:
    """What libtpu said about a program for a topology, in a file of JSON lines."""

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[str, str] = {}
        if path.is_file():
            for line in path.read_text().splitlines():
                key, verdict = json.loads(line)
                self.known[key] = verdict

    def put(self, key: str, verdict: str) -> None:
        """`verdict`: "" for a program that compiles, else the error."""
        self.known[key] = verdict
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as f:
            f.write(json.dumps([key, verdict]) + "\n")


def compile_all(
    found: Iterable[Case],
    topologies: Iterable[str],
    verdicts: Verdicts,
    timeout: float,
    until: float = math.inf,
) -> tuple[list[Case], dict[str, dict[int, str]]]:
    """Compiles cases as they come, and asks for no more `until` that time. (cases, by topology: the
    index of a case -> its verdict).
    """
    kept: list[Case] = []
    versions = {name: aot.topology_of(name).version for name in topologies}
    lock = threading.Lock()
    todo: list[tuple[str, Program, str]] = []

    def one(key: str, program: Program, name: str) -> None:
        if key in verdicts.known or time.monotonic() > until:
            return
        try:
            aot.compile_program(program, name, timeout=timeout, report=False)
            verdict = ""
        except aot.AotError as e:
            verdict = _reason(e)
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
            todo += [(f"{case.key} {n} {versions[n]}", case.program, n) for n in names[1:]]
            key = f"{case.key} {names[0]} {versions[names[0]]}"
            threads.submit(one, key, case.program, names[0])
            if time.monotonic() > until:
                break
        for job in sorted(todo, key=lambda j: names.index(j[2])):
            threads.submit(one, *job)
    results: dict[str, dict[int, str]] = {}
    for name in names:
        keys = {i: f"{c.key} {name} {versions[name]}" for i, c in enumerate(kept) if c.program}
        results[name] = {i: verdicts.known[k] for i, k in keys.items() if k in verdicts.known}
    return kept, results


def _reason(e: BaseException) -> str:
    # libtpu's verdict on the program, or the line it died with ("F" and a date)
    died = re.search(r"^F\d{4} .*(?:\n.*){0,3}", getattr(e, "log", ""), re.MULTILINE)
    text = " ".join(died[0].split())[:300] if died else _line(e)
    text = re.sub(r"^libtpu refuses \S+ for \S+: ", "", text)
    return f"{type(e).__name__}: {text}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--topologies", default=",".join(TOPOLOGIES))
    p.add_argument("--only", default=".*", help="a regular expression on operator names")
    p.add_argument("--timeout", type=float, default=300.0, help="seconds a program may take")
    p.add_argument("--minutes", type=float, default=math.inf, help="stop after that")
    p.add_argument("--verdicts", type=Path, default=_ROOT / "build" / "aot-sweep.jsonl")
    p.add_argument("--report", type=Path, help="write REPORT.json and REPORT.md")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    until = time.monotonic() + 60 * a.minutes
    names = a.topologies.split(",")
    found, results = compile_all(cases(a.only), names, Verdicts(a.verdicts), a.timeout, until)
    summary = summarise(found, results, a.only)
    print(markdown(summary))
    if a.report:
        a.report.parent.mkdir(parents=True, exist_ok=True)
        a.report.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
        a.report.with_suffix(".md").write_text(markdown(summary))


def summarise(
    found: list[Case], results: dict[str, dict[int, str]], only: str = ".*"
) -> dict[str, Any]:
    """Counts, failures and what no sample reached."""
    rules = [n for n in registry.rules() if re.search(only, n)]
    reached = {c.op for c in found if c.program}
    return {
        "lowerings": len(rules),
        "reached": len(reached),
        "programs": sum(c.program is not None for c in found),
        "by_topology": {
            name: {
                "compiled": sum(not v for v in verdicts.values()),
                "failures": [
                    {"op": found[i].op, "dtype": found[i].dtype, "reason": v}
                    for i, v in verdicts.items()
                    if v
                ],
            }
            for name, verdicts in results.items()
        },
        "not_lowered": [
            {"op": c.op, "dtype": c.dtype, "reason": c.error} for c in found if c.program is None
        ],
        "no_sample": sorted(set(rules) - {c.op for c in found}),
    }


def markdown(s: dict[str, Any]) -> str:
    """The report as people read it."""
    lines = [
        "# Lowerings compiled by libtpu",
        "",
        "`make aot` lowers one OpInfo call of each registered lowering in each dtype class "
        "(float32, bfloat16, int64, bool, complex64, and what backward passes and conversions "
        "bring) and compiles it for each chip. Nothing was run on a TPU.",
        "",
        f"{s['lowerings']} lowerings are registered, samples reach {s['reached']} of them, with "
        f"{s['programs']} programs.",
        "",
        "| topology | programs | compile | fail | |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, r in s["by_topology"].items():
        bad = len(r["failures"])
        total = _done(r)
        if not total:
            continue
        share = 100 * r["compiled"] / total if total else 0
        lines.append(f"| {name} | {total} | {r['compiled']} | {bad} | {share:.1f} % |")
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for name, r in s["by_topology"].items():
        for f in r["failures"]:
            grouped.setdefault((f["op"], f["dtype"], f["reason"]), []).append(name)
    short = [n for n, r in s["by_topology"].items() if _done(r) < s["programs"]]
    if short:
        lines += ["", f"Stopped by its time limit; programs are missing for {', '.join(short)}."]
    lines += ["", "## Failures", ""]
    if grouped:
        lines += ["| operator | dtype | topologies | reason |", "|---|---|---|---|"]
        lines += [
            f"| {op} | {dtype} | {', '.join(names)} | {_cell(reason)} |"
            for (op, dtype, reason), names in sorted(grouped.items())
        ]
    else:
        lines.append("None.")
    if s["not_lowered"]:
        lines += ["", "## No program", "", "| operator | dtype | reason |", "|---|---|---|"]
        lines += [f"| {x['op']} | {x['dtype']} | {_cell(x['reason'])} |" for x in s["not_lowered"]]
    if s["no_sample"]:
        lines += ["", "## Lowerings that no sample reaches", "", ", ".join(s["no_sample"])]
    return "\n".join(lines) + "\n"


def _done(r: dict[str, Any]) -> int:
    return r["compiled"] + len(r["failures"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
