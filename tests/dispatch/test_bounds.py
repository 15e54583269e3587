"""Indices out of range: what the CPU raises, in debug mode and with bounds checks; clamped or
dropped without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchtpu_core
from torchtpu_core.lowering import bounds

_Call = Callable[[Tensor, Callable[..., Tensor]], object]


#: what to call with x of (3, 4) and a maker of index tensors; every one has an index out of range
_BAD: dict[str, _Call] = {
    "index": lambda x, i: x[i(0, 7)],
    "index negative": lambda x, i: x[i(-4)],
    "index second": lambda x, i: x[:, i(0, 4)],
    "index two": lambda x, i: x[i(0, 1), i(0, 9)],
    "index_put": lambda x, i: x.index_put((i(0, 7),), x.new_tensor(1.0)),
    "setitem": lambda x, i: x.__setitem__((slice(None), i(1, -5)), 1.0),
    "gather": lambda x, i: x.gather(0, i(5).view(1, 1)),
    "gather negative": lambda x, i: x.gather(1, i(-1).view(1, 1)),
    "scatter value": lambda x, i: x.scatter(0, i(5).view(1, 1), 1.0),
    "scatter src": lambda x, i: x.scatter(1, i(5).view(1, 1), x.new_ones(1, 1)),
    "scatter_add": lambda x, i: x.scatter_add(0, i(5).view(1, 1), x.new_ones(1, 1)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i(5).view(1, 1), x.new_ones(1, 1), "sum"),
    "index_select": lambda x, i: x.index_select(0, i(0, 7)),
    "index_select negative": lambda x, i: x.index_select(0, i(-1)),
    "index_add": lambda x, i: x.index_add(0, i(0, 7), x.new_ones(2, 4)),
    "index_copy": lambda x, i: x.index_copy(0, i(0, 7), x.new_ones(2, 4)),
    "index_fill": lambda x, i: x.index_fill(0, i(0, 7), 1.0),
    "index_reduce": lambda x, i: x.index_reduce(0, i(0, 7), x.new_ones(2, 4), "amax"),
    "take": lambda x, i: x.take(i(12)),
    "put": lambda x, i: x.put(i(-13), x.new_ones(1)),
    "embedding": lambda x, i: F.embedding(i(0, 7), x),
    "embedding negative": lambda x, i: F.embedding(i(-1), x),
    "embedding_bag": lambda x, i: F.embedding_bag(i(0, 7), x, i(0)),
    "nll_loss": lambda x, i: F.nll_loss(x, i(0, 9, 1)),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i(0, 4, 1)),
    "nll_loss2d": lambda x, i: F.nll_loss(x.view(3, 4, 1, 1), i(0, 9, 1).view(3, 1, 1)),
    "multi_margin": lambda x, i: F.multi_margin_loss(x, i(0, 9, 1)),
    "multilabel_margin": lambda x, i: F.multilabel_margin_loss(x, i(*[9] * 12).view(3, 4)),
    "max_unpool": lambda x, i: F.max_unpool1d(x.new_ones(1, 1, 2), i(0, 9).view(1, 1, 2), 2),
}
#: indices that are in range, some only just
_GOOD: dict[str, _Call] = {
    "index": lambda x, i: x[i(0, 2, -3)],
    "index empty": lambda x, i: x[i()],
    "index_put": lambda x, i: x.index_put((i(-3, 2),), x.new_tensor(1.0)),
    "gather": lambda x, i: x.gather(0, i(2).view(1, 1)),
    "take": lambda x, i: x.take(i(-12, 11)),
    "index_fill": lambda x, i: x.index_fill(0, i(-1), 1.0),
    "embedding": lambda x, i: F.embedding(i(0, 2), x),
    "nll_loss ignored": lambda x, i: F.nll_loss(x, i(0, -100, 3)),
    "multilabel_margin": lambda x, i: F.multilabel_margin_loss(x, i(*[3, -1, 0, 0] * 3).view(3, 4)),
    "0-d": lambda x, i: x.sum().gather(0, i(0)[0]),
}


@pytest.fixture(params=["checks", "debug"])
def checked(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "checks":
        torch.tpu.set_bounds_checks(True)
    else:
        torch.tpu.set_mode("debug")
    assert torch.tpu.get_bounds_checks()
    yield
    torch.tpu.set_bounds_checks(False)
    torch.tpu.set_mode("strict")
    assert not torch.tpu.get_bounds_checks()


def _run(call: _Call, device: str) -> object:
    x = torch.arange(12.0, device=device).view(3, 4)
    result = call(x, lambda *values: torch.tensor(values, dtype=torch.int64, device=device))
    return x if result is None else result


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", _BAD)
def test_out_of_range_raises_what_the_cpu_raises(checked: None, name: str) -> None:
    with pytest.raises((IndexError, RuntimeError)) as cpu:
        _run(_BAD[name], "cpu")
    with pytest.raises(cpu.type) as tpu:
        _run(_BAD[name], "tpu")
    assert "(in aten::" in str(tpu.value)


@pytest.mark.parametrize("name", _GOOD)
def test_in_range_passes(checked: None, name: str) -> None:
    torch.testing.assert_close(_run(_GOOD[name], "tpu").cpu(), _run(_GOOD[name], "cpu"))


def test_the_value_and_the_place_are_named(checked: None) -> None:
    x = torch.zeros(5, 6, device="tpu")
    with pytest.raises(IndexError, match="index -7 is out of bounds for dimension 1 with size 6"):
        x[:, torch.tensor([0, -7], device="tpu")]


def test_checks_are_off_until_asked_for() -> None:
    x = torch.arange(3.0, device="tpu")
    bad = torch.tensor([0, 7], device="tpu")
    assert x[bad].tolist() == [0.0, 2.0]
    torch.tpu.set_bounds_checks(True)
    try:
        with pytest.raises(IndexError):
            x[bad]
    finally:
        torch.tpu.set_bounds_checks(False)
    before = torchtpu_core.stats()["programs_compiled"]
    assert x[bad].tolist() == [0.0, 2.0]  # the program of before
    assert torchtpu_core.stats()["programs_compiled"] == before


def test_a_write_keeps_its_other_elements(checked: None) -> None:
    x = torch.zeros(3, device="tpu")
    with pytest.raises(IndexError):
        x[torch.tensor([0, 7], device="tpu")] = 1.0
    assert x.tolist() == [1.0, 0.0, 0.0]


def test_every_rule_is_an_operator() -> None:
    for name in bounds.names():
        op, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, op), overload)


@pytest.mark.parametrize("at", [4, 7, -5])
def test_unchecked_copy_out_of_range_writes_nothing(at: int) -> None:
    x = torch.arange(12.0).view(4, 3)
    row = torch.full((1, 3), 9.0, device="tpu")
    out = x.to("tpu").index_copy(0, torch.tensor([at], device="tpu"), row)
    torch.testing.assert_close(out.cpu(), x, rtol=0, atol=0)
