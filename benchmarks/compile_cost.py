"""What it costs to meet an operator for the first time: seconds in XLA's compiler and in the
lowering, for every operator of PyTorch's OpInfo database, forward and backward, with no programs
on disk.
"""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from typing import NamedTuple

# Nothing may come from disk; read when the first program is built.
os.environ["TORCHTPU_CACHE_SIZE"] = "0"

import torch

import torchtpu_core
from benchmarks import _measure
from tests.conformance import samples
from tests.conformance.items import operators
from tests.conformance.samples import map_tensors

#: the median operator compiles in at most this, and no sample takes more than that
TARGET_MEDIAN, TARGET_MOST = 0.050, 5.0
SLOWEST = 10


class Cost(NamedTuple):
    """One sample of an operator: programs, seconds in the compiler, seconds of the whole call."""

    name: str
    programs: int
    compiling: float
    call: float


def _backward(out: object) -> None:
    tensors: list[torch.Tensor] = []
    map_tensors(out, lambda t: (tensors.append(t), t)[1])
    wanted = [t for t in tensors if t.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(t) for t in wanted])


def _cost(name: str, op: object, sample: samples.Sample) -> Cost | None:
    def move(t: torch.Tensor) -> torch.Tensor:
        return t.detach().to("tpu").requires_grad_(t.requires_grad)

    moved = sample.mapped(lambda value: map_tensors(value, move))
    torch.tpu.synchronize()
    before, start = torchtpu_core.stats(), time.perf_counter()
    try:
        _backward(op(*moved.args, **moved.kwargs))
        torch.tpu.synchronize()
    except Exception:
        return None  # what an operator refuses is the conformance run's matter
    call = time.perf_counter() - start
    after = torchtpu_core.stats()
    programs, seconds = (after[k] - before[k] for k in ("programs_compiled", "compile_seconds"))
    return Cost(name, programs, seconds, call)


def main() -> int:
    """Measure, print the median and the slowest."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--samples", default="2", help="samples an operator, or 'all'")
    parser.add_argument("--ops", default="", help="only operators that match this regex")
    args = parser.parse_args()
    limit = None if args.samples == "all" else int(args.samples)
    costs: list[Cost] = []
    warnings.simplefilter("ignore")  # of deprecated operators
    for name, op in operators().items():
        if not re.search(args.ops, name) or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for sample in samples.draw(op, torch.float32, limit, requires_grad=op.supports_autograd):
            cost = _cost(name, op, sample)
            if cost is not None and cost.programs:
                costs.append(cost)
    median = _measure.median([c.compiling / c.programs for c in costs])
    slowest = sorted(costs, key=lambda c: -c.compiling)[:SLOWEST]
    rows = [
        [c.name, str(c.programs), f"{c.compiling * 1e3:.0f} ms", f"{c.call * 1e3:.0f} ms"]
        for c in slowest
    ]
    title = f"Ten slowest of {len(costs)} samples (float32, forward and backward, nothing on disk)"
    lowering = _measure.median([(c.call - c.compiling) / c.programs for c in costs])
    note = (
        f"median program: {median * 1e3:.1f} ms in the compiler (target {TARGET_MEDIAN * 1e3:.0f}),"
        f" {lowering * 1e3:.1f} ms around it; slowest sample {slowest[0].compiling:.2f} s in the"
        f" compiler (target {TARGET_MOST:.0f})"
    )
    _measure.table(title, ["operator", "programs", "compiling", "whole call"], rows, note)
    _measure.save(args.json, "compile_cost", [c._asdict() for c in costs])
    return 0 if median <= TARGET_MEDIAN and slowest[0].compiling <= TARGET_MOST else 1


if __name__ == "__main__":
    sys.exit(main())
