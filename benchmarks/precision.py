"""Errors of the precision modes: matrix products of several sizes and conditions against float64.

The products are A B with A of a given condition and B its inverse, so that the result is of size 1
while the terms that cancel in it grow with the condition. A TPU's numerics are emulated on XLA's
CPU plugin; on a TPU they are the device's own. `--report` also writes docs/reports/precision.md
and precision.svg.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import _measure

MODES = ("default", "high", "highest")
COLUMNS = (*MODES, "f32")
SIZES = (64, 256, 1024)
CONDITIONS = (1, 10, 100, 1000, 10000)
REPORT = _measure.ROOT / "docs" / "reports" / "precision.md"
COMMAND = "python -m benchmarks.precision --report"


def operands(size: int, condition: float) -> tuple[Any, Any]:
    """A and B in float32: A = U S V' with singular values from 1 down to 1/condition, B near
    V S^-1 U'.
    """
    import torch

    generator = torch.Generator().manual_seed(size)
    u, v = (
        torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))[0]
        for _ in range(2)
    )
    s = torch.logspace(0, -torch.tensor(condition).log10(), size, dtype=torch.float64)
    return (u * s @ v.T).float(), (v / s @ u.T).float()


def errors(size: int, condition: float) -> dict[str, float]:
    """The relative error of each mode, and of f32 on the CPU, in the Frobenius norm: of the float32
    operands' product, so that their own rounding does not count.
    """
    import torch

    a, b = operands(size, condition)
    exact = a.double() @ b.double()

    def error(product: Any) -> float:
        return float((product.cpu().double() - exact).norm() / exact.norm())

    figures = {}
    with torch.tpu.emulate_precision():
        for mode in MODES:
            with torch.tpu.precision(mode):
                figures[mode] = error(a.to("tpu") @ b.to("tpu"))
    figures["f32"] = error(a @ b)
    return figures


def plot(figures: dict[str, dict[str, float]], path: Path) -> None:
    """Error over condition, one line a mode and size."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "precision"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for i, column in enumerate(COLUMNS):
        for size, style in zip(SIZES, (":", "--", "-")):
            values = [figures[f"{size} x {size}, {c}"][column] for c in CONDITIONS]
            label = f"{column}" if size == SIZES[-1] else None
            axes.loglog(CONDITIONS, values, style, marker=".", color=f"C{i}", label=label)
    for power in (8, 16, 24):
        axes.axhline(2.0**-power, color="0.8", linewidth=0.8, zorder=0)
        axes.text(CONDITIONS[-1], 2.0**-power, f" 2^-{power}", color="0.5", va="bottom")
    axes.set_xlabel("condition of A in A A⁻¹")
    axes.set_ylabel("relative error against float64")
    sizes = ", ".join(f"{s} ({n})" for s, n in zip(SIZES, ("dotted", "dashed", "solid")))
    axes.set_title(f"Products of float32 by precision mode; sizes {sizes}", fontsize=10)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def report(figures: dict[str, dict[str, float]]) -> None:
    """The table and the plot as files."""
    lines = [
        "# Errors of the precision modes",
        "",
        "Relative error (Frobenius norm, against float64) of A B for A of the condition given and",
        "B its inverse, both float32. A TPU's products are emulated on XLA's CPU plugin; `f32` is",
        f"PyTorch's product on the CPU. Made by `{COMMAND}`.",
        "",
        f"| size, condition | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(
            f"| {name} | {' | '.join(f'{row[c]:.1e}' for c in COLUMNS)} |"
            for name, row in figures.items()
        ),
        "",
        "![error over condition, by mode](precision.svg)",
        "",
        f"Measured with: {_measure.machine().split(', load')[0]}.",
    ]
    REPORT.write_text("\n".join(lines) + "\n")
    plot(figures, REPORT.with_suffix(".svg"))


def main() -> int:
    """Measure, print, and write the report where it is asked for."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.name} and its plot")
    args = parser.parse_args()
    reason = _measure.missing("tpu")
    if reason is not None:
        print(f"tpu is left out: {reason}")
        return 1
    import torch  # noqa: F401 - registers the device

    figures = {f"{n} x {n}, {c}": errors(n, c) for n in SIZES for c in CONDITIONS}
    rows = [[name, *(f"{row[c]:.1e}" for c in COLUMNS)] for name, row in figures.items()]
    note = "Relative errors against float64; f32 is PyTorch's product on the CPU."
    _measure.table("Precision modes", ["size, condition", *COLUMNS], rows, note)
    _measure.save(args.json, "precision", figures)
    if args.report:
        report(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
