"""What a user sees when something in a compiled graph is not supported, fails to compile, or is
compiled again.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import torchtpu_core
from tests.common.cache import settings
from tests.common.programs import graph_texts
from tests.compile.common import executions


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.compile on tpu: .* is not lowered")
        yield


@pytest.fixture
def library():
    made = torch.library.Library("tpu_errors", "DEF")
    made.define("nowhere(Tensor x) -> Tensor")
    made.impl("nowhere", torch.empty_like, "Meta")
    made.define("python(Tensor x) -> (Tensor, Tensor)")
    made.impl("python", lambda x: (x.sin() * 2, x.sum()), "CompositeExplicitAutograd")
    made.impl("python", lambda x: (torch.empty_like(x), x.new_empty(())), "Meta")
    made.define("on_cpu(Tensor x) -> Tensor")
    made.impl("on_cpu", torch.empty_like, "Meta")
    made.impl("on_cpu", lambda x: x.cos(), "CPU")
    yield torch.ops.tpu_errors
    made._destroy()


def tpu(fn, **options):
    return torch.compile(fn, backend="tpu", **options)


# ---- operators without a lowering ----------------------------------------------------------------


def test_fullgraph_names_operator_and_line(library):
    def fn(x):
        return library.nowhere(x + 1) * 2

    with pytest.raises(torch._dynamo.exc.Unsupported, match="tpu_errors::nowhere") as error:
        tpu(fn, fullgraph=True)(torch.ones(2, device="tpu"))
    assert "return library.nowhere(x + 1) * 2" in str(error.value)
    assert "test_errors.py" in str(error.value)


def test_without_fullgraph_the_operator_raises_where_it_runs(library):
    compiled = tpu(lambda x: library.nowhere(x + 1) * 2)
    with pytest.raises(NotImplementedError, match="tpu_errors::nowhere"):
        compiled(torch.ones(2, device="tpu"))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_operator_in_python_runs_between_two_programs(library, fullgraph):
    def fn(x, y):
        y.add_(1)
        a, b = library.python(x.exp() + 1)
        return a * b + y, x.exp() - a

    def expected(x, y):
        y.add_(1)
        a, b = (x.exp() + 1).sin() * 2, (x.exp() + 1).sum()
        return a * b + y, x.exp() - a

    x, y = torch.randn(3, device="tpu"), torch.randn(3, device="tpu")
    z = y.clone()
    compiled = tpu(fn, fullgraph=fullgraph)
    with graph_texts() as texts:
        torch.testing.assert_close(compiled(x, y), expected(x, z))
    torch.testing.assert_close(y, z)
    assert len(texts) == 2
    expected(x, z)
    compiled(x, y)
    torch.testing.assert_close(y, z)


def test_cpu_fallback_runs_the_operator_and_counts_it(library):
    compiled = tpu(lambda x: library.on_cpu(x + 1) * 2)
    x = torch.randn(3, device="tpu")
    torch.tpu.set_cpu_fallback(True)
    try:
        before = torchtpu_core.stats()["fallbacks"]
        torch.testing.assert_close(compiled(x), (x + 1).cos() * 2)
        assert torchtpu_core.stats()["fallbacks"] > before
    finally:
        torch.tpu.set_cpu_fallback(False)


def test_a_warning_tells_of_a_cut(library):
    from torchtpu_core.compile import split

    split._noted.clear()
    with pytest.warns(UserWarning, match="tpu_errors::python is not lowered"):
        tpu(lambda x: library.python(x + 1)[0])(torch.ones(3, device="tpu"))


def test_sizes_that_depend_on_data():
    def fn(x):
        at = torch.nonzero(x > 0)
        return at.float() * 2, x.sum()

    x = torch.tensor([1.0, -1.0, 2.0], device="tpu")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = tpu(fn, fullgraph=True)
        for y in (x, -x):
            torch.testing.assert_close(compiled(y), fn(y))


def test_gradients_across_a_cut():
    """The gradient of while_loop saves as many values as there were rounds."""
    from torch._higher_order_ops.while_loop import while_loop

    def fn(n, x):
        return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x.sin() * 2), (n, x.exp()))[1]

    x = torch.randn(3, device="tpu", requires_grad=True)
    y = x.detach().cpu().requires_grad_()
    z = y.exp()
    for _ in range(4):
        z = z.sin() * 2
    out = tpu(fn, fullgraph=True)(torch.tensor(4, device="tpu"), x)
    torch.testing.assert_close(out.cpu(), z)
    out.sum().backward()
    z.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-5)


# ---- compiled again ------------------------------------------------------------------------------


def _graphs_since(before):
    return {k: v for k, v in torchtpu_core.stats()["graphs"].items() if k not in before["graphs"]}


@pytest.fixture
def no_buckets():
    torch.tpu.set_shape_buckets("off")
    yield
    torch.tpu.set_shape_buckets(None)


def test_recompiles_are_counted_with_their_reason(no_buckets):
    before = torchtpu_core.stats()
    compiled = tpu(lambda x, y: x * 2 + y, dynamic=True)
    y = torch.ones(1, device="tpu")
    for n in (3, 4, 4, 5):
        compiled(torch.ones(n, device="tpu"), y)
    compiled(torch.ones(6, device="tpu")[1:], y)
    (graph,) = _graphs_since(before).values()
    assert graph["programs"] == 4
    reasons = " ".join(graph["reasons"])
    assert "shape (3,) -> (4,)" in reasons and "shape (4,) -> (5,)" in reasons
    assert "offset 0 -> 1" in reasons


def test_a_bucket_is_a_reason():
    before = torchtpu_core.stats()
    compiled = tpu(lambda x: x * 2, dynamic=True)
    for n in (3, 4, 5, 8, 7):
        compiled(torch.ones(n, device="tpu"))
    (graph,) = _graphs_since(before).values()
    assert graph["programs"] == 2
    assert "shape (4,) -> (8,)" in " ".join(graph["reasons"])


def test_recompiles_are_logged(no_buckets, capfd):
    with settings(TORCHTPU_LOG="recompiles"):
        compiled = tpu(lambda x: x * 2, dynamic=True)
        for n in (3, 4):
            compiled(torch.ones(n, device="tpu"))
    (line,) = (x for x in capfd.readouterr().err.splitlines() if "recompile" in x)
    assert "shape (3,) -> (4,)" in line


def test_a_known_call_is_no_recompile():
    compiled = tpu(lambda x: x * 3)
    x = torch.ones(4, device="tpu")
    compiled(x)
    before = torchtpu_core.stats()["graphs"]
    assert executions(lambda: compiled(x)) == 1
    assert torchtpu_core.stats()["graphs"] == before


# ---- the compiler refuses ------------------------------------------------------------------------


@pytest.fixture
def unknown_call(library):
    """An operator whose lowering asks for what no plugin has."""
    from torchtpu_core.lowering import registry

    name = "tpu_errors::nowhere"
    registry.lowering(name)(lambda b, x: b.custom_call("no_such_target", [x], [x.type])[0])
    yield library.nowhere
    del registry._RULES[registry.canonical(name)]


def _fails(fn):
    with pytest.raises(RuntimeError, match="no_such_target") as error:
        tpu(fn, fullgraph=True)(torch.ones(2, device="tpu"))
    return "\n".join(error.value.__notes__)


def test_failing_compilation_names_operator_and_line(unknown_call):
    def fn(x):
        y = x.exp() + 1
        y = unknown_call(y)
        return y * 2

    notes = _fails(fn)
    assert "tpu_errors.nowhere" in notes
    assert "y = unknown_call(y)" in notes and "test_errors.py" in notes


def test_failing_compilation_inside_of_a_shared_layer(unknown_call):
    def fn(x):
        for _ in range(4):
            x = x.sin().cos().exp().tanh().sigmoid().neg()
            x = unknown_call(x) + x.sin()
        return x

    assert "x = unknown_call(x) + x.sin()" in _fails(fn)


def test_failing_compilation_names_the_dumped_program(unknown_call, tmp_path):
    with settings(TORCHTPU_LOG="programs", TORCHTPU_PROGRAMS_DIR=str(tmp_path)):
        notes = _fails(lambda x: unknown_call(x) + 1)
    (path,) = tmp_path.iterdir()
    assert f"the program: {path}" in notes
    assert "no_such_target" in path.read_text()
