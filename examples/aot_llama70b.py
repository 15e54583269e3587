"""Does training Llama-3-70B, FSDP over 64 v5p chips, fit, and what bounds it?

    python examples/aot_llama70b.py [--layers 1 2] [--whole]

Compiles a step of AdamW (weights and averages in bfloat16, one sequence of 4096 tokens a chip,
blocks recomputed in backward) for the slice, on this machine, with no TPU and no weights. The whole
model takes long on few CPUs; its blocks are alike, so by default models with one and with two of
them are compiled, and the difference is a block's share of everything. `--whole` compiles all 80.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, dataclass

import torch

from torchtpu_core import aot
from torchtpu_core.aot import models, recompute
from torchtpu_core.aot.api import gib
from torchtpu_core.aot.report import seconds

TOPOLOGY, CHIPS, LAYERS = "v5p:4x4x4", 64, 80


@dataclass(frozen=True)
class Figures:
    """Of one chip and one step; linear in the number of blocks."""

    needed: float
    flops: float
    bytes: float
    sent: float
    estimate: float

    @classmethod
    def of(cls, c: aot.Compiled) -> Figures:
        """A compiled program's."""
        sent = sum(x.sent for x in c.collectives)
        return cls(c.memory.needed, c.flops, c.bytes_accessed, sent, c.compiler_seconds)


def compile_step(layers: int, seq: int) -> aot.Compiled:
    """The train step of a model with that many blocks."""
    model = models.causal_lm("Llama-3-70B", num_hidden_layers=layers)
    recompute.checkpoint(model)
    step, weights = models.train_step(model)
    ids = torch.empty(CHIPS, seq, dtype=torch.int64, device="meta")
    compiled = aot.compile_for(
        step, (weights, ids), topology=TOPOLOGY, mesh={"fsdp": CHIPS},
        shardings=aot.fsdp("fsdp", CHIPS), timeout=6 * 3600,
    )  # fmt: skip
    f = Figures.of(compiled)
    print(
        f"{layers} block(s): {gib(f.needed)}, {gib(compiled.memory.arguments)} of it weights and "
        f"averages, {f.flops / 1e12:.1f} TFLOP; compiled in {compiled.compile_seconds:.0f} s",
        flush=True,
    )
    for (kind, group), (count, _, sent) in compiled.traffic.items():
        print(f"  {count} {kind} of {group} chips: {sent / 1e9:.1f} GB sent", flush=True)
    return compiled


def main() -> None:
    """Compiles, extrapolates where it has to, and prints the answer."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--layers", type=int, nargs=2, default=(1, 2))
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--whole", action="store_true")
    a = p.parse_args()
    if a.whole:
        compiled = compile_step(LAYERS, a.seq)
        whole = Figures.of(compiled)
    else:
        few, more = a.layers
        first = Figures.of(compile_step(few, a.seq))
        compiled = compile_step(more, a.seq)
        per_layer = [
            (y - x) / (more - few) for x, y in zip(astuple(first), astuple(Figures.of(compiled)))
        ]
        whole = Figures(*(x + d * (LAYERS - few) for x, d in zip(astuple(first), per_layer)))
        print(f"extrapolated from {few} and {more} of {LAYERS} blocks")
    chip, available = compiled.topology.chip, compiled.memory.available
    verdict = "fits" if whole.needed <= available else "does not fit"
    print(f"memory a chip: {gib(whole.needed)} of {gib(available)}: {verdict}")
    times = {
        "compute": whole.flops / chip.device_bf16,
        "memory": whole.bytes / chip.device_hbm_bandwidth,
        "network": whole.sent / chip.device_ici_bandwidth,
    }
    for name, t in times.items():
        print(f"{name}: at least {seconds(t)}")
    print(f"the compiler's estimate without collectives: {seconds(whole.estimate)}")
    print(f"bound by {max(times, key=lambda k: times[k])}")


if __name__ == "__main__":
    main()
