"""torch.compile with sizes that are data (`capture_dynamic_output_shape_ops`): the graph is cut at
the operator that makes such a size, and what follows is one program for each bucket of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchtpu_core
from tests.compile.common import compiled_since

T = torch


@pytest.fixture(autouse=True)
def _captured():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


def _nonzero(x: T.Tensor) -> Any:
    at = T.nonzero(x > 0)
    return at.float() * 2 + 1, at.sum(0), x.sum()


def _rows(x: T.Tensor) -> Any:
    y = x[x[:, 0] > 0] * 2
    return y, y.sum(0), y @ y.mT


CASES: dict[str, Callable[[T.Tensor], Any]] = {
    "nonzero": _nonzero,
    "masked_select": lambda x: (lambda y: (y * 2, y.sum(), y.amax(0) if 0 else y + 1))(
        T.masked_select(x, x > 0)
    ),
    "rows": _rows,
    "unique": lambda x: T.unique((x * 2).int(), return_counts=True)[1] + 1,
    "two": lambda x: (x[x > 0].exp().sum() + x[x < 0].sum(), T.argwhere(x > 1) + 1),
    "repeated": lambda x: T.repeat_interleave(x.abs().long().flatten()) * 2,
}


@pytest.mark.parametrize("name", CASES)
def test_results_equal_the_cpus(name: str):
    fn = CASES[name]
    compiled = T.compile(fn, backend="tpu", fullgraph=True)
    generator = T.Generator().manual_seed(0)
    x = T.randn(6, 4, generator=generator)
    for y in (x, x * 2, -x, x.abs(), -x.abs()):
        own, want = compiled(y.to("tpu")), fn(y)
        own = T.utils._pytree.tree_map(lambda t: t.cpu(), own)
        T.testing.assert_close(own, want)


def test_one_program_for_each_bucket_of_a_size():
    compiled = T.compile(_rows, backend="tpu", fullgraph=True)
    rows = T.arange(40.0)[:, None].expand(40, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no part is compiled for each size
        warnings.filterwarnings("ignore", message=".*the graph is cut there")
        for n in (9, 16):
            compiled((rows - n).to("tpu"))
        before = torchtpu_core.stats()
        for n in range(8, 23):  # 31 to 17 rows that are positive: one bucket
            x = rows - n
            own = compiled(x.to("tpu"))
            T.testing.assert_close([t.cpu() for t in own], list(_rows(x)))
    assert compiled_since(before) <= 15  # what makes the argument, one for each `n`


def test_gradients():
    def fn(x: T.Tensor) -> T.Tensor:
        return (T.masked_select(x, x > 0) ** 2).sum() + x[x < 0].exp().sum()

    compiled = T.compile(fn, backend="tpu", fullgraph=True)
    warnings.simplefilter("error", UserWarning)
    warnings.filterwarnings("ignore", message=".*the graph is cut there")
    for seed in range(3):
        x = T.randn(5, 4, generator=T.Generator().manual_seed(seed))
        own, want = x.to("tpu").requires_grad_(), x.clone().requires_grad_()
        compiled(own).backward()
        fn(want).backward()
        T.testing.assert_close(own.grad.cpu(), want.grad)
