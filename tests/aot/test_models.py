"""Models by name and recomputed activations."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from tests.lowering import harness
from torchtpu_core import aot
from torchtpu_core.aot import models, recompute

pytest.importorskip("transformers")

_SMALL = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 48, "vocab_size": 50}


def small() -> torch.nn.Module:
    return models.causal_lm("SmolLM2-135M", torch.float32, **_SMALL, num_attention_heads=3)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2", 124.4), ("Llama-3-8B", 8030.3), ("Llama-3-70B", 70553.7), ("SmolLM2-135M", 134.5)],
)
def test_configurations_have_the_models_sizes(name: str, millions: float) -> None:
    model = models.causal_lm(f"some-organisation/{name}")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=1e-3)
    assert all(p.is_meta for p in model.parameters())


def test_config_file(tmp_path: Path) -> None:
    entries = {"model_type": "llama", **_SMALL, "num_attention_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    for name in (tmp_path, tmp_path / "config.json"):
        assert models.config_of(str(name), num_hidden_layers=1).num_hidden_layers == 1


def test_unknown_configuration_lists_the_known() -> None:
    with pytest.raises(ValueError, match="Llama-3-70B"):
        models.config_of("Llama-9")


def test_recomputed_blocks_give_the_same_step() -> None:
    ids = torch.randint(0, 50, (2, 8))
    texts, results = [], []
    for again in (False, True):
        model = small()
        if again:
            assert recompute.checkpoint(model) == 2
        step, weights = models.train_step(model)
        with warnings.catch_warnings():  # attention without dropout draws nothing
            warnings.simplefilter("error")
            program = aot.lowered(step, (weights, torch.empty_like(ids, device="meta")))
        torch.manual_seed(0)
        given = []
        for x in program.inputs:
            if x.name == "arg1":
                given.append(ids)
            elif x.kind == "constant":
                given.append(torch.zeros(x.shape, dtype=x.dtype))
            else:
                given.append(0.1 * torch.rand(x.shape, dtype=x.dtype))
        like = [
            torch.empty(()),
            *(g for g, x in zip(given, program.inputs) if x.kind != "argument"),
        ]
        texts.append(program.stablehlo)
        results.append(harness.run(program.stablehlo, given, like[:1]))
    assert "optimization_barrier" not in texts[0]
    assert texts[1].count("optimization_barrier") == 2
    for place in ("0/backward/barrier", "1/backward/barrier", "1.mlp.up_proj/recomputed/mm"):
        assert f'loc("model.layers.{place}"' in texts[1]
    assert "model.layers.1.mlp.up_proj/backward/mm" in texts[1]
    torch.testing.assert_close(results[0], results[1])


def test_checkpoint_refuses_a_model_without_blocks() -> None:
    with pytest.raises(ValueError, match="no blocks"):
        recompute.checkpoint(torch.nn.Linear(2, 2))
