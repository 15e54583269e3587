"""Open sizes: a decoder fed requests of random lengths, three ways of compiling it beside each
other. Each way runs in a process of its own, with no program cached; its time is that of all
requests, capture and compilation included.

`buckets` is the default, powers of two; `recompiled` has a program for each length; `padded to max`
has one program for all. Logits are compared with the CPU at every length. `--report` also writes
docs/reports/dynamic.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from benchmarks import _measure

REPORT = _measure.ROOT / "docs" / "reports" / "dynamic.md"
COMMAND = "python -m benchmarks.dynamic --report"

WAYS: dict[str, Any] = {"buckets": "pow2", "padded to max": "max", "recompiled": "off"}
LONGEST, REQUESTS, VOCABULARY = 512, 200, 1024
WIDTH, HEADS, LAYERS = 512, 8, 2
#: of float32 logits of order 1, beside the CPU's
TOLERANCE = 2e-4


def decoder() -> Any:
    """A decoder-only transformer that maps ids [1, n] to logits [1, n, VOCABULARY]."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, n, c = x.shape
            q, k, v = (
                y.view(b, n, HEADS, c // HEADS).transpose(1, 2)
                for y in self.qkv(self.norm1(x)).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Embedding(LONGEST, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm = nn.RMSNorm(WIDTH)

        def forward(self, ids: Any) -> Any:
            at = torch.arange(ids.shape[1], device=ids.device)
            x = self.blocks(self.tokens(ids) + self.positions(at))
            return self.norm(x) @ self.tokens.weight.T / WIDTH**0.5

    torch.manual_seed(0)
    return Decoder().eval()


def measure(way: str, requests: int) -> dict[str, float]:
    """Seconds, programs and the greatest error of one way."""
    import torch

    import torchtpu_core

    model, beside = decoder(), decoder()
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, LONGEST + 1, (requests,), generator=generator).tolist()
    batches = [torch.randint(VOCABULARY, (1, n), generator=generator) for n in lengths]
    model = model.to("tpu")
    torch.tpu.set_shape_buckets([LONGEST] if WAYS[way] == "max" else WAYS[way])
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    before = torchtpu_core.stats()["programs_compiled"]
    spent, worked, error = 0.0, 0.0, 0.0
    for ids in batches:
        start, cpu = time.perf_counter(), time.process_time()
        with torch.no_grad():
            logits = compiled(ids.to("tpu")).cpu()
        spent += time.perf_counter() - start
        worked += time.process_time() - cpu
        with torch.no_grad():
            error = max(error, (logits - beside(ids)).abs().max().item())
    programs = torchtpu_core.stats()["programs_compiled"] - before
    return {"seconds": spent, "cpu_seconds": worked, "programs": programs, "error": error}


def report(columns: list[str], rows: list[list[str]], note: str) -> None:
    """Writes the table as Markdown."""
    lines = [
        "# Open sizes",
        "",
        f"A decoder ({LAYERS} layers of width {WIDTH}) is fed requests of random lengths, compiled",
        "in three ways, each in a process of its own with no program cached: a program for each",
        "bucket (powers of two, the default), one program that all are padded for, a program for",
        f"each length. Made by `{COMMAND}`.",
        "",
        "| " + " | ".join(columns) + " |",
        "| --- |" + " --: |" * (len(columns) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        note,
        "CPU seconds are those of all threads, which other work on the machine moves less.",
        f"{_measure.machine()}.",
    ]
    REPORT.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Measure and print; 1 where a promise is not kept."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--way", choices=WAYS, help="measure it here; print JSON")
    parser.add_argument("--report", action="store_true", help=f"also write {REPORT.name}")
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.requests)))
        return 0
    figures = {}
    for way in WAYS:
        print(f"measuring {way} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as cache:
            call = ["-m", "benchmarks.dynamic", "--way", way, "--requests", str(args.requests)]
            figures[way] = _measure.child(call, {"TORCHTPU_CACHE_DIR": cache})
    own = figures["buckets"]
    rows = [
        [
            way,
            f"{f['seconds']:.1f}",
            _measure.ratio(f["seconds"], own["seconds"]),
            f"{f['cpu_seconds']:.1f}",
            f"{f['programs']:.0f}",
            f"{f['error']:.1e}",
        ]
        for way, f in figures.items()
    ]
    most = LONGEST.bit_length()  # 1, 2, 4, .. 512
    promises = {
        f"at most {most} programs": own["programs"] <= most,
        f"within {TOLERANCE} of the CPU": all(f["error"] <= TOLERANCE for f in figures.values()),
        "the fastest": all(f["seconds"] >= own["seconds"] for f in figures.values()),
    }
    verdicts = ", ".join(f"{p}: {'met' if kept else 'MISSED'}" for p, kept in promises.items())
    note = f"{args.requests} requests of 1 to {LONGEST} tokens, compilation included. {verdicts}."
    columns = ["way", "seconds", "of buckets", "CPU seconds", "programs", "greatest error"]
    _measure.table("A decoder fed random lengths", columns, rows, note)
    _measure.save(args.json, "dynamic", figures)
    if args.report:
        report(columns, rows, note)
    return 0 if all(promises.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
