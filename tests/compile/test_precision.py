"""Precision modes in compiled functions: regions are traced, cover the products inside them and
these products' gradients, and nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.common.programs import built_texts, of_graphs
from tests.compile.common import compiled_since
from torchtpu_core import flags, plugin, stats


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch.set_float32_matmul_precision("highest")
    assert flags.get(flags.PRECISION | flags.EMULATE) == 0


@pytest.fixture
def emulated():
    with torch.tpu.emulate_precision():
        yield


@pytest.fixture
def texts(monkeypatch):
    """The text of every graph's program built in the test, in order."""
    return built_texts(monkeypatch, of_graphs)


def tpu(fn):
    return torch.compile(fn, backend="tpu", fullgraph=True)


def precisions(text):
    """The precisions of the products of a program, in order."""
    found = re.findall(r"precision_config = \[#stablehlo<precision (\w+)>, (.*?)\]", text)
    assert all(second == f"#stablehlo<precision {first}>" for first, second in found)
    return [first.lower() for first, _ in found]


def regions(x, w):
    y = x @ w
    with torch.tpu.precision("high"):
        z = torch.relu(y @ w)
        with torch.tpu.precision("default"):
            u = z @ w
        u = u @ w
    return u @ w


def test_regions_cover_their_products_and_gradients(texts):
    x = torch.randn(6, 8, device="tpu", requires_grad=True)
    w = torch.randn(8, 8, device="tpu", requires_grad=True)
    out = tpu(regions)(x, w)
    assert precisions(texts[0]) == ["highest", "high", "default", "high", "highest"]
    del texts[:]
    out.sum().backward()
    (backward,) = (t for t in texts if "dot_general" in t)
    twice = [mode for mode in ("highest", "high", "default", "high", "highest") for _ in range(2)]
    assert precisions(backward) == twice


def test_compiled_regions_equal_eager_ones(emulated):
    x, w = torch.randn(6, 16, device="tpu"), torch.randn(16, 16, device="tpu")
    expected = regions(x, w)
    torch.testing.assert_close(tpu(regions)(x, w), expected, rtol=1e-6, atol=1e-5)
    with torch.tpu.emulate_precision(False):
        assert (regions(x, w) - expected).abs().max() > 1e-3


def test_other_products_in_regions(texts):
    def fn(x, w, q):
        with torch.tpu.precision("default"):
            y = F.conv2d(x, w, padding=1)
            a = F.scaled_dot_product_attention(q, q, q)
            e = torch.einsum("nchw,nchv->nwv", y, y)
        return y.sum() + a.square().sum() + e.sum() + (q @ q.mT).sum()

    x, w, q = (
        torch.randn(s, device="tpu", requires_grad=True)
        for s in ((2, 3, 5, 5), (4, 3, 3, 3), (2, 2, 6, 8))
    )
    out = tpu(fn)(x, w, q)
    assert texts[0].count("stablehlo.convolution") == 1
    assert precisions(texts[0]) == ["default"] * 4 + ["highest"]
    del texts[:]
    out.backward()
    (backward,) = (t for t in texts if "stablehlo.convolution" in t)
    assert backward.count("stablehlo.convolution") == 2
    modes = precisions(backward)
    assert modes.count("highest") == 2  # of q @ q.mT
    assert modes.count("default") == len(modes) - 2 >= 8


def test_a_decorated_function(texts):
    @torch.tpu.precision("high")
    def inner(x):
        return x @ x.T

    x = torch.randn(6, 9, device="tpu")
    tpu(lambda x: inner(x) + x @ x.T)(x)
    assert precisions(texts[0]) == ["high", "highest"]
    del texts[:]
    tpu(inner)(x)  # decorated, then compiled
    assert precisions(texts[0]) == ["high"]
    assert flags.get(flags.PRECISION) == 0


def test_the_setting_between_calls(texts):
    """A change of it never meets the program of another; one met before is not built again."""

    def fn(x):
        with torch.tpu.precision("high"):
            y = x @ x.T
        return y @ x

    x, compiled = torch.randn(6, 10, device="tpu"), tpu(fn)
    for setting, mode in (("highest", "highest"), ("medium", "default"), ("high", "high")):
        torch.set_float32_matmul_precision(setting)
        del texts[:]
        compiled(x)
        assert precisions(texts[0]) == ["high", mode]
    with torch.tpu.precision("default"):  # around a call it is the setting
        before = stats()
        del texts[:]
        compiled(x)
    torch.set_float32_matmul_precision("highest")
    compiled(x)
    assert not texts
    assert compiled_since(before) == 0


def test_emulation_between_calls():
    x = torch.randn(20, 20, device="tpu")
    compiled = tpu(lambda x: x @ x)
    torch.set_float32_matmul_precision("medium")
    exact = compiled(x)
    with torch.tpu.emulate_precision():
        rough = compiled(x)
        torch.testing.assert_close(rough, x @ x, rtol=1e-6, atol=1e-5)
    assert (exact - rough).abs().max() > 1e-3
    assert torch.equal(compiled(x), exact)


def test_checkpointed_regions(texts):
    def block(x, w):
        with torch.tpu.precision("high"):
            return torch.sin(x @ w) @ w

    def fn(x, w):
        return (checkpoint(block, x, w, use_reentrant=False) @ w).sum()

    x, w = (torch.randn(7, 7, device="tpu", requires_grad=True) for _ in range(2))
    out = tpu(fn)(x, w)
    assert precisions(texts[0]) == ["high", "high", "highest"]
    del texts[:]
    out.backward()
    (backward,) = (t for t in texts if "dot_general" in t)
    assert precisions(backward).count("highest") == 2
    assert precisions(backward).count("high") == 6  # 4 gradients, 2 products made again


def test_autocast_composes(texts):
    def fn(x, w):
        with torch.tpu.precision("default"):
            with torch.autocast("tpu", dtype=torch.bfloat16):
                y = x @ w
            return y.float() @ w

    x, w = torch.randn(6, 11, device="tpu"), torch.randn(11, 11, device="tpu")
    tpu(fn)(x, w)
    assert precisions(texts[0]) == ["default", "default"]
    first, second = re.findall(r'"stablehlo.dot_general".*: \((tensor<\w+>)', texts[0])
    assert (first, second) == ("tensor<6x11xbf16>", "tensor<6x11xf32>")


def test_a_graph_break_inside_of_a_region(emulated):
    def fn(x):
        with torch.tpu.precision("default"):
            y = x @ x
            torch._dynamo.graph_break()
            return y @ x

    x = torch.randn(12, 12, device="tpu")
    torch.testing.assert_close(torch.compile(fn, backend="tpu")(x), fn(x), rtol=1e-6, atol=1e-5)


def test_an_unknown_mode_is_an_error():
    def fn(x):
        with torch.tpu.precision("low"):
            return x @ x

    with pytest.raises(Exception, match="unknown mode 'low'"):
        tpu(fn)(torch.ones(2, 2, device="tpu"))


def test_exported_programs_keep_their_regions():
    class Model(torch.nn.Module):
        def forward(self, x):
            return regions(x, x)

    for strict in (False, True):
        exported = torch.export.export(Model(), (torch.ones(4, 4),), strict=strict)
        nodes = [n for n in exported.graph.nodes if "matmul" in str(n.target)]
        modes = [n.meta.get("custom", {}).get("torchtpu_precision") for n in nodes]
        assert modes == [None, "high", "default", "high", None]


_FOR_A_TPU = """
import sys
from torchtpu_core import _C, plugin

topology = _C.pjrt.load_plugin(str(plugin.libtpu_path())).topology("v5e:2x2")
sizes = [topology.compile(text).memory_stats()["generated_code"]
         for text in sys.stdin.read().split("//----")]
print(*sizes)
"""


@pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")
def test_libtpu_compiles_each_mode(texts):
    """The same programs as the CPU's (where products are small), the more passes the larger."""
    x, w = torch.randn(32, 128, device="tpu"), torch.randn(4, 3, 3, 3, device="tpu")
    image = torch.randn(2, 3, 5, 5, device="tpu")
    compiled = tpu(lambda x, w, image: (x @ x.T, F.conv2d(image, w)))
    for mode in ("default", "high", "highest"):
        with torch.tpu.precision(mode):
            compiled(x, w, image)
    done = subprocess.run(
        [sys.executable, "-c", _FOR_A_TPU],
        input="//----".join(texts),
        env={**os.environ, **plugin.AOT_ENVIRONMENT},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    default, high, highest = map(int, done.stdout.split())
    assert default < high < highest


def test_equal_layers_of_other_precision_are_not_shared(texts):
    """Layers that differ by their region alone stay apart; those that do not are one function."""
    w = torch.randn(16, 16, device="tpu")

    def layer(x):
        for _ in range(3):
            x = F.layer_norm(torch.tanh(x @ w) + x.sin() * x.cos(), (16,))
        return x

    def f(x):
        with torch.tpu.precision("default"):
            x = layer(layer(x))
        with torch.tpu.precision("high"):
            return layer(layer(x))

    tpu(f)(torch.randn(4, 16, device="tpu"))
    (text,) = texts
    bodies = re.split(r"(?=func\.func )", text)[1:]
    assert all(len(set(precisions(body))) < 2 for body in bodies if "private" in body)
    assert {p for body in bodies for p in precisions(body)} == {"default", "high"}
