"""The graphs of the benchmark models and of the examples, as programs for a TPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import _models
from tests.aot.cases import Case
from torchtpu_core import aot
from torchtpu_core.aot import models
from torchtpu_core.aot.lower import Program


def cases(only: str = ".*") -> Iterator[Case]:
    """A case of dtype "" for each graph whose name matches."""
    for name, make in GRAPHS.items():
        if not re.search(only, name):
            continue
        try:
            yield Case(name, "", make())
        except Exception as e:
            yield Case(name, "", None, f"{type(e).__name__}: {' '.join(str(e).split())[:300]}")


def _classes(model: nn.Module, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), targets)


def _forward(name: str, size: _models.Size) -> Callable[[], Program]:
    def make() -> Program:
        with torch.device("meta"):
            model, *inputs = _models.build(name, size)
        model.eval()
        given = inputs if name == "SmolLM2" else inputs[:1]
        with torch.no_grad():
            return aot.lowered(model, given)

    return make


def _step(name: str) -> Callable[[], Program]:
    def make() -> Program:
        with torch.device("meta"):
            model, x, targets = _models.build(name, _models.FAST)
        step, weights = models.train_step(model, _classes)
        return aot.lowered(step, (weights, x, targets))

    return make


def _train() -> Program:
    from examples import train

    with torch.device("meta"):
        model = train.build_model()
        x, y = torch.empty(train.BATCH, 1, 8, 8), torch.empty(train.BATCH, dtype=torch.int64)
    step, weights = models.train_step(model, _classes)
    return aot.lowered(step, (weights, x, y))


def _embed() -> Program:
    """With the configuration of all-MiniLM-L6-v2, for five sentences of up to 16 tokens."""
    from transformers import AutoConfig, AutoModel

    from examples import embed

    config = AutoConfig.for_model(
        "bert", hidden_size=384, num_hidden_layers=6, intermediate_size=1536
    )
    with torch.device("meta"):
        model = AutoModel.from_config(config).eval()
        ids = torch.empty(len(embed.SENTENCES), 16, dtype=torch.int64)
        mask = torch.empty_like(ids)

    class Encoding(dict):
        def to(self, device: torch.device) -> Encoding:
            return self

    def vectors(ids: torch.Tensor, mask: torch.Tensor, model: nn.Module) -> torch.Tensor:
        encoding = Encoding(input_ids=ids, attention_mask=mask)
        return embed.embed.__wrapped__(model, lambda *_, **__: encoding, embed.SENTENCES)

    return aot.lowered(vectors, (ids, mask, model))


def _generate(tokens: int) -> Callable[[], Program]:
    """Steps of the loop of examples/generate.py: `tokens` new ids in, the most likely next out."""

    def make() -> Program:
        from transformers import StaticCache

        from examples import generate

        model = models.causal_lm("SmolLM2-135M", torch.float32)
        length = generate.CACHE_STEP
        config = model.config
        head = config.hidden_size // config.num_attention_heads
        shape = (1, config.num_key_value_heads, length, head)
        kept = [torch.empty(shape, device="meta") for _ in range(2 * config.num_hidden_layers)]
        ids = torch.empty(1, tokens, dtype=torch.int64, device="meta")

        def step(
            ids: torch.Tensor, at: torch.Tensor, kept: list[torch.Tensor], model: nn.Module
        ) -> torch.Tensor:
            cache = StaticCache(config=config, max_cache_len=length)
            for layer, keys, values in zip(cache.layers, kept[::2], kept[1::2]):
                layer.keys, layer.values, layer.is_initialized = keys, values, True
                layer.device, layer.cumulative_length = keys.device, at.clone()
            out = model(ids, cache=cache, use_cache=True, logits_to_keep=1)
            return out.logits[:, -1].argmax(-1, keepdim=True)

        at = torch.empty((), dtype=torch.int64, device="meta")
        with torch.no_grad():
            return aot.lowered(step, (ids, at, kept, model))

    return make


GRAPHS: dict[str, Callable[[], Program]] = {
    **{f"{n} forward": _forward(n, _models.FAST) for n in ("MLP", "CNN", "GPT")},
    **{f"{n} train step": _step(n) for n in ("MLP", "CNN", "GPT")},
    "SmolLM2-135M decode": _forward("SmolLM2", _models.FULL),
    "examples/train.py step": _train,
    "examples/embed.py": _embed,
    "examples/generate.py prefill": _generate(40),
    "examples/generate.py decode": _generate(1),
}
