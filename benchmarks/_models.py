"""The models of the benchmark of compiled mode, in PyTorch: an MLP, ResNet-18, GPT-2, and
SmolLM2-135M decoding with a cache of keys and values. Their counterparts are in `_models_jax`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    """The sizes of all models: as published, or small ones of the same shape."""

    mlp: tuple[int, ...]
    mlp_batch: int
    cnn_widths: tuple[int, ...]
    cnn_batch: int
    cnn_side: int
    gpt_layers: int
    gpt_width: int
    gpt_heads: int
    gpt_vocabulary: int
    gpt_batch: int
    gpt_tokens: int
    smol_layers: int
    smol_width: int
    smol_heads: int
    smol_kv_heads: int
    smol_hidden: int
    smol_vocabulary: int
    smol_cache: int


FULL = Size(
    mlp=(512, 2048, 2048, 10),
    mlp_batch=128,
    cnn_widths=(64, 128, 256, 512),
    cnn_batch=4,
    cnn_side=128,
    gpt_layers=12,
    gpt_width=768,
    gpt_heads=12,
    gpt_vocabulary=50257,
    gpt_batch=1,
    gpt_tokens=128,
    smol_layers=30,
    smol_width=576,
    smol_heads=9,
    smol_kv_heads=3,
    smol_hidden=1536,
    smol_vocabulary=49152,
    smol_cache=256,
)
FAST = Size(
    mlp=(256, 512, 512, 10),
    mlp_batch=64,
    cnn_widths=(16, 32, 64, 128),
    cnn_batch=2,
    cnn_side=96,
    gpt_layers=4,
    gpt_width=256,
    gpt_heads=8,
    gpt_vocabulary=1024,
    gpt_batch=4,
    gpt_tokens=128,
    smol_layers=4,
    smol_width=192,
    smol_heads=3,
    smol_kv_heads=1,
    smol_hidden=512,
    smol_vocabulary=1024,
    smol_cache=128,
)


def mlp(size: Size) -> nn.Module:
    """Linear layers with GELU between."""
    layers: list[nn.Module] = []
    for i, o in zip(size.mlp, size.mlp[1:]):
        layers += [nn.Linear(i, o), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, beside an identity or a strided 1 x 1 convolution."""

    def __init__(self, i: int, o: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        if stride != 1 or i != o:
            self.down, self.bn3 = nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)
        else:
            self.down = None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.bn3(self.down(x))))


class ResNet18(nn.Module):
    """ResNet-18 with 1000 classes, for images [N, 3, H, W]."""

    def __init__(self, size: Size):
        super().__init__()
        widths = size.cnn_widths
        self.conv = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        blocks, i = [], widths[0]
        for stage, o in enumerate(widths):
            blocks += [ResidualBlock(i, o, 1 if stage == 0 else 2), ResidualBlock(o, o, 1)]
            i = o
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(i, 1000)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Block(nn.Module):
    """A layer of GPT-2: norms first, causal attention, GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2: ids [B, T] -> logits [B * T, vocabulary]; the head shares the embedding."""

    def __init__(self, size: Size):
        super().__init__()
        width = size.gpt_width
        self.tokens = nn.Embedding(size.gpt_vocabulary, width)
        self.positions = nn.Embedding(size.gpt_tokens, width)
        self.blocks = nn.Sequential(*(Block(width, size.gpt_heads) for _ in range(size.gpt_layers)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Any) -> Any:
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.blocks(self.tokens(ids) + self.positions(at)))
        return (x @ self.tokens.weight.T).flatten(0, 1)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary position embedding of [1, heads, 1, size] in the convention of Llama (halves)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class LlamaLayer(nn.Module):
    """A layer of Llama that attends to a cache of keys and values."""

    def __init__(self, size: Size):
        super().__init__()
        width, self.heads, self.kv_heads = size.smol_width, size.smol_heads, size.smol_kv_heads
        kv = width // self.heads * self.kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kv, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, size.smol_hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(size.smol_hidden, width, bias=False)

    def forward(
        self, x: Any, at: Any, cos: Any, sin: Any, seen: Any, keys: Any, values: Any
    ) -> Any:
        h = self.norm1(x)
        q, k, v = (
            f(h).view(1, 1, n, -1).transpose(1, 2)
            for f, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        keys.index_copy_(2, at, rotate(k, cos, sin))
        values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), keys, values, attn_mask=seen, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class SmolLM2(nn.Module):
    """SmolLM2-135M decoding one token: (id [1, 1], position [1]) -> logits [1, 1, vocabulary]."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.smol_vocabulary, size.smol_width)
        self.layers = nn.ModuleList(LlamaLayer(size) for _ in range(size.smol_layers))
        self.norm = nn.RMSNorm(size.smol_width, 1e-5)
        head = size.smol_width // size.smol_heads
        shape = (size.smol_layers, 1, size.smol_kv_heads, size.smol_cache, head)
        for i in range(size.smol_layers):
            self.register_buffer(f"keys{i}", torch.zeros(shape[1:]))
            self.register_buffer(f"values{i}", torch.zeros(shape[1:]))
        frequencies = 100000.0 ** (-torch.arange(0, head, 2) / head)
        self.register_buffer("frequencies", torch.cat((frequencies, frequencies)))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, id_: Any, at: Any) -> Any:
        angle = at * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        seen = torch.arange(self.keys0.shape[2], device=at.device) <= at
        x = self.tokens(id_)
        for i, layer in enumerate(self.layers):
            cache = getattr(self, f"keys{i}"), getattr(self, f"values{i}")
            x = layer(x, at, cos, sin, seen.view(1, 1, 1, -1), *cache)
        return self.norm(x) @ self.tokens.weight.T


def build(name: str, size: Size) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """(model, input, targets) of "MLP", "CNN" (also "CNN NHWC", where only JAX differs), "GPT" or
    "SmolLM2" on the CPU; the position instead of targets for the last.
    """
    torch.manual_seed(0)
    if name == "MLP":
        return (
            mlp(size),
            torch.randn(size.mlp_batch, size.mlp[0]),
            torch.randint(size.mlp[-1], (size.mlp_batch,)),
        )
    if name.startswith("CNN"):
        x = torch.randn(size.cnn_batch, 3, size.cnn_side, size.cnn_side)
        return ResNet18(size), x, torch.randint(1000, (size.cnn_batch,))
    if name == "GPT":
        ids = torch.randint(size.gpt_vocabulary, (2, size.gpt_batch, size.gpt_tokens))
        return GPT(size), ids[0], ids[1].flatten()
    return SmolLM2(size), torch.tensor([[17]]), torch.tensor([size.smol_cache // 2])
