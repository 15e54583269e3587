"""State that a compiled graph changes: buffers, caches, optimizers, views, random numbers, and the
programs on disk.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchtpu_core
from tests.compile import models
from tests.compile.common import compiled_since, executions


def tpu(fn, **options):
    return torch.compile(fn, backend="tpu", fullgraph=True, **options)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def test_buffers_in_inference():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count += x
            return self.count * 2

    model = Counter().to("tpu")
    compiled = tpu(model)
    x = torch.ones(3, device="tpu")
    for n in (1, 2, 3):
        torch.testing.assert_close(compiled(x).cpu(), torch.full((3,), 2.0 * n))
    assert executions(lambda: compiled(x)) == 1


def test_cache_of_keys_is_written_in_place():
    def step(cache, new, at, rows):
        cache[:, at] = new.unsqueeze(1)
        cache.index_put_((rows, at + 1), new[rows])
        cache[:, -2:].copy_(new.unsqueeze(1).expand(-1, 2, -1))
        return cache.sum(dim=1)

    new = torch.randn(2, 4, device="tpu")
    at, rows = torch.tensor([3], device="tpu"), torch.tensor([1, 0], device="tpu")
    eager = torch.zeros(2, 8, 4, device="tpu")
    cache = eager.clone()
    address = cache.data_ptr()
    compiled = tpu(step)
    for _ in range(2):
        torch.testing.assert_close(compiled(cache, new, at, rows), step(eager, new, at, rows))
        torch.testing.assert_close(cache, eager)
    assert cache.data_ptr() == address


def test_a_large_cache_exists_once():
    cache = torch.zeros(1 << 20, device="tpu")
    compiled = tpu(lambda cache, x: cache[:4].copy_(x).sum())
    x = torch.ones(4, device="tpu")
    compiled(cache, x)
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    compiled(cache, x)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - before < cache.nbytes // 2
    torch.testing.assert_close(cache[:5].cpu(), torch.tensor([1.0, 1, 1, 1, 0]))


def test_views_as_arguments():
    def fn(a, b, c):
        c.add_(1)
        return a + b.sum(0), b.transpose(0, 1), c[1:] * 2

    base = torch.arange(24.0, device="tpu").reshape(4, 6)
    other = base.clone()
    args, expected = ((x[0, ::2], x[1:3, 1:4].T.T, x[3, 2:]) for x in (base, other))
    for actual, right in zip(tpu(fn)(*args), fn(*expected)):
        torch.testing.assert_close(actual, right)
    torch.testing.assert_close(base, other)


def test_an_output_that_is_a_view_of_an_argument_aliases_it():
    x = torch.zeros(2, 3, device="tpu")
    y = tpu(lambda x: x.t())(x)
    y.fill_(7)
    assert x.sum().item() == 42


def test_arguments_that_alias():
    def fn(a, b):
        a.mul_(2)
        return a + b

    x, y = torch.ones(4, device="tpu"), torch.ones(4, device="tpu")
    torch.testing.assert_close(tpu(fn)(x, x), fn(y, y))
    torch.testing.assert_close(x, y)


def _optimizers():
    yield "sgd", lambda p: torch.optim.SGD(p, lr=0.1)
    yield "sgd-momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
    for fused in (False, True):
        options = {"fused": True} if fused else {"foreach": True}
        kind = "fused" if fused else "foreach"
        yield f"adam-{kind}", lambda p, o=options: torch.optim.Adam(p, lr=0.01, **o)
        yield f"adamw-{kind}", lambda p, o=options: torch.optim.AdamW(p, lr=0.01, **o)
    yield "adamw-single", lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False)


def _train_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("make", [pytest.param(f, id=name) for name, f in _optimizers()])
def test_train_step(make):
    eager = models.mlp().to("tpu")
    other = copy.deepcopy(eager)
    step = _train_step(eager, make(eager.parameters()))
    compiled = torch.compile(_train_step(other, make(other.parameters())), backend="tpu")
    x, y = torch.randn(6, 12, device="tpu"), torch.randint(0, 5, (6,), device="tpu")
    for _ in range(4):
        torch.testing.assert_close(compiled(x, y), step(x, y), rtol=1e-3, atol=1e-4)
    for (name, p), q in zip(eager.named_parameters(), other.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_a_step_by_autograd_grad_is_one_program():
    model = models.mlp().to("tpu")
    other = copy.deepcopy(model)

    def step_of(model):
        def step(x):
            loss = model(x).square().mean()
            parameters = list(model.parameters())
            with torch.no_grad():
                for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
                    p.sub_(0.1 * g)
            return loss.detach()

        return step

    x = torch.randn(6, 12, device="tpu")
    eager = step_of(model)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = tpu(step_of(other))
        for _ in range(3):
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-5)
        assert executions(lambda: compiled(x)) == 1


def test_train_step_settles_and_holds_one_copy_of_its_state():
    model = nn.Linear(512, 512, bias=False).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update = torch.compile(optimizer.step, backend="tpu")
    model(torch.randn(4, 512, device="tpu")).sum().backward()
    update()
    update()
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    stats = torchtpu_core.stats()
    torch.tpu.reset_peak_memory_stats()
    assert executions(update) == 1
    torch.tpu.synchronize()
    assert compiled_since(stats) == 0
    # Parameter, gradient and two averages are held; nothing of their size comes on top.
    assert torch.tpu.max_memory_allocated() - before < model.weight.nbytes // 2


def test_dropout_draws_what_eager_draws():
    model = models.Block(dropout=0.3).to("tpu")
    compiled = tpu(model)
    x = torch.randn(2, 16, 32, device="tpu")
    results = []
    for m in (model, compiled, compiled):
        torch.manual_seed(3)
        m(x)  # moves the generator on
        results.append(m(x))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(results[1], results[2])
    assert not torch.equal(compiled(x), compiled(x))


def test_random_factories_draw_what_eager_draws():
    def fn(x):
        return torch.rand_like(x) + torch.randn(3, device=x.device), F.dropout(x, 0.5)

    x = torch.ones(2, 3, device="tpu")
    compiled = tpu(fn)
    torch.manual_seed(5)
    expected = fn(x), fn(x)
    torch.manual_seed(5)
    actual = compiled(x), compiled(x)
    for e, a in zip(expected, actual):
        torch.testing.assert_close(a, e)


def test_backward_of_dropout_uses_the_forward_mask():
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = tpu(lambda x: F.dropout(x, 0.5))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_a_second_process_compiles_nothing(tmp_path):
    """Nor does it import the lowerings."""
    code = (
        "import json, sys, torch, torchtpu_core\n"
        "from tests.compile import models\n"
        "model = torch.compile(models.GPT().to('tpu'), backend='tpu')\n"
        "ids = torch.zeros(2, 16, dtype=torch.int64).to('tpu')\n"
        "model(ids).square().mean().backward()\n"
        "lowers = 'torchtpu_core.lowering.program' in sys.modules\n"
        "print(json.dumps(torchtpu_core.stats() | {'lowers': lowers}))\n"
    )
    env = os.environ | {"TORCHTPU_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    assert runs[0]["programs_compiled"] > 0
    assert runs[1]["programs_compiled"] == 0
    assert runs[1]["programs_loaded"] == runs[0]["programs_compiled"]
    assert [run["lowers"] for run in runs] == [True, False]
