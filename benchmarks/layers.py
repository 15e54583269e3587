"""Layers once: what compiling a model of N identical transformer blocks costs, with the blocks as
one function and with each block lowered by itself; forward and backward, nothing cached.

`--report FILE` also writes the table as Markdown.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import _measure

COUNTS = (4, 16, 64)
WIDTH, HEADS, BATCH, LENGTH = 64, 4, 2, 32
COLUMNS = ("lowering", "XLA", "the rest", "in all", "ops in the programs")


def _blocks(n: int) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for y in self.qkv(self.norm1(x)).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(-2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(n)))


def measure(n: int, shared: bool) -> dict[str, float]:
    """CPU seconds that the first forward and backward of `n` blocks take, by what they are spent
    on; and how many StableHLO ops the programs have. What XLA takes is measured on the programs by
    themselves, afterwards.
    """
    import torch

    from torchtpu_core import _C, plugin
    from torchtpu_core.compile import graph_program, layers

    spent = 0.0
    texts: list[str] = []
    share, build = layers.share, graph_program.GraphProgram.build

    def timed_share(gm: Any) -> Any:
        nonlocal spent
        start = time.process_time()
        gm = share(gm) if shared else gm
        spent += time.process_time() - start
        return gm

    def timed_build(self: Any, args: Any) -> Any:
        nonlocal spent
        start = time.process_time()
        plan = build(self, args)
        spent += time.process_time() - start
        texts.append(plan.text)
        return plan

    def step(model: Any) -> None:
        x = torch.ones(BATCH, LENGTH, WIDTH, device="tpu")
        torch.compile(model, backend="tpu", fullgraph=True)(x).sum().backward()
        torch.tpu.synchronize()

    step(_blocks(1).to("tpu"))  # imports, and the small programs around a graph
    torch._dynamo.reset()
    model = _blocks(n).to("tpu")
    torch.tpu.synchronize()
    layers.share = timed_share
    graph_program.GraphProgram.build = timed_build  # type: ignore[method-assign]
    start = time.process_time()
    step(model)
    total = time.process_time() - start
    client = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path())).create_client()
    start = time.process_time()
    for text in texts:
        client.compile(text)
    xla = time.process_time() - start
    ops = sum(text.count(" = ") for text in texts)
    return dict(zip(COLUMNS, (spent, xla, total - spent - xla, total, ops)))


def main() -> None:
    """Measure each count in a process of its own, and print the table."""
    made = _measure.parser(__doc__.splitlines()[0])
    made.add_argument("--report", type=Path, metavar="FILE", help="also write the table here")
    made.add_argument("--counts", type=int, nargs="+", default=COUNTS, metavar="N")
    args = made.parse_args()
    figures = {}
    for n in args.counts:
        for shared in (False, True):
            figures[n, shared] = _measure.child(
                ["-m", "benchmarks.layers", "--child", str(n), str(int(shared))],
                {"TORCHTPU_CACHE_SIZE": "0"},
            )
    rows = []
    for (n, shared), f in figures.items():
        kind = "one function" if shared else "each by itself"
        rows.append([f"{n}, {kind}", *(_shown(f[c]) for c in COLUMNS)])
        if shared:
            flat = figures[n, False]
            rows.append([f"{n}, ratio", *(_measure.ratio(f[c], flat[c]) for c in COLUMNS)])
    columns = ["blocks", *COLUMNS]
    note = (
        "CPU seconds, all threads, for the first forward and backward; the rest is PyTorch's "
        "tracing (Dynamo, AOTAutograd, its partitioner) and the run."
    )
    _measure.table("Compiling N identical blocks", columns, rows, note)
    if args.report is not None:
        _write(args.report, columns, rows, note)
    _measure.save(args.json, "layers", {f"{n} {s}": f for (n, s), f in figures.items()})


def _shown(x: float) -> str:
    return f"{x:,}" if isinstance(x, int) else f"{x:.2f}"


def _write(path: Path, columns: list[str], rows: list[list[str]], note: str) -> None:
    """Replaces the table of a Markdown report: the part between its two marks."""
    lines = [
        "| " + " | ".join(r) + " |" for r in (columns, ["---"] + ["--:"] * len(COLUMNS), *rows)
    ]
    table = "\n".join([*lines, "", f"{note} {_measure.machine()}."])
    begin, end = "<!-- table -->\n", "\n<!-- end -->"
    text = path.read_text() if path.exists() else f"{begin}{end}\n"
    head, rest = text.split(begin)
    path.write_text(head + begin + table + end + rest.split(end)[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(int(sys.argv[2]), bool(int(sys.argv[3])))))
    else:
        main()
