"""Our side of `aot_vs_jax`: models in PyTorch, on the meta device, as programs for a TPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import _models
from torchtpu_core import aot
from torchtpu_core.aot.lower import Program
from torchtpu_core.aot.models import train_step

EPS, THETA = 1e-5, 10000.0


def lowered(target: Any, args: tuple[Any, ...]) -> Program:
    """JAX's products of f32 have the default precision, so ours have it here."""
    return aot.lowered(target, args, precision="default")


# ---- a decoder block -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Sizes of a decoder block and of its input."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    batch: int
    seq: int

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


BLOCKS = {
    "SmolLM2-135M": Block(576, 9, 3, 1536, batch=8, seq=512),
    "Llama-3-8B": Block(4096, 32, 8, 14336, batch=1, seq=2048),
}


def weights(s: Block) -> dict[str, tuple[int, ...]]:
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


def _block(w: dict[str, torch.Tensor], x: torch.Tensor, s: Block) -> torch.Tensor:
    """[batch, seq, hidden] -> the same."""
    batch, seq, _ = x.shape

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
        return weight * y.to(x.dtype)

    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.view(batch, seq, -1, s.head).transpose(1, 2)

    position = torch.arange(seq, device=x.device, dtype=torch.float32)
    half = torch.arange(0, s.head, 2, device=x.device, dtype=torch.float32)
    angles = position[:, None] / THETA ** (half / s.head)
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


def block(name: str, train: bool) -> Program:
    """A block's output, or with `train` the mean of it and the gradients of all weights."""
    s = BLOCKS[name]

    def step(w: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        if not train:
            return _block(w, x, s)
        loss = _block(w, x, s).float().mean()
        return loss, torch.autograd.grad(loss, list(w.values()))

    like: dict[str, Any] = {"dtype": torch.bfloat16, "device": "meta"}
    w = {k: torch.empty(shape, **like, requires_grad=train) for k, shape in weights(s).items()}
    return lowered(step, (w, torch.empty(s.batch, s.seq, s.hidden, **like)))


# ---- GPT-2 ---------------------------------------------------------------------------------------


def gpt_size(layers: int) -> _models.Size:
    """GPT-2 (124M) with fewer layers or all, for 8 sequences of 512 tokens."""
    return dataclasses.replace(_models.FULL, gpt_layers=layers, gpt_batch=8, gpt_tokens=512)


def _narrow(model: nn.Module, wide: str = "") -> dict[str, torch.Tensor]:
    """A module's parameters in bf16, but for those in whose names `wide` is."""
    return {n: p if wide and wide in n else p.bfloat16() for n, p in model.named_parameters()}


def _step(model: nn.Module, wide: str, *batch: torch.Tensor) -> Program:
    """A step of AdamW of f32 parameters, whose forward and backward are in bf16."""

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(model, _narrow(model, wide), (x,))
        return F.cross_entropy(out.float(), y)

    step, state = train_step(model, loss, lr=1e-4, weight_decay=1e-2)
    return lowered(step, (state, *batch))


def gpt(layers: int) -> Program:
    """A train step."""
    size = gpt_size(layers)
    with torch.device("meta"):
        model = _models.GPT(size)
        ids = torch.empty(size.gpt_batch, size.gpt_tokens, dtype=torch.int64)
        return _step(model, "", ids, torch.empty(ids.numel(), dtype=torch.int64))


# ---- ResNet-50 -----------------------------------------------------------------------------------

#: blocks and width of each stage
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
IMAGES, SIDE = 32, 224


class Bottleneck(nn.Module):
    """Convolutions (1 x 1, 3 x 3 strided, 1 x 1) with batch norm, beside an identity or a strided
    1 x 1 convolution."""

    def __init__(self, i: int, width: int, stride: int):
        super().__init__()
        o = 4 * width
        self.conv1 = nn.Conv2d(i, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, o, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(n) for n in (width, width, o))
        self.down = None
        if i != o:
            self.down, self.bn4 = nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.down is None else self.bn4(self.down(x))))


class ResNet50(nn.Module):
    """ResNet-50 (v1.5) with 1000 classes, for images [N, 3, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, i = [], 64
        for stage, (n, width) in enumerate(STAGES):
            for at in range(n):
                blocks.append(Bottleneck(i, width, 2 if at == 0 and stage else 1))
                i = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(i, 1000)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def resnet(train: bool) -> Program:
    """Logits with the running statistics, or a train step; channels last, as a PyTorch user has
    them for speed. Parameters of batch norm stay in f32.
    """
    with torch.device("meta"):
        model = ResNet50().train(train).to(memory_format=torch.channels_last)
        x = torch.empty(IMAGES, 3, SIDE, SIDE, dtype=torch.bfloat16)
        x = x.to(memory_format=torch.channels_last)
        if train:
            return _step(model, "bn", x, torch.empty(IMAGES, dtype=torch.int64))
        for n, p in model.named_parameters():
            p.requires_grad_(False)
            if "bn" not in n:
                p.data = p.data.bfloat16()
        return lowered(model, (x,))


# ---- SmolLM2 decoding ----------------------------------------------------------------------------


def decode() -> Program:
    """A token of SmolLM2-135M in bf16, with its cache in place."""
    with torch.device("meta"):
        model = _models.SmolLM2(_models.FULL).to(torch.bfloat16).requires_grad_(False)
        like = {"dtype": torch.int32}
        return lowered(model, (torch.empty(1, 1, **like), torch.empty(1, **like)))
