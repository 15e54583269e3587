"""Writes docs/ops.md: every ATen operator of this PyTorch by status, from the registries that
dispatch it, with the dtypes that passed in docs/reports/opinfo.json.

    python scripts/ops_page.py           write the page
    python scripts/ops_page.py --check   exit with 1 where it is stale
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

from torchtpu_core.lowering import status

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ops.md"
REPORT = ROOT / "docs" / "reports" / "opinfo.json"

_SHORT = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
    "complex64": "c64",
    "complex128": "c128",
}


def _tested_dtypes() -> dict[str, list[str]]:
    """ATen operator without overload -> dtypes in which OpInfo's forward samples passed."""
    results = json.loads(REPORT.read_text())["results"]
    passed: dict[str, set[str]] = defaultdict(set)
    for op in op_db:
        names = {op.aten_name, op.name, *(alias.name for alias in op.aliases)}
        columns = results.get(op.full_name, {}).get("pass", ())
        for column in columns:
            variant, dtype = column.split("/")
            if variant == "forward":
                for name in names:
                    passed[name.replace("nn.functional.", "").replace(".", "_")].add(dtype)
    order = list(_SHORT)
    return {
        name: [_SHORT[d] for d in sorted(dtypes & set(order), key=order.index)]
        for name, dtypes in passed.items()
    }


def page() -> str:
    """The page's text."""
    rows: dict[str, dict[status.Status, list[str]]] = defaultdict(lambda: defaultdict(list))
    count: Counter[str] = Counter()
    for full in status.operators():
        base, _, overload = full.removeprefix("aten::").partition(".")
        how = status.status(full)
        count[how.kind] += 1
        rows[base][how].append(overload)
    dtypes = _tested_dtypes()
    lines = [
        "# ATen operators on `tpu`",
        "",
        "Made by `python scripts/ops_page.py` from the registries that dispatch the operators; a",
        "test fails when this page is stale. An in-place or `out=` overload runs as its functional",
        "one does.",
        "",
        f"PyTorch {torch.__version__.split('+')[0]}: {len(rows)} operators, "
        f"{sum(count.values())} overloads.",
        "",
        "| status | overloads | meaning |",
        "|---|--:|---|",
    ]
    lines += [f"| {k} | {count[k]} | {text} |" for k, text in status.MEANINGS.items() if count[k]]
    lines += [
        "",
        "dtypes: those in which the operator's samples in PyTorch's OpInfo database passed on the "
        "device",
        "(`docs/reports/opinfo.json`); `-` where OpInfo has no entry of the name. Operators take",
        "the other dtypes that they take on the CPU as well.",
        "",
        "| operator | status | dtypes |",
        "|---|---|---|",
    ]
    for base in sorted(rows):
        lines.append(f"| `{base}` | {_shown(rows[base])} | {_dtypes(dtypes, base)} |")
    return "\n".join(lines) + "\n"


def _dtypes(dtypes: dict[str, list[str]], base: str) -> str:
    names = (base, base.rstrip("_"), base.lstrip("_").rstrip("_"))
    return next((" ".join(dtypes[n]) for n in names if dtypes.get(n)), "-")


def _shown(statuses: dict[status.Status, list[str]]) -> str:
    """One status for all overloads, or each with its overloads."""
    parts = []
    for how, overloads in sorted(statuses.items()):
        text = f"{how.kind}: {how.reason}" if how.reason else how.kind
        if len(statuses) > 1:
            names = ", ".join(f"`{o or 'default'}`" for o in sorted(overloads))
            text += f" ({names})"
        parts.append(text)
    return "; ".join(parts)


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/ops.md is stale: run python scripts/ops_page.py")
        return
    PAGE.write_text(text)
    print(f"{PAGE.relative_to(ROOT)}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
