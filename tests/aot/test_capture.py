"""Captured programs compute what PyTorch computes: built from meta tensors, run on XLA's CPU
plugin, compared with eager CPU.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.lowering import harness
from torchtpu_core import aot
from torchtpu_core.aot import models
from torchtpu_core.aot.lower import Program


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU())
        self.out = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.mlp(self.norm(x)))


def run(program: Program, given: dict[str, torch.Tensor], *like: torch.Tensor) -> list:
    return harness.run(program.stablehlo, [given[x.name] for x in program.inputs], list(like))


def meta(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(t, device="meta")


def test_module_on_meta_equals_eager() -> None:
    block, x = Block(), torch.randn(4, 16)
    program = aot.lowered(Block().to("meta"), (meta(x),))
    assert {i.kind for i in program.inputs} == {"parameter", "argument"}
    (got,) = run(program, {**dict(block.named_parameters()), "arg0": x}, x)
    torch.testing.assert_close(got, block(x).detach(), rtol=1e-5, atol=1e-5)


def test_non_contiguous_argument_and_constant() -> None:
    table = torch.arange(24.0).reshape(4, 6)
    x = torch.randn(6, 4).t()
    program = aot.lowered(lambda x: x * table.to(x.device), (torch.empty(6, 4, device="meta").t(),))
    names = [i.name for i in program.inputs]
    assert names[0] == "arg0" and len(names) == 2
    (got,) = run(program, {"arg0": x.t(), names[1]: table}, x)
    torch.testing.assert_close(got.reshape(x.t().shape).t(), x * table)


def test_functions_lift_the_modules_they_use() -> None:
    block, x = Block(), torch.randn(4, 16)
    on_meta = Block().to("meta")

    def loss(x: torch.Tensor) -> torch.Tensor:
        return on_meta(x).square().mean()

    (got,) = run(
        aot.lowered(loss, (meta(x),)),
        {**dict(block.named_parameters()), "arg0": x},
        torch.empty(()),
    )
    torch.testing.assert_close(got, block(x).square().mean().detach())


def test_writes_to_arguments_are_donated() -> None:
    def append(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 2] = x
        return cache.sum()

    cache, x = torch.randn(3, 5), torch.randn(3)
    program = aot.lowered(append, (meta(cache), meta(x)))
    assert program.stablehlo.count("tf.aliasing_output") == 1
    total, new = run(program, {"arg0": cache, "arg1": x}, torch.empty(()), cache)
    want = append(cache, x)
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(new, cache)


def test_exported_program() -> None:
    class Count(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return self.linear(x) * self.calls

    module, x = Count(), torch.randn(2, 8)
    program = aot.lowered(torch.export.export(module, (x,)))
    given = {**module.state_dict(), "x": x}
    out, calls = run(program, given, x, module.calls)
    torch.testing.assert_close(out, module.linear(x).detach())
    assert calls.item() == 1


def test_train_step_is_adamw() -> None:
    def loss(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(module(x), y)

    block, x, y = Block(), torch.randn(4, 16), torch.randn(4, 16)
    step, weights = models.train_step(Block().to("meta"), loss, lr=1e-2, weight_decay=0.1)
    program = aot.lowered(step, (weights, meta(x), meta(y)))
    assert program.stablehlo.count("tf.aliasing_output") == 1 + 3 * len(weights["parameters"])

    given: dict[str, Any] = {"state.step": torch.zeros(()), "arg1": x, "arg2": y}
    for name, p in block.named_parameters():
        given[f"parameters.{name}"] = p.detach().clone()
        for kind in ("exp_avg", "exp_avg_sq"):
            given[f"state.{kind}.{name}"] = torch.zeros_like(p)
    written = [x.name for x in program.inputs if x.kind in ("parameter", "state")]
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95))
    want = loss(block, x, y)
    want.backward()
    optimizer.step()
    outs = [want, *(given[n] for n in written)]
    got = _by_shape(program, given, outs)
    torch.testing.assert_close(got[0], want.detach())
    after = dict(block.named_parameters())
    new = {n: v for n, v in zip(_targets(program), got[1:]) if n.startswith("parameters.")}
    assert len(new) == len(after)
    for name, value in new.items():
        expected = after[name.removeprefix("parameters.")].detach()
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def _targets(program: Program) -> list[str]:
    """The names of donated inputs in the order of the results that replace them."""
    head = program.stablehlo.split("->")[0]
    arguments = head[head.index("@main(") :].split("%arg")[1:]
    pairs = []
    for x, text in zip(program.inputs, arguments):
        if "tf.aliasing_output = " in text:
            number = text.split("tf.aliasing_output = ")[1].split(" ")[0]
            pairs.append((int(number), x.name))
    return [name for _, name in sorted(pairs)]


def _by_shape(program: Program, given: dict[str, torch.Tensor], outs: list) -> list[torch.Tensor]:
    like = [outs[0].detach(), *(given[n] for n in _targets(program))]
    return run(program, given, *like)


def test_locations_name_lines_and_modules_also_in_backward() -> None:
    module = Block().to("meta")

    def loss(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x).tanh().sum()

    step, weights = models.train_step(module, loss)
    text = aot.lowered(step, (weights, torch.empty(4, 16, device="meta"))).stablehlo
    assert f'loc("tanh"("{__file__}":' in text
    assert 'loc("mlp.0/addmm"(' in text and 'loc("backward/' in text
    assert f'mlp.0/backward/mm"("{__file__}":' in text


def test_exported_programs_name_lines_modules_and_inputs() -> None:
    text = aot.lowered(torch.export.export(Block(), (torch.randn(4, 16),))).stablehlo
    line = Block.forward.__code__.co_firstlineno + 1
    assert f'loc("mlp.0/linear"("{__file__}":{line}:' in text
    assert 'loc("mlp.0.weight")' in text and 'loc("x")' in text


def test_eager_programs_have_no_locations() -> None:
    text, *_ = harness.build(torch.ops.aten.tanh.default, (torch.ones(3),), {})
    assert "loc(" not in text


def test_reading_a_value_is_refused_with_its_line() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(NotImplementedError, match=r"(?s)value.*test_capture"):
        aot.lowered(branch, (torch.empty(3, device="meta"),))


def test_an_op_that_is_not_lowered_is_named_with_its_line() -> None:
    with pytest.raises(NotImplementedError, match=r"(?s)linalg_eig.*test_capture"):
        aot.lowered(lambda x: torch.linalg.eig(x)[0], (torch.empty(3, 3, device="meta"),))


@pytest.mark.parametrize("precision", ["default", "high", "highest"])
def test_precision_of_products(precision: str) -> None:
    x = torch.empty(4, 4, device="meta")
    text = aot.lowered(lambda x: x @ x, (x,), precision=precision).stablehlo
    assert f"#stablehlo<precision {precision.upper()}>" in text


# ---- regions of torch.tpu.precision --------------------------------------------------------------


def products(target: Any, *args: torch.Tensor, **options: Any) -> list[str]:
    """The precisions of a program's products, in order."""
    text = aot.lowered(target, args, **options).stablehlo
    return re.findall(r"precision_config = \[#stablehlo<precision (\w+)>", text)


@torch.tpu.precision("high")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x @ x


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.tpu.precision("high"):
            x = self.linear(x)
        return x @ x


def nested(x: torch.Tensor) -> torch.Tensor:
    x = decorated(x @ x)
    with torch.tpu.precision("default"):
        x = x @ x
        with torch.tpu.precision("high"):
            x = x @ x
        x.copy_(x @ x)
    return x @ x


NESTED = ["HIGHEST", "HIGH", "DEFAULT", "HIGH", "DEFAULT", "HIGHEST"]


@pytest.mark.parametrize("wrap", [lambda f: f, torch.compile])
def test_regions_cover_the_products_inside_them(wrap: Callable[..., Any]) -> None:
    x = torch.empty(4, 4, device="meta")
    assert products(wrap(nested), x) == NESTED
    assert products(wrap(Mixed().to("meta")), x) == ["HIGH", "HIGHEST"]


def test_regions_of_exported_programs() -> None:
    assert products(torch.export.export(Mixed(), (torch.ones(4, 4),))) == ["HIGH", "HIGHEST"]


def test_precision_is_that_of_products_outside_of_regions() -> None:
    x = torch.empty(4, 4, device="meta")
    want = ["DEFAULT" if p == "HIGHEST" else p for p in NESTED]
    assert products(nested, x, precision="default") == want
    with torch.tpu.precision("default"):  # around the call: the same
        assert products(nested, x) == want


@pytest.mark.parametrize("again", [False, True])
def test_regions_cover_gradients(again: bool) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with torch.tpu.precision("high"):
            return (x.sin() @ x).sin()

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = checkpoint(inner, x, use_reentrant=False) if again else inner(x)
        (y.cos() @ x).sum().backward()
        return x.grad

    gradients = ["HIGHEST"] * 2 + ["HIGH"] * (3 if again else 2)
    assert products(step, torch.empty(4, 4, device="meta")) == ["HIGH", "HIGHEST", *gradients]


def test_regions_around_a_backward_pass() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        loss = (x @ x).sum()
        with torch.tpu.precision("high"):
            (grad,) = torch.autograd.grad(loss, x)
        return grad @ grad

    x = torch.empty(4, 4, device="meta")
    assert products(step, x) == ["HIGHEST", "HIGH", "HIGH", "HIGHEST"]


def test_random_numbers_of_recomputed_blocks_are_warned_of() -> None:
    def step(x: torch.Tensor, again: bool) -> torch.Tensor:
        x = x.detach().requires_grad_()

        def block(x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x.exp(), 0.5).sin()

        y = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return torch.autograd.grad(y.sum(), x)[0]

    x = torch.empty(4, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aot.lowered(step, (x, False))
    with pytest.warns(UserWarning, match=r"dropout.*draws(?s:.*)test_capture"):
        aot.lowered(step, (x, True))


def test_python_in_a_backward_pass_has_its_lines() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x * x * grad.tan()

    class Cubed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Cube.apply(x).sinh()

    model = torch.nn.Sequential(Cubed(), torch.nn.Tanh())

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        checkpoint(model, x, use_reentrant=False).sum().backward()
        return x.grad

    text = aot.lowered(step, (torch.empty(4, device="meta"),)).stablehlo
    line = Cube.backward.__code__.co_firstlineno + 3
    assert f'backward/tan"("{__file__}":{line}:' in text
    assert f'loc("0/recomputed/sinh"("{__file__}":' in text
