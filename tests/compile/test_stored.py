"""Compiled graphs on disk: what a second process finds, what makes another graph, what is traced
all the same.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

import torchtpu_core
from tests.common.cache import settings
from torchtpu_core import _C, cache, plans
from torchtpu_core.compile import captures

COUNTS = ("graphs_traced", "graphs_from_disk", "graphs_lowered")

_STEP = """
import json, torch, torchtpu_core
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Dropout(0.5)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
forward, update = torch.compile(model), torch.compile(optimizer.step)
x = torch.randn(4, 8).to("tpu")
for _ in range(2):
    loss = forward(x).square().mean()
    loss.backward()
    update()
stats = torchtpu_core.stats() | torch._dynamo.utils.counters["stats"]
print(json.dumps([loss.item(), {k: v for k, v in stats.items() if isinstance(v, int)}]))
"""


def _step(**env):
    """What a process that takes two steps finds and counts."""
    command = [sys.executable, "-c", _STEP]
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_traces_lowers_and_compiles_nothing(tmp_path):
    (first, cold), (second, warm) = (_step(TORCHTPU_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert [cold[k] for k in COUNTS] == [3, 0, 3]
    assert [warm[k] for k in COUNTS] == [0, 3, 0]
    assert cold["programs_compiled"] > 0 and warm["programs_compiled"] == 0
    assert second == first


def test_a_second_process_captures_only_what_dynamo_cannot_keep(tmp_path):
    folders = {
        "TORCHTPU_CACHE_DIR": str(tmp_path / "programs"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "captures"),
    }
    runs = [_step(**folders, TORCH_CACHING_PRECOMPILE="1") for _ in range(2)]
    (first, cold), (second, warm) = runs
    assert cold["unique_graphs"] == 2  # the model's, and the optimizer's, whose guards stay here
    assert warm["unique_graphs"] == 1
    assert warm["graphs_traced"] == 0 and warm["graphs_from_disk"] == 3
    assert second == first


def test_a_backward_is_loaded_while_its_forward_runs(counted):
    def loss(x):
        return (x.sin() * 3).square().sum()

    def step(backward):
        x = torch.arange(6.0, device="tpu").requires_grad_()
        value, _ = counted(loss, x)
        if backward:
            value.backward()
        return _C.forget_ahead()

    _C.forget_ahead()
    assert step(backward=True) == 0  # nothing was on disk
    _C._evict_programs(0)
    assert step(backward=False) == 1
    _C._evict_programs(0)
    before = torchtpu_core.stats()["programs_compiled"]
    assert step(backward=True) == 0
    assert torchtpu_core.stats()["programs_compiled"] == before


def test_captures_of_another_version_are_not_used(monkeypatch):
    kept = pickle.dumps(captures.Capture("__compiled_fn_0", None))
    assert pickle.loads(kept).key == "__compiled_fn_0"
    monkeypatch.setattr(plans, "makers", lambda: "others")
    with pytest.raises(RuntimeError, match="another version"):
        pickle.loads(kept)


@pytest.fixture
def counted(tmp_path):
    """A cache of its own, and what counts the graphs of a function compiled anew in it."""

    def run(fn, *args, **options):
        torch._dynamo.reset()
        before = {k: torchtpu_core.stats().get(k, 0) for k in COUNTS}
        result = torch.compile(fn, backend="tpu", **options)(*args)
        after = torchtpu_core.stats()
        return result, [after.get(k, 0) - before[k] for k in COUNTS]

    with settings(TORCHTPU_CACHE_DIR=str(tmp_path)):
        assert cache.default_cache().folder == tmp_path  # tests damage it
        yield run


TRACED, FOUND = [1, 0, 1], [0, 1, 0]


def test_found_again(counted):
    x = torch.randn(3, 4, device="tpu")
    expected = torch.relu(x) @ x.T
    for counts in (TRACED, FOUND):
        result, found = counted(lambda x: torch.relu(x) @ x.T, x)
        assert found == counts
        torch.testing.assert_close(result, expected)


def _scaled(n):
    return lambda x, y: (x * n) @ y.T


def _marked(x, y):
    with torch.tpu.precision("highest"):
        return (x * 2) @ y.T


_x = torch.randn(3, 4)
_BASE = (_scaled(2), lambda: (_x.to("tpu"), (_x + 1).to("tpu")))


def _shared():
    whole = torch.cat([_x, _x]).to("tpu")
    return whole[:3], whole[3:]


@pytest.mark.parametrize(
    "fn, args",
    [
        (_scaled(3), _BASE[1]),
        (_scaled(2.0), _BASE[1]),
        (_marked, _BASE[1]),
        (_BASE[0], lambda: [t.to(torch.bfloat16) for t in _BASE[1]()]),
        (_BASE[0], lambda: [t[:, :2].contiguous() for t in _BASE[1]()]),
        (_BASE[0], lambda: [t.T.contiguous().T for t in _BASE[1]()]),
        (_BASE[0], lambda: [t.requires_grad_() for t in _BASE[1]()]),
        (_BASE[0], _shared),
    ],
    ids=["number", "kind", "precision", "dtype", "shape", "strides", "gradient", "storage"],
)
def test_another_graph(counted, fn, args):
    counted(_BASE[0], *_BASE[1]())
    x, y = args()
    result, found = counted(fn, x, y)
    assert found[0] > 0 and found[1] == 0
    torch.testing.assert_close(result, fn(x, y))


def test_settings_make_another_graph(counted):
    x = torch.randn(4, 4, device="tpu")

    def fn(x):
        return x @ x

    assert counted(fn, x)[1] == TRACED
    with torch.autocast("tpu", dtype=torch.bfloat16):
        result, found = counted(fn, x)
        assert found == TRACED and result.dtype == torch.bfloat16
    assert counted(fn, x)[1] == FOUND


def test_flags_make_another_program_of_the_same_graph(counted):
    """The graph is read from disk, since its program under other flags is not there."""
    x = torch.randn(16, 16, device="tpu")
    exact, _ = counted(lambda x: x @ x, x)
    with torchtpu_core.tpu.emulate_precision(True):
        rough, found = counted(lambda x: x @ x, x)
        assert found == [0, 1, 1]
        torch.testing.assert_close(rough, x @ x)
    assert not torch.equal(rough, exact)


def test_other_sources_make_other_keys(counted, monkeypatch):
    x = torch.randn(3, device="tpu")
    counted(torch.sin, x)
    monkeypatch.setattr(plans, "makers", lambda: "changed")
    assert counted(torch.sin, x)[1] == TRACED


@pytest.mark.parametrize("payload", [b"", pickle.dumps("no entry"), pickle.dumps((1, 2))[:-3]])
def test_damaged_entries_are_traced(counted, payload):
    x = torch.randn(3, device="tpu")
    counted(lambda x: x.sin() + 1, x)
    store = cache.default_cache()
    for key in [p.stem for p in store.folder.iterdir()]:
        store.put(key, payload)
    result, found = counted(lambda x: x.sin() + 1, x)
    assert found == TRACED
    torch.testing.assert_close(result, x.sin() + 1)


def test_constants_come_back(counted):
    table = list(range(40))
    x = torch.randn(40, device="tpu")
    for first in (True, False):
        result, found = counted(lambda x: x + torch.tensor(table, device="tpu"), x)
        assert found[0] == first
        torch.testing.assert_close(result.cpu(), x.cpu() + torch.tensor(table))


def test_custom_operators_are_traced(counted):
    @torch.library.custom_op("torchtpu_stored::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    x = torch.randn(3, device="tpu")
    for _ in range(2):
        result, found = counted(lambda x: twice(x) + 1, x)
        assert found[0] == 1 and found[1] == 0
        torch.testing.assert_close(result, x * 2 + 1)


def test_open_sizes_are_traced(counted):
    for _ in range(2):
        x = torch.randn(5, device="tpu")
        result, found = counted(lambda x: x * x.shape[0], x, dynamic=True)
        assert found[:2] == [1, 0]
        torch.testing.assert_close(result, x * 5)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"amsgrad": True, "weight_decay": 0.1},
        {"maximize": True},
        {"fused": True},
        {"lr": torch.tensor(1e-2)},
    ],
    ids=["default", "amsgrad", "maximize", "fused", "tensor lr"],
)
def test_adam(optimizer, options):
    """Compiled, it is the fused operator where that has the rule; always eager's numbers."""
    torch._dynamo.reset()
    eager = torch.nn.Linear(4, 3, device="tpu")
    other = copy.deepcopy(eager)
    steps = []
    for model in (eager, other):
        step = optimizer(model.parameters(), **({"lr": 1e-2} | options)).step
        steps.append(torch.compile(step, backend="tpu") if model is other else step)
    x = torch.randn(5, 4, device="tpu")
    for _ in range(3):
        for model, step in zip((eager, other), steps):
            model.zero_grad()
            model(x).square().mean().backward()
            step()
    for p, q in zip(eager.parameters(), other.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-5, atol=1e-6)
