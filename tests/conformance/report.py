"""Results as a file and as text: the JSON report, the tables, and the grouping of failures by
cause.

The JSON holds one operator a line, in the database's order, so that two reports can be compared
with diff. A report is updated, not replaced: items that a run did not cover keep what an earlier
run said of them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.conformance import known
from tests.conformance.check import STATUSES, Result
from tests.conformance.items import EXTENDED, Item, operators

_BAD = ("fail", "unsupported", "crash", "timeout")
_SEPARATOR = " | "


@dataclass
class Report:
    """Results by operator and column (`variant/dtype`), and what they come from."""

    info: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    #: samples an operator, by column: "all", a number, or what was mixed, with commas
    samples: dict[str, str] = field(default_factory=dict)

    def add(self, item: Item, result: Result) -> None:
        """Take in one result, in place of an earlier one for the same item."""
        self.results.setdefault(item.op, {})[item.key] = result
        ran = "all" if item.samples is None else str(item.samples)
        taken = self.samples.setdefault(item.key, ran).split(", ")
        if ran not in taken:
            self.samples[item.key] = ", ".join([*taken, ran])

    def items(self) -> Iterable[tuple[str, str, Result]]:
        """(operator, column, result) in the database's order."""
        for op in operators():
            columns = self.results.get(op, {})
            for key in sorted(columns, key=column_order):
                yield op, key, columns[key]

    def columns(self) -> list[str]:
        """The columns that have a result, in the order of tables."""
        return sorted({key for _, key, _ in self.items()}, key=column_order)

    def counts(self) -> dict[str, Counter[str]]:
        """How many items have which status, by column."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for _, key, result in self.items():
            counts[key][result.status] += 1
        return {key: counts[key] for key in self.columns()}

    def causes(self) -> list[Cause]:
        """Causes of what does not pass, those that stop most operators first."""
        found: dict[tuple[str, str], Cause] = {}
        for op, key, result in self.items():
            if result.status in _BAD:
                cause = found.setdefault(
                    (result.status, result.cause), Cause(result.status, result.cause)
                )
                cause.where[op].append(key)
                cause.example = cause.example or f"{op}[{key}]: {result.detail}"
        return sorted(found.values(), key=lambda c: (-len(c.where), -c.items, c.status, c.cause))


@dataclass
class Cause:
    """One reason for which items do not pass, with the operators it stops."""

    status: str
    cause: str
    where: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    example: str = ""

    @property
    def items(self) -> int:
        """How many items it stops."""
        return sum(len(keys) for keys in self.where.values())

    @property
    def title(self) -> str:
        """Status and cause in one line."""
        return f"{self.status}: {self.cause}"


def column_order(key: str) -> tuple[int, int, str]:
    """Sorts columns by variant, then by dtype as the defaults are listed."""
    variant, _, dtype = key.partition("/")
    first = ["float32", "bfloat16", "int64", "bool"]
    return (EXTENDED.index(variant), first.index(dtype) if dtype in first else len(first), dtype)


def pass_rate(counts: Mapping[str, int]) -> float:
    """Passes among the items that the CPU can run, in percent."""
    ran = sum(counts[status] for status in STATUSES if status != "skip")
    return 100.0 * counts["pass"] / ran if ran else 0.0


def load(path: Path) -> Report:
    """The report in a file; an empty one where there is none."""
    if not path.exists():
        return Report()
    data = json.loads(path.read_text())
    report = Report(info=data["info"], samples=data["info"].pop("samples"))
    for op, statuses in data["results"].items():
        strides = statuses.pop("strides", {})
        for status, keys in statuses.items():
            for key in keys:
                cause, _, detail = (
                    keys[key].partition(_SEPARATOR) if isinstance(keys, dict) else ("", "", "")
                )
                result = Result(status, cause, detail, strides=strides.get(key, 0))
                report.results.setdefault(op, {})[key] = result
    return report


def save(report: Report, path: Path) -> None:
    """Write the report, one operator a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    by_op: dict[str, dict[str, dict[str, Result]]] = defaultdict(lambda: defaultdict(dict))
    for op, key, result in report.items():
        by_op[op][result.status][key] = result
    lines = []
    for op, statuses in by_op.items():
        entry: dict[str, object] = {}
        for status in STATUSES:
            found = statuses.get(status)
            if found and status in _BAD:
                entry[status] = {
                    k: f"{r.cause}{_SEPARATOR}{r.detail}"[:300] for k, r in found.items()
                }
            elif found:
                entry[status] = list(found)
        strides = {
            k: r.strides for found in statuses.values() for k, r in found.items() if r.strides
        }
        if strides:
            entry["strides"] = strides
        lines.append(f"{json.dumps(op)}: {json.dumps(entry)}")
    info = {**report.info, "samples": report.samples, "date": date.today().isoformat()}
    text = f'{{"info": {json.dumps(info)},\n"results": {{\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text)


def summary_rows(report: Report) -> list[list[str]]:
    """The table of counts, one row a column of the report."""
    rows = []
    for key, counts in report.counts().items():
        variant, _, dtype = key.partition("/")
        numbers = [str(counts[status]) for status in STATUSES]
        taken = report.samples.get(key, "")
        rows.append([variant, dtype, taken, *numbers, f"{pass_rate(counts):.1f} %"])
    return rows


_HEADER = ["variant", "dtype", "samples", *STATUSES, "pass rate"]


def print_summary(report: Report, console: Console) -> None:
    """The table of counts, and how often strides differ from the CPU's."""
    table = Table(*_HEADER, title=f"OpInfo on {report.info.get('name', 'the device')}")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in summary_rows(report):
        table.add_row(*row)
    console.print(table)
    differing = [f"{op}[{key}]" for op, key, r in report.items() if r.strides]
    if differing:
        console.print(
            f"strides unlike the CPU's in {len(differing)} items: {', '.join(differing[:5])} ...",
            markup=False,
        )


def print_causes(report: Report, console: Console, *, limit: int | None, ops: bool) -> None:
    """Causes with how many operators and items each stops; with `ops`, all of their names and an
    example.
    """
    causes = report.causes()
    if not causes:
        console.print("nothing fails")
        return
    console.print(f"{len(causes)} causes; operators, items, cause:", style="bold")
    for cause in causes[:limit]:
        names = _names(cause, None if ops else 6)
        console.print(
            f"{len(cause.where):4} {cause.items:5}  {cause.title}", markup=False, highlight=False
        )
        console.print(f"            {names}", markup=False, highlight=False, style="dim")
        if ops:
            console.print(
                f"            e.g. {cause.example}", markup=False, highlight=False, style="dim"
            )
    if limit is not None and len(causes) > limit:
        console.print(f"... and {len(causes) - limit} causes more")


def _names(cause: Cause, limit: int | None) -> str:
    names = list(cause.where)
    text = ", ".join(names[:limit])
    return text if limit is None or len(names) <= limit else f"{text}, ..."


def markdown(report: Report) -> str:
    """The report as a readable page."""
    info = report.info
    lines = [
        "# OpInfo",
        "",
        "PyTorch's own operator database, run on the device and compared with the CPU. Made by",
        "`python -m tests.conformance --report ... --summary ...`; the JSON has every item.",
        "",
        f"torch {info.get('torch', '?')}, device {info.get('device', '?')} "
        f"({info.get('name', '?')}), "
        f"{info.get('date', date.today().isoformat())}.",
        "",
        "`samples`: how many of the database an item ran. `skip`: the CPU cannot run it either;",
        "not counted in the pass rate.",
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|---|---|" + "--:|" * (len(_HEADER) - 2),
    ]
    lines += ["| " + " | ".join(row) + " |" for row in summary_rows(report)]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for op, key, result in report.items():
        if result.status in _BAD:
            name = f"{op}[{key}]"
            by_reason[known.reason(name, result.cause) or f"unknown: {result.cause}"].append(name)
    if by_reason:
        lines += ["", "## What does not pass, and why", ""]
    for why, names in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        lines += [f"- {why}:", f"  {', '.join(f'`{name}`' for name in names)}"]
    return "\n".join(lines) + "\n"
