"""Running reductions and softmax equal CPU, over dtypes, lengths and edge cases."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("op", [aten.cumsum.default, aten.cumprod.default])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64]
)
def test_cumulative_sum_and_product(op, dtype):
    x = torch.randn(3, 5) * 2 + (1j if dtype.is_complex else 0)
    check(op, x.to(dtype), 1)


def test_cumulative_sum_in_another_dtype():
    check(aten.cumsum.default, torch.arange(6, dtype=torch.int8), 0, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 33, 3000])
def test_lengths(n):
    check(aten.cumsum.default, torch.randint(-5, 5, (2, n, 3)), -2)
    check(aten.cummax.default, torch.randn(n), 0)


@pytest.mark.parametrize("op", [aten.cummax.default, aten.cummin.default])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_running_extremum_takes_the_last_of_equal_elements(op, dtype):
    check(op, torch.randint(0, 3, (4, 9)).to(dtype), 1)


@pytest.mark.parametrize("op", [aten.cummax.default, aten.cummin.default])
def test_running_extremum_keeps_nan(op):
    check(op, torch.tensor([1.0, INF, NAN, -INF, NAN, 2.0]), 0)
    check(op, torch.tensor([-INF, INF, -INF, INF]), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_logcumsumexp(dtype):
    check(aten.logcumsumexp.default, torch.randn(3, 40).to(dtype) * 30, 1)
    check(aten.logcumsumexp.default, torch.tensor([-INF, -INF, 1.0, INF, INF, NAN]).to(dtype), 0)


@pytest.mark.parametrize(
    "op",
    [aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.logcumsumexp.default],
)
def test_empty_and_zero_dimensional(op):
    check(op, torch.empty(2, 0), 1)
    check(op, torch.empty(0, 3), 1)
    check(op, torch.tensor(1.5), 0)


@pytest.mark.parametrize("op", [aten._softmax.default, aten._log_softmax.default])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape, dim", [((3, 5), 1), ((2, 4, 3), -2), ((), 0), ((2, 0), 1)])
def test_softmax(op, dtype, shape, dim):
    check(op, torch.randn(shape).to(dtype) * 10, dim, False)


@pytest.mark.parametrize("op", [aten._softmax.default, aten._log_softmax.default])
def test_softmax_of_special_values(op):
    check(
        op,
        torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 0, 1]]),
        1,
        False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_backward(dtype):
    x, grad = torch.randn(3, 5).to(dtype), torch.randn(3, 5).to(dtype)
    check(aten._softmax_backward_data.default, grad, x.softmax(1), 1, dtype)
    check(aten._log_softmax_backward_data.default, grad, x.log_softmax(1), 1, dtype)


def test_safe_and_masked_softmax():
    x = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]])
    check(aten._safe_softmax.default, x, 1)
    y, mask = torch.randn(2, 3, 4, 4), torch.rand(2, 3, 4, 4) > 0.6
    check(aten._masked_softmax.default, y, mask, 3, 2)
    check(aten._masked_softmax.default, y, mask[0, 0], 3, 0)
    check(aten._masked_softmax.default, y, torch.rand(2, 4) > 0.5, 3, 1)
    out = aten._masked_softmax(y, mask, 3, 2)
    check(aten._masked_softmax_backward.default, torch.randn_like(y), out, mask, 3)
