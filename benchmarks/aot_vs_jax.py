"""Is the program that we give a TPU as good as JAX's?

    python -m benchmarks.aot_vs_jax [--topology v5e:1x1] [--block smollm2|llama3-8b]
        [--batch 8] [--seq 512] [--json FILE]

The same decoder block (RMSNorm, grouped-query attention with rotary positions, SwiGLU, in
bfloat16), forward and as a step that also computes all gradients, is written in PyTorch and in JAX,
lowered by each, and compiled by the same libtpu for the same chip. Prints ours divided by JAX's for
FLOP, bytes accessed, peak memory, fusions and the compiler's time estimate. Needs JAX; no TPU, and
nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from torchtpu_core import aot
from torchtpu_core.aot.lower import Program


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder block."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


BLOCKS = {
    "smollm2": Shape(576, 9, 3, 1536),
    "llama3-8b": Shape(4096, 32, 8, 14336),
}
_EPS, _THETA = 1e-5, 10000.0


def weights(s: Shape) -> dict[str, tuple[int, ...]]:
    """Shapes of the block's weights, as [in, out]."""
    kv = s.kv_heads * s.head
    return {
        "norm1": (s.hidden,),
        "q": (s.hidden, s.hidden),
        "k": (s.hidden, kv),
        "v": (s.hidden, kv),
        "o": (s.hidden, s.hidden),
        "norm2": (s.hidden,),
        "gate": (s.hidden, s.ffn),
        "up": (s.hidden, s.ffn),
        "down": (s.ffn, s.hidden),
    }


# ---- PyTorch -------------------------------------------------------------------------------------


def torch_block(w: dict[str, torch.Tensor], x: torch.Tensor, s: Shape) -> torch.Tensor:
    """[batch, seq, hidden] -> the same."""
    batch, seq, _ = x.shape

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + _EPS)
        return weight * y.to(x.dtype)

    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.view(batch, seq, -1, s.head).transpose(1, 2)

    position = torch.arange(seq, device=x.device, dtype=torch.float32)
    half = torch.arange(0, s.head, 2, device=x.device, dtype=torch.float32)
    angles = position[:, None] / _THETA ** (half / s.head)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def rotate(y: torch.Tensor) -> torch.Tensor:
        a, b = y.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    h = norm(x, w["norm1"])
    q, k, v = rotate(heads(h @ w["q"])), rotate(heads(h @ w["k"])), heads(h @ w["v"])
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + a.transpose(1, 2).reshape(x.shape) @ w["o"]
    h = norm(x, w["norm2"])
    return x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def ours(s: Shape, batch: int, seq: int, train: bool) -> Program:
    """Our program."""

    def step(w: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        if not train:
            return torch_block(w, x, s)
        loss = torch_block(w, x, s).float().mean()
        return loss, torch.autograd.grad(loss, list(w.values()))

    like = {"dtype": torch.bfloat16, "device": "meta"}
    w = {k: torch.empty(shape, **like, requires_grad=train) for k, shape in weights(s).items()}
    return aot.lowered(step, (w, torch.empty(batch, seq, s.hidden, **like)), precision="default")


# ---- JAX -----------------------------------------------------------------------------------------


def theirs(s: Shape, batch: int, seq: int, train: bool) -> Program:
    """JAX's program."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax import numpy as jnp

    def norm(x: Any, weight: Any) -> Any:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + _EPS)
        return weight * y.astype(x.dtype)

    def block(w: Any, x: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.reshape(batch, seq, -1, s.head)

        angles = jnp.arange(seq, dtype=jnp.float32)[:, None] / _THETA ** (
            jnp.arange(0, s.head, 2, dtype=jnp.float32) / s.head
        )
        cos, sin = (f(angles).astype(x.dtype)[:, None] for f in (jnp.cos, jnp.sin))

        def rotate(y: Any) -> Any:
            a, b = jnp.split(y, 2, -1)
            return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

        h = norm(x, w["norm1"])
        q, k, v = rotate(heads(h @ w["q"])), rotate(heads(h @ w["k"])), heads(h @ w["v"])
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + a.reshape(x.shape) @ w["o"]
        h = norm(x, w["norm2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    def step(w: Any, x: Any) -> Any:
        if not train:
            return block(w, x)
        return jax.value_and_grad(lambda w: block(w, x).astype(jnp.float32).mean())(w)

    w = {k: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for k, shape in weights(s).items()}
    x = jax.ShapeDtypeStruct((batch, seq, s.hidden), jnp.bfloat16)
    lowered = jax.jit(step).trace(w, x).lower(lowering_platforms=("tpu",))
    return Program("jax", lowered.as_text(), (), {})


# ---- comparison ----------------------------------------------------------------------------------


def figures(c: aot.Compiled) -> dict[str, float]:
    """What is compared; less is better."""
    return {
        "FLOP": c.flops,
        "bytes accessed": c.bytes_accessed,
        "peak memory": c.memory.peak,
        "fusions": c.analysis.fusions,
        "instructions": c.analysis.instructions,
        "compiler's estimate, us": c.compiler_seconds * 1e6,
    }


def main() -> None:
    """Compiles both and prints a table for each program."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--topology", default="v5e:1x1")
    p.add_argument("--block", choices=BLOCKS, default="smollm2")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    out: dict[str, Any] = {}
    for name, train in (("forward", False), ("forward and gradients", True)):
        found = {}
        for who, make in (("ours", ours), ("jax", theirs)):
            program = make(BLOCKS[a.block], a.batch, a.seq, train)
            found[who] = figures(aot.compile_program(program, a.topology))
        table = Table("", "ours", "jax", "ratio", box=None, title=f"{a.block}, {name}")
        for key, mine in found["ours"].items():
            other = found["jax"][key]
            ratio = f"{mine / other:.3f}" if other else ""
            table.add_row(key, f"{mine:,.0f}", f"{other:,.0f}", ratio)
        Console().print(table)
        out[name] = found
    if a.json:
        a.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
