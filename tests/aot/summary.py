"""What a sweep found, as numbers and as a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.aot import samples
from tests.aot.cases import Case
from torchtpu_core.aot.api import gib
from torchtpu_core.lowering import registry


@dataclass(frozen=True)
class Verdict:
    """libtpu's, on one program for one topology. error: "" where it compiles; then also seconds of
    compilation, the peak of memory in bytes, and floating-point operations.
    """

    error: str = ""
    seconds: float = 0.0
    peak: int = 0
    flops: float = 0.0


#: by topology: the index of a case -> its verdict
Results = dict[str, dict[int, Verdict]]


def summarise(
    found: list[Case],
    results: Results,
    graphs: Iterable[int] = (),
    only: str = ".*",
    stopped: bool = False,
) -> dict[str, Any]:
    """Counts, failures and what became of each lowering. `graphs`: the indices of those cases that
    are whole graphs; `stopped`: there would have been more cases.
    """
    whole = set(graphs)
    rules = sorted(n for n in registry.rules() if re.search(only, n))
    ops = {c.op for i, c in enumerate(found) if i not in whole and c.program}
    fates = {n: _fate(n, n in ops) for n in rules}
    return {
        "lowerings": len(rules),
        "stopped": stopped,
        "fates": dict(Counter(fates.values())),
        "no_sample": {
            n: samples.REASONS.get(n, "no call was found that PyTorch accepts")
            for n, fate in fates.items()
            if fate == "without a call" and not stopped
        },
        "programs": sum(c.program is not None and i not in whole for i, c in enumerate(found)),
        "by_topology": {
            name: {
                "compiled": sum(not v.error and i not in whole for i, v in verdicts.items()),
                "failures": [
                    {"op": found[i].op, "dtype": found[i].dtype, "reason": v.error}
                    for i, v in verdicts.items()
                    if v.error and i not in whole
                ],
            }
            for name, verdicts in results.items()
        },
        "graphs": [
            {
                "graph": found[i].op,
                "error": found[i].error,
                **{name: vars(v[i]) for name, v in results.items() if i in v},
            }
            for i in sorted(whole)
        ],
        "not_lowered": [
            {"op": c.op, "dtype": c.dtype, "reason": c.error}
            for i, c in enumerate(found)
            if c.program is None and i not in whole
        ],
    }


def _fate(name: str, reached: bool) -> str:
    if reached:
        return "a program"
    op = samples.operator(name)
    if samples.is_view(op):
        return "a view"
    return "an allocation" if samples.allocates(op) else "without a call"


def markdown(s: dict[str, Any]) -> str:
    """The report as people read it: verdicts first, lists last."""
    fates = s["fates"]
    lines = [
        "# What libtpu compiles",
        "",
        "`make aot` lowers one call of each registered lowering in each dtype class (float32, "
        "bfloat16, int64, bool, complex64, and what backward passes and conversions bring) and "
        "the graphs of the benchmark models and examples, and compiles each for each chip. "
        "Nothing was run on a TPU.",
        "",
        "## Lowerings",
        "",
        f"{s['lowerings']} are registered: {fates.get('a program', 0)} have programs "
        f"({s['programs']} in all), {fates.get('a view', 0)} are views and "
        f"{fates.get('an allocation', 0)} allocations, which launch no program in eager mode, "
        f"{fates.get('without a call', 0)} "
        + ("were not come to." if s["stopped"] else "cannot be called."),
        "",
        "| topology | programs | compile | fail | |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, r in s["by_topology"].items():
        if total := _done(r):
            share = 100 * r["compiled"] / total
            bad = len(r["failures"])
            lines.append(f"| {name} | {total} | {r['compiled']} | {bad} | {share:.1f} % |")
    short = [n for n, r in s["by_topology"].items() if s["stopped"] or _done(r) < s["programs"]]
    if short:
        lines += ["", f"Stopped by its time limit; programs are missing for {', '.join(short)}."]
    lines += _graphs(s["graphs"], list(s["by_topology"]))
    lines += ["", "## Failures", ""]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for name, r in s["by_topology"].items():
        for f in r["failures"]:
            grouped.setdefault((f["op"], f["dtype"], f["reason"]), []).append(name)
    lines += _table(
        ("operator", "dtype", "topologies", "reason"),
        [
            (op, dtype, ", ".join(names), reason)
            for (op, dtype, reason), names in sorted(grouped.items())
        ],
    )
    if s["no_sample"]:
        lines += ["", "## Lowerings that cannot be called", ""]
        lines += _table(("operator", "reason"), sorted(s["no_sample"].items()))
    if s["not_lowered"]:
        lines += ["", "## Calls without a program", ""]
        rows = [(x["op"], x["dtype"], x["reason"]) for x in s["not_lowered"]]
        lines += _table(("operator", "dtype", "reason"), rows)
    return "\n".join(lines) + "\n"


def _graphs(graphs: list[dict[str, Any]], names: list[str]) -> list[str]:
    if not graphs:
        return []
    rows = []
    for g in graphs:
        for name in names:
            if g["error"] or name not in g:
                continue
            v = g[name]
            figures = (f"{v['seconds']:.1f} s", gib(v["peak"]), f"{v['flops'] / 1e9:.3g} GFLOP")
            rows.append((g["graph"], name, *(figures if not v["error"] else (v["error"], "", ""))))
        if g["error"]:
            rows.append((g["graph"], "", g["error"], "", ""))
    head = ("graph", "topology", "compiles in", "peak memory", "operations")
    note = "Compile times are of this machine, two compilers at a time."
    return ["", "## Graphs", "", note, "", *_table(head, rows)]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    body = ["| " + " | ".join(_cell(x) for x in row) + " |" for row in rows]
    if not body:
        return ["None."]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]


def _done(r: dict[str, Any]) -> int:
    return r["compiled"] + len(r["failures"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
