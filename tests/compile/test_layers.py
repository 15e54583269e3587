"""Layers once: identical pieces of a graph are one private function, and compute what they did."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.common.programs import graph_texts
from tests.compile import models
from torchtpu_core.compile import layers


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def functions(text):
    """(private functions, how often each is called)."""
    names = re.findall(r"func\.func private @(\w+)", text)
    return {n: len(re.findall(rf"callee = @{n}\b", text)) for n in names}


def run(model, *inputs, shared=True):
    """Results, gradients and program texts of a compiled model, with layers shared or not."""
    torch._dynamo.reset()
    share = layers.share
    if not shared:
        layers.share = lambda gm: gm
    try:
        torch.manual_seed(5)
        model.zero_grad()
        with graph_texts() as texts:
            out = torch.compile(model, backend="tpu", fullgraph=True)(*inputs)
            out.square().sum().backward()
    finally:
        layers.share = share
    return out.detach(), [p.grad for p in model.parameters()], texts


def assert_shared_equals_unshared(model, *inputs):
    """The programs with and without sharing give the same bits; returns the texts with it."""
    out, grads, texts = run(model, *inputs)
    expected, expected_grads, flat = run(model, *inputs, shared=False)
    assert torch.equal(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected_grads, strict=True))
    assert not any(functions(t) for t in flat)
    return texts


class Residual(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = dropout

    def forward(self, x):
        h = self.down(F.gelu(self.up(self.norm(x))))
        return x + (F.dropout(h, self.dropout) if self.dropout else h)


def test_blocks_of_a_transformer():
    model = models.GPT(layers=4).to("tpu")
    texts = assert_shared_equals_unshared(model, torch.randint(0, 64, (2, 16)).to("tpu"))
    for text in texts:
        (count,) = functions(text).values()
        assert 3 <= count <= 4


def test_the_program_grows_by_a_call_a_layer():
    sizes = []
    for n in (4, 8, 12):
        model = nn.Sequential(*(Residual() for _ in range(n))).to("tpu")
        *_, texts = run(model, torch.randn(4, 8, device="tpu"))
        sizes.append([t.count(" = ") for t in texts])
    for a, b, c in zip(*sizes):
        assert c - b == b - a <= 4 * 6


def test_dropout_differs_between_the_calls():
    model = nn.Sequential(*(Residual(dropout=0.3) for _ in range(5))).to("tpu")
    x = torch.randn(4, 8, device="tpu")
    texts = assert_shared_equals_unshared(model, x)
    assert all(functions(t) for t in texts)
    torch.manual_seed(5)
    expected = model(x)
    torch.testing.assert_close(run(model, x)[0], expected, rtol=1e-4, atol=1e-5)


def test_two_kinds_of_layers():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.second = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            for f in self.first:
                x = x + torch.tanh(f(x)).sin().exp().cos().neg()
            for f in self.second:
                x = torch.sigmoid(f(F.layer_norm(x, (8,)))).square() * x
            return x

    (forward, _) = assert_shared_equals_unshared(Two().to("tpu"), torch.randn(3, 8, device="tpu"))
    assert sorted(functions(forward).values()) == [4, 4]


def test_layers_that_differ_are_not_shared():
    def fn(x):
        for i in range(6):
            x = torch.tanh(x * (i + 1.5)).sin().cos().exp().neg().sigmoid().square() + x
        return x

    x = torch.randn(4, device="tpu")
    with graph_texts() as texts:
        out = torch.compile(fn, backend="tpu", fullgraph=True)(x)
    torch.testing.assert_close(out, fn(x))
    assert not functions(texts[0])


def test_layers_wired_differently_are_not_shared():
    """The same operators on the same types, but each step reads another of the values before."""

    def fn(x, y):
        for i in range(6):
            a, b = (x, y) if i % 2 else (y, x)
            x = (a.sin() + b.cos()).tanh().exp().neg().sigmoid().square() - a
        return x

    x, y = torch.randn(4, device="tpu"), torch.randn(4, device="tpu")
    torch.testing.assert_close(torch.compile(fn, backend="tpu")(x, y), fn(x, y))


def test_layers_with_state():
    """Each layer's running statistics are written; writes stay outside of the functions."""
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            for _ in range(5)
        )
    ).to("tpu")
    x = torch.randn(2, 4, 8, 8, device="tpu")
    statistics = []
    for shared in (True, False):
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.reset_running_stats()
        *_, texts = run(model, x, shared=shared)
        assert bool(functions(texts[0])) == shared
        statistics.append([b.clone() for b in model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*statistics))


def test_open_sizes():
    blocks = nn.Sequential(*(Residual() for _ in range(4))).to("tpu")
    compiled = torch.compile(blocks, backend="tpu", dynamic=True, fullgraph=True)
    torch.tpu.set_shape_buckets("off")
    try:
        with graph_texts() as texts:
            for length in (6, 10):
                x = torch.randn(length, 8, device="tpu")
                torch.testing.assert_close(compiled(x), blocks(x), rtol=1e-4, atol=1e-5)
    finally:
        torch.tpu.set_shape_buckets(None)
    assert len(texts) == 2 and all(functions(t) for t in texts)


def test_operators_of_many_tensors():
    """Values of a shared piece may be lists."""

    def fn(xs):
        for _ in range(5):
            xs = torch._foreach_add(torch._foreach_sin(xs), torch._foreach_tanh(xs))
        return xs

    xs = [torch.randn(3, device="tpu") for _ in range(4)]
    with graph_texts() as texts:
        out = torch.compile(fn, backend="tpu", fullgraph=True)(xs)
    torch.testing.assert_close(out, fn(xs))
    assert functions(texts[0])
