"""Whole models: forward and backward of the compiled form equal eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.compile import models
from tests.compile.common import assert_trains_alike, executions


def test_mlp():
    assert_trains_alike(models.mlp(), torch.randn(6, 12))


def test_cnn_with_running_statistics():
    assert_trains_alike(models.cnn(), torch.randn(4, 3, 16, 16))


def test_transformer_block():
    assert_trains_alike(models.Block(), torch.randn(2, 16, 32))


def test_gpt():
    assert_trains_alike(models.GPT(), torch.randint(0, 64, (2, 16)))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent(cell):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(6, 8, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0]

    eager = Last().to("tpu")
    x = torch.randn(2, 5, 6, device="tpu")
    compiled = torch.compile(eager, backend="tpu")
    torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-5)


def test_a_forward_and_a_backward_are_one_program_each():
    model = models.mlp().to("tpu")
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    x = torch.randn(6, 12, device="tpu")
    compiled(x).sum().backward()
    y = None

    def forward():
        nonlocal y
        y = compiled(x)

    assert executions(forward) == 1
    ones = torch.ones_like(y)
    model.zero_grad()
    assert executions(lambda: y.backward(ones)) == 1


def test_activation_checkpoint():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = models.Block()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    assert_trains_alike(Checkpointed(), torch.randn(2, 16, 32))


def test_autocast():
    model = models.mlp().to("tpu")
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    x = torch.randn(6, 12, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        expected, actual = model(x), compiled(x)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
