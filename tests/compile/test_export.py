"""torch.export: programs load and run on tpu, and become StableHLO that stands on its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.nn import functional as F
from torch.utils import _pytree as pytree

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
    return run(client, program.text, program, feed)


def run(client, code, program, feed):
    """The same of its text or bytecode."""
    executable = client.compile(code)
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


class Chosen(nn.Module):
    """Operators that are CHLO in the text."""

    def forward(self, x):
        values, places = torch.erf(x).topk(2)
        return values.asinh(), places


@pytest.mark.parametrize("version", [None, "1.0.0"])
@pytest.mark.parametrize("make", [models.GPT, Chosen, Counter])
def test_bytecode_runs_elsewhere(client, make, version):
    """Written for a version, read by jaxlib, compiled as it is: the numbers of the model."""
    stablehlo = pytest.importorskip("jaxlib.mlir.dialects.stablehlo")
    model = make().eval()
    args, kwargs = {
        models.GPT: ((torch.randint(0, 64, (2, 16)),), {}),
        Chosen: ((torch.randn(3, 7),), {}),
        Counter: ((torch.randn(2, 3),), {"scale": torch.tensor(3.0)}),
    }[make]
    exported = torch.export.export(model, args, kwargs)
    program = torchtpu_core.export_stablehlo(exported)
    code = program.serialize(version)
    assert code == (program.serialize(version) if version else program.bytecode)
    assert code[:4] == b"ML\xefR"
    if version is not None:
        assert f"StableHLO_v{version}".encode() in code
    assert stablehlo.deserialize_portable_artifact_str(code)
    results = run(client, code, program, program.feed(*args, **kwargs))
    expected = pytree.tree_leaves(model(*args, **kwargs))
    expected = [*([model.count] if make is Counter else []), *expected]
    torch.testing.assert_close(results, [t.detach() for t in expected], rtol=1e-4, atol=1e-5)


def test_bytecode_runs_in_jax(tmp_path):
    pytest.importorskip("jax")
    model, x = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), torch.randn(4, 6)
    program = torchtpu_core.export_stablehlo(torch.export.export(model, (x,)))
    (tmp_path / "program.vhlo").write_bytes(program.bytecode)
    np.savez(tmp_path / "feed.npz", *(t.detach().numpy() for t in program.feed(x)))
    done = subprocess.run(
        [sys.executable, "-c", _RUN_IN_JAX, str(tmp_path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    out = torch.from_numpy(np.load(tmp_path / "out.npy"))
    torch.testing.assert_close(out, model(x).detach(), rtol=1e-4, atol=1e-5)


_RUN_IN_JAX = """
import sys, pathlib, numpy, jax
from jaxlib import _jax, xla_client
folder = pathlib.Path(sys.argv[1])
devices = jax.devices("cpu")[:1]
code = (folder / "program.vhlo").read_bytes()
program = devices[0].client.compile_and_load(
    code, _jax.DeviceList(tuple(devices)), xla_client.CompileOptions()
)
feed = [jax.device_put(x, devices[0]) for x in numpy.load(folder / "feed.npz").values()]
((out,),) = program.execute_sharded(feed).disassemble_into_single_device_arrays()
numpy.save(folder / "out.npy", numpy.asarray(out))
"""


def test_bytecode_without_its_writer_says_what_to_install(monkeypatch):
    program = torchtpu_core.export_stablehlo(nn.ReLU(), (torch.ones(2),))
    for name in ("jaxlib", "jaxlib._jax"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'torchtpu\[export\]'"):
        _ = program.bytecode


@pytest.mark.parametrize("version", ["0.1.0", "99.0.0", "newest"])
def test_bytecode_of_an_unknown_version(version):
    pytest.importorskip("jaxlib")
    program = torchtpu_core.export_stablehlo(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(ValueError, match=f"{version}.*the installed jaxlib writes 0.9.0 to"):
        program.serialize(version)


def test_bytecode_imports_no_jax():
    code = (
        "import sys, torch, torchtpu_core\n"
        "p = torchtpu_core.export_stablehlo(torch.nn.ReLU(), (torch.ones(2),))\n"
        "assert p.bytecode and 'jax' not in sys.modules"
    )
    pytest.importorskip("jaxlib")
    subprocess.run([sys.executable, "-c", code], check=True)


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
