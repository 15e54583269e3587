"""What Dynamo captures: the default backend, graph breaks, sizes, numbers, devices, errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import torchtpu_core
from tests.compile.common import compiled_since, executions


def tpu(fn, **options):
    return torch.compile(fn, backend="tpu", **options)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def test_listed():
    assert "tpu" in torch._dynamo.list_backends()


def test_default_backend_is_that_of_the_device():
    compiled = torch.compile(lambda x: torch.relu(x) * 2 + x.cos(), fullgraph=True)
    x = torch.randn(4, 4, device="tpu")
    torch.testing.assert_close(compiled(x), torch.relu(x) * 2 + x.cos())
    assert executions(lambda: compiled(x)) == 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(mode):
    x = torch.randn(3, device="tpu")
    torch.testing.assert_close(tpu(torch.sin, mode=mode)(x), torch.sin(x))


def test_options_are_refused():
    with pytest.raises(Exception, match="has no options"):
        tpu(torch.sin, options={"speed": 11})(torch.randn(3, device="tpu"))


def test_neither_triton_nor_inductor_compiles():
    code = (
        "import sys, torch\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "f = torch.compile(lambda x: (x * 2).sum())\n"
        "assert f(torch.ones(3, device='tpu')).item() == 6\n"
        "assert 'triton' not in sys.modules\n"
        "assert 'torch._inductor.compile_fx' not in sys.modules\n"
        "assert 'torch._inductor.graph' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_graph_break():
    def fn(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    x = torch.ones(3, device="tpu")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        tpu(fn, fullgraph=True)(x)
    torch.testing.assert_close(tpu(fn)(x), x * 2 + 1)
    torch.testing.assert_close(tpu(fn)(-x), x * -2 - 1)


def test_part_of_a_function_on_the_cpu():
    def fn(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y.cpu() * 2

    x = torch.randn(3, device="tpu")
    torch.testing.assert_close(tpu(fn)(x), (x + 1).cpu() * 2)


def test_cpu_tensors_in_a_graph():
    def fn(x, table, scale):
        table.mul_(2)
        return x + table.to(x.device) * scale, table.sum(), scale + 1

    table = torch.arange(3.0)
    x = torch.randn(3, device="tpu")
    out, total, scale = tpu(fn, fullgraph=True)(x, table, torch.tensor(3.0))
    torch.testing.assert_close(table, torch.tensor([0.0, 2.0, 4.0]))
    torch.testing.assert_close(out.cpu(), x.cpu() + table * 3)
    assert out.device.type == "tpu" and total.device.type == scale.device.type == "cpu"
    assert total.item() == 6 and scale.item() == 4


def test_dynamic_sizes_are_specialised():
    def fn(x):
        n = x.shape[0]
        return (x.view(n // 2, 2, -1).sum(1) + n), x.new_zeros(n + 1)

    compiled = tpu(fn, dynamic=True, fullgraph=True)
    for n in (4, 6, 10, 6):
        x = torch.randn(n, 3, device="tpu")
        torch.testing.assert_close(compiled(x), fn(x))
    before = torchtpu_core.stats()
    compiled(torch.randn(10, 3, device="tpu"))
    assert compiled_since(before) == 0


def test_dynamic_sizes_with_gradients():
    layer = torch.nn.Linear(3, 4).to("tpu")
    compiled = tpu(lambda x: torch.softmax(layer(x), 0).square().sum() * x.shape[0], dynamic=True)
    for n in (2, 5, 7):
        x = torch.randn(n, 3, device="tpu", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).backward()
        (torch.softmax(layer(y), 0).square().sum() * n).backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_automatic_dynamic_captures_twice():
    captured = torch._dynamo.utils.counters["stats"]
    compiled = tpu(lambda x: torch.cumsum(x * 2, 0))
    first = captured["unique_graphs"]
    for n in (3, 4, 5, 6):
        x = torch.randn(n, device="tpu")
        torch.testing.assert_close(compiled(x), torch.cumsum(x * 2, 0))
    assert captured["unique_graphs"] - first == 2


def test_numbers():
    compiled = tpu(lambda x, n, a: x * n + a)
    x = torch.randn(3, device="tpu")
    for n, a in ((2, 0.5), (3, 0.25), (4, 0.125)):
        torch.testing.assert_close(compiled(x, n, a), x * n + a)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_quotients_by_a_constant_stay_whole(mode, dtype):
    x = torch.arange(-2000, 2000, dtype=dtype) * 49

    def f(x):
        return torch.div(x, 49.0, rounding_mode=mode)

    torch.testing.assert_close(tpu(f)(x.to("tpu")).cpu(), f(x), rtol=0, atol=0)


def test_factories_and_constants():
    table = torch.randn(5, 3, device="tpu")
    large = torch.randn(40)

    def fn(x):
        at = torch.arange(x.shape[0], device=x.device)
        local = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return table[at] * x + local + torch.eye(3, device=x.device)[0] + large.to(x.device)[:3]

    x = torch.randn(5, 3, device="tpu")
    torch.testing.assert_close(tpu(fn, fullgraph=True)(x), fn(x))


def test_graph_refuses_what_it_does_not_take():
    graph = torchtpu_core._C.Graph("some graph", 2, lambda args: None)
    with pytest.raises(RuntimeError, match="some graph takes 2 arguments, got 1"):
        graph([torch.ones(2, device="tpu")])
    with pytest.raises(TypeError, match="argument 1 is a str"):
        graph([torch.ones(2, device="tpu"), "two"])
    with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
        graph([torch.ones(2, device="tpu"), torch.ones(2)])


def test_cond():
    def fn(x, y):
        return torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a * b, (x, y))

    compiled = tpu(fn, fullgraph=True)
    y = torch.randn(4, device="tpu")
    for x in (torch.ones(4, device="tpu"), -torch.ones(4, device="tpu")):
        torch.testing.assert_close(compiled(x, y), x + y if x[0] > 0 else x * y)
        assert executions(lambda x=x: compiled(x, y)) == 1


def test_while_loop():
    from torch._higher_order_ops.while_loop import while_loop

    def fn(n, x):
        return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x * 1.5), (n, x))

    n, x = torch.tensor(5, device="tpu"), torch.ones(3, device="tpu")
    left, y = tpu(fn, fullgraph=True)(n, x)
    assert left.item() == 0
    torch.testing.assert_close(y, x * 1.5**5)


def test_exported_program():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).to("tpu")
    x = torch.randn(2, 3, device="tpu")
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))
    torch.testing.assert_close(tpu(exported.module())(x), model(x))


def test_gradient_that_depends_on_layout():
    """det factors the transpose of a contiguous matrix, and its gradient relies on that."""

    def f(x):
        return torch.linalg.det(x.t()).sum()

    given = torch.randn(5, 5)
    grads = []
    for fn, device in ((f, "cpu"), (torch.compile(f, backend="tpu"), "tpu")):
        x = given.to(device).detach().requires_grad_()
        fn(x).backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
