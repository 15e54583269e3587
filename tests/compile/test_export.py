"""torch.export: programs load and run on tpu, and become StableHLO that stands on its own."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.nn import functional as F

import torchtpu_core
from tests.compile import models
from tests.compile.common import executions
from torchtpu_core import _C, plugin


@pytest.fixture(scope="module")
def client():
    """A PJRT client that knows nothing of this package's device."""
    loaded = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path()))
    return loaded.create_client({"cpu_device_count": 1})


def run_text(client, program, feed):
    """The results of a program's text, compiled and run by the bare client."""
    executable = client.compile(program.text)
    buffers = [
        client.buffer(np.ascontiguousarray(t.detach().cpu().numpy()), _type(t)) for t in feed
    ]
    outs = executable.execute(buffers, device=0)
    return [
        torch.frombuffer(bytearray(o.to_bytes()), dtype=r.dtype).reshape(r.shape)
        for o, r in zip(outs, program.results, strict=True)
    ]


def _type(t):
    return {torch.float32: "f32", torch.int64: "i64", torch.uint64: "ui64"}[t.dtype]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x, scale=None):
        y = torch.tanh(self.linear(x))
        self.count += y.sum(0)
        return {"y": y * scale, "count": self.count * 2}


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_text_of_a_decoder(client, device):
    model = models.GPT().to(device)
    ids = torch.randint(0, 64, (2, 16)).to(device)
    program = torchtpu_core.export_stablehlo(model, (ids,))
    (out,) = run_text(client, program, program.feed(ids))
    torch.testing.assert_close(out, model(ids).detach().cpu(), rtol=1e-4, atol=1e-5)
    named = {a.name: a for a in program.arguments}
    assert {n for n, a in named.items() if a.kind == "parameter"} >= {
        n for n, _ in model.named_parameters()
    }
    assert "%blocks.0.qkv.weight: tensor<96x32xf32>" in program.text
    assert [a.kind for a in program.arguments][-1] == "input"
    assert program.results[0].shape == (2, 16, 64)


def test_text_is_complete(client):
    """Weights come as arguments: other weights, other results; nothing large is embedded."""
    model = nn.Linear(64, 64)
    x = torch.randn(2, 64)
    program = torchtpu_core.export_stablehlo(torch.export.export(model, (x,)))
    assert len(program.text) < 2000
    feed = program.feed(x)
    (out,) = run_text(client, program, [t * 2 for t in feed[:-1]] + feed[-1:])
    torch.testing.assert_close(out, model(x).detach() * 2, rtol=1e-4, atol=1e-5)


def test_buffers_and_trees(client):
    model = Counter()
    x, scale = torch.randn(2, 3), torch.tensor(3.0)
    exported = torch.export.export(model, (x,), {"scale": scale})
    program = torchtpu_core.export_stablehlo(exported)
    assert [(r.name, r.kind) for r in program.results[:1]] == [("count", "buffer")]
    count, *outs = run_text(client, program, program.feed(x, scale=scale))
    expected = model(x, scale=scale)
    torch.testing.assert_close(count, model.count)
    torch.testing.assert_close(outs, [expected["y"].detach(), expected["count"].detach()])


def test_random_numbers_take_the_state_as_last_argument(client):
    class Noise(nn.Module):
        def forward(self, x):
            return x + F.dropout(torch.ones_like(x), 0.5)

    x = torch.zeros(64)
    program = torchtpu_core.export_stablehlo(Noise(), (x,))
    assert program.arguments[-1].kind == "random"
    state = torch.tensor([5, 0], dtype=torch.uint64)
    (out,) = run_text(client, program, [*program.feed(x), state])
    torch.manual_seed(5)
    torch.testing.assert_close(out, F.dropout(torch.ones(64, device="tpu"), 0.5).cpu())


def test_control_flow_stays(client):
    class Branch(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    program = torchtpu_core.export_stablehlo(Branch(), (torch.ones(3),))
    assert "stablehlo.if" in program.text
    for x in (torch.ones(3), -torch.ones(3)):
        (out,) = run_text(client, program, program.feed(x))
        torch.testing.assert_close(out, Branch()(x))


def test_bytecode_says_what_writes_it():
    program = torchtpu_core.export_stablehlo(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(NotImplementedError, match="stablehlo-translate --serialize"):
        _ = program.bytecode


def test_open_sizes_are_refused():
    exported = torch.export.export(
        nn.ReLU(), (torch.ones(4, 2),), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    with pytest.raises(NotImplementedError, match="export without dynamic_shapes"):
        torchtpu_core.export_stablehlo(exported)


def test_program_exported_on_tpu_runs_after_loading(tmp_path):
    model = Counter().to("tpu")
    x, scale = torch.randn(2, 3, device="tpu"), torch.tensor(3.0, device="tpu")
    exported = torch.export.export(model, (x,), {"scale": scale})
    torch.export.save(exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for _ in range(2):
        torch.testing.assert_close(loaded(x, scale=scale), model(x, scale=scale))
    assert loaded.count.device.type == "tpu"


def test_program_exported_on_the_cpu_moves_to_tpu():
    model = models.GPT()
    ids = torch.randint(0, 64, (2, 16))
    moved = move_to_device_pass(torch.export.export(model, (ids,)), "tpu").module()
    expected = model(ids)
    torch.testing.assert_close(moved(ids.to("tpu")).cpu(), expected, rtol=1e-4, atol=1e-5)
    compiled = torch.compile(moved, backend="tpu", fullgraph=True)
    torch.testing.assert_close(compiled(ids.to("tpu")).cpu(), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        compiled(ids.to("tpu"))
        on_device = ids.to("tpu")
        assert executions(lambda: compiled(on_device)) == 1


def test_names_are_valid_identifiers():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    program = torchtpu_core.export_stablehlo(model, (torch.ones(1, 2),))
    names = re.findall(r"%([\w.$-]+): tensor", program.text.splitlines()[1])
    assert names == ["_0.weight", "_0.bias", "_1.weight", "_1.bias", "input"]
