"""Models by name, without their weights: a Hugging Face configuration becomes a module on the meta
device, and a train step is a function of parameters, optimizer state and a batch.

Nothing is fetched: a name resolves to one of the configurations below, a path to the config.json
there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

_AVERAGES = ("exp_avg", "exp_avg_sq")

_LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}
#: what the models' own config.json files say, as far as it shapes them
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2"},
    "gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "Llama-3-8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "Llama-3-70B": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "SmolLM2-135M": {
        **_LLAMA,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
    },
}


def config_of(name: str, **changes: Any) -> Any:
    """A transformers configuration: a name of CONFIGS (a hub's organisation in front is ignored), a
    config.json, or a folder with one. `changes` replace entries (num_hidden_layers=2).
    """
    try:
        from transformers import AutoConfig
    except ImportError as e:
        raise ImportError(
            "models by name need transformers. Run: pip install 'torchtpu[examples]'"
        ) from e
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    short = name.rsplit("/", 1)[-1]
    if path.is_file():
        entries = json.loads(path.read_text())
    elif short in CONFIGS:
        entries = dict(CONFIGS[short])
    else:
        raise ValueError(
            f"no configuration {name!r}: it is neither a config.json, a folder with one, nor a "
            f"known name ({', '.join(CONFIGS)}). Nothing is fetched from a hub"
        )
    return AutoConfig.for_model(entries.pop("model_type"), **{**entries, **changes})


def causal_lm(name: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> torch.nn.Module:
    """The language model of a configuration, on the meta device."""
    from transformers import AutoModelForCausalLM

    config = config_of(name, use_cache=False, **changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model


def logits(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """[batch, seq] token ids -> logits."""

    def forward(input_ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids).logits

    return forward


def next_token_loss(model: torch.nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each next token, in float32."""
    out = model(input_ids=input_ids).logits[:, :-1]
    return F.cross_entropy(out.flatten(0, 1).float(), input_ids[:, 1:].flatten())


@dataclass(frozen=True)
class TrainStep:
    """A whole step of AdamW as a function: `step(weights, *batch) -> loss`.

    weights: {"parameters": {name: tensor}, "state": {"step" | "exp_avg" | "exp_avg_sq": ...}}, all
    written in place (as a program: donated). The math is torch.optim.AdamW's (fused).
    """

    model: torch.nn.Module
    loss: Callable[..., torch.Tensor]
    lr: float = 3e-4
    weight_decay: float = 0.1

    @property
    def __name__(self) -> str:
        return f"{type(self.model).__name__}_train_step"

    def weights(self) -> dict[str, Any]:
        """Meta tensors as a step takes them; averages have their parameter's dtype."""
        parameters = {
            n: torch.empty_like(p, device="meta").requires_grad_()
            for n, p in self.model.named_parameters()
        }
        averages = {
            f"{kind}.{n}": torch.empty_like(p, device="meta", requires_grad=False)
            for kind in _AVERAGES
            for n, p in parameters.items()
        }
        step = torch.empty((), dtype=torch.float32, device="meta")
        return {"parameters": parameters, "state": {"step": step, **averages}}

    def __call__(self, weights: dict[str, Any], *batch: Any) -> torch.Tensor:
        parameters, state = weights["parameters"], weights["state"]
        with torch.nn.utils.stateless._reparametrize_module(
            self.model, parameters, tie_weights=True
        ):
            loss = self.loss(self.model, *batch)
            grads = torch.autograd.grad(loss, list(parameters.values()))
        with torch.no_grad():
            state["step"] += 1
            averages = [[state[f"{kind}.{n}"] for n in parameters] for kind in _AVERAGES]
            written = [list(parameters.values()), *averages]
            # The functional overload: PyTorch's functionalization of the one in place fails on the
            # empty list of maxima.
            new = torch.ops.aten._fused_adamw.default(
                [p.detach() for p in parameters.values()],
                list(grads),
                *averages,
                [],
                [state["step"]] * len(parameters),
                lr=self.lr,
                beta1=0.9,
                beta2=0.95,
                weight_decay=self.weight_decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
            for targets, values in zip(written, (new[0], new[2], new[3])):
                for target, value in zip(targets, values):
                    target.copy_(value)
        return loss.detach()


def train_step(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor] = next_token_loss, **options: float
) -> tuple[TrainStep, dict[str, Any]]:
    """(step, weights) for `compile_for(step, (weights, *batch))`."""
    step = TrainStep(model, loss, **options)
    return step, step.weights()
