"""Reductions, order statistics and distances equal CPU, over dtypes and edge cases."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.harness import build, check, run

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


def values(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) > 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape, generator=g).to(dtype)
    return torch.randn(
        shape, generator=g, dtype=torch.complex64 if dtype.is_complex else torch.float32
    ).to(dtype)


SPECIAL = torch.tensor([[1.0, NAN, 3.0, NAN], [INF, -INF, 2.0, 2.0], [-INF, -1.0, -1.0, -INF]])
NUMBERS = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ["sum.dim_IntList", "amax", "amin"])
@pytest.mark.parametrize("dim, keepdim", [([1], False), ([-1, 0], True), ([], False)])
def test_over_several_dimensions(name, dtype, dim, keepdim):
    overload = name if "." in name else f"{name}.default"
    op = getattr(getattr(aten, overload.split(".")[0]), overload.split(".")[1])
    check(op, values(dtype, 3, 4, 5), dim, keepdim)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.complex64])
@pytest.mark.parametrize(
    "op", [aten.sum.default, aten.prod.default, aten.all.default, aten.any.default]
)
def test_of_everything(op, dtype):
    check(op, values(dtype, 2, 7))


@pytest.mark.parametrize("op", [aten.max.dim, aten.min.dim])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_extremum_takes_the_first_of_equal_elements(op, dtype):
    check(op, values(dtype, 5, 9), 1)
    check(op, values(dtype, 5, 9), -2, True)


@pytest.mark.parametrize(
    "op", [aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default]
)
def test_extremum_stops_at_the_first_nan(op):
    check(op, SPECIAL, 1)


@pytest.mark.parametrize(
    "op, args, kwargs",
    [
        (aten.sum.dim_IntList, ([0],), {"dtype": torch.float64}),
        (aten.mean.dim, ([0, 1], True), {"dtype": torch.float32}),
        (aten.mean.default, (), {}),
        (aten.nansum.default, ([1],), {}),
        (aten.max.default, (), {}),
        (aten.aminmax.default, (), {"dim": 1, "keepdim": True}),
        (aten.aminmax.default, (), {}),
        (aten.argmax.default, (None, True), {}),
        (aten.all.dims, ([],), {}),
        (aten.any.dims, ([0, -1], True), {}),
        (aten.count_nonzero.dim_IntList, ([0],), {}),
        (aten.logsumexp.default, ([1],), {}),
        (aten.var.correction, ([1],), {"correction": 2}),
        (aten.std.correction, (None,), {"correction": 0.5}),
        (aten.var_mean.correction, ([0],), {"keepdim": True}),
        (aten.std_mean.correction, ([],), {}),
        (aten.var.correction, ([1],), {"correction": 9}),
    ],
)
@pytest.mark.parametrize("x", [values(torch.float32, 3, 4), SPECIAL], ids=["numbers", "special"])
def test_options(op, args, kwargs, x):
    check(op, x, *args, **kwargs)


@pytest.mark.parametrize(
    "op, args",
    [
        (aten.sum.dim_IntList, ([1],)),
        (aten.prod.dim_int, (1,)),
        (aten.mean.dim, ([1],)),
        (aten.all.dim, (1,)),
        (aten.any.dim, (1,)),
        (aten.var.correction, ([1],)),
        (aten.logsumexp.default, ([1],)),
        (aten.linalg_vector_norm.default, (2, [1])),
        (aten.amax.default, ([0],)),
        (aten.max.dim, (0,)),
    ],
)
def test_empty(op, args):
    check(op, torch.empty(3, 0), *args)


@pytest.mark.parametrize(
    "op, args",
    [
        (aten.sum.dim_IntList, ([0],)),
        (aten.max.dim, (0,)),
        (aten.argmax.default, (-1,)),
        (aten.median.dim, (0,)),
        (aten.mode.default, (0,)),
        (aten.kthvalue.default, (1, 0)),
        (aten.std.correction, ([0],)),
        (aten.logsumexp.default, ([0], True)),
    ],
)
def test_zero_dimensional(op, args):
    check(op, torch.tensor(2.5), *args)


def test_low_precision_accumulates_in_f32():
    x = torch.full((4096,), 1.001, dtype=torch.bfloat16)
    check(aten.sum.default, x)
    check(aten.mean.default, x.half())


def test_narrow_integers_sum_in_i64():
    check(aten.sum.default, torch.full((1000,), 127, dtype=torch.int8))


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, 2.5, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_vector_norm(p, dtype):
    check(aten.linalg_vector_norm.default, values(dtype, 4, 5), p, [1], True)


def test_norm_family():
    x = values(torch.float32, 4, 5)
    check(aten.norm.ScalarOpt_dim, x, None, [0])
    check(aten.norm.ScalarOpt_dim_dtype, x, 3, [1], True, dtype=torch.float64)
    check(aten.dist.default, x, x[:1] + 1.0, 3)
    check(aten.renorm.default, x, 2, 0, 1.5)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_pairwise_distances(p):
    x, y = values(torch.float32, 5, 3), values(torch.float32, 2, 4, 3, seed=1)
    check(aten._cdist_forward.default, x.expand(2, 5, 3), y, p, None)
    dist = aten._cdist_forward(x, y[0], p, None)
    check(aten._cdist_backward.default, torch.rand(5, 4), x, y[0], p, dist)
    check(aten._pdist_forward.default, x, p)
    check(aten._pdist_backward.default, torch.rand(10), x, p, aten._pdist_forward(x, p))


def test_euclidean_distance_as_a_product():
    check(
        aten._cdist_forward.default,
        values(torch.float32, 30, 8),
        values(torch.float32, 4, 8, seed=1),
        2.0,
        None,
        atol=1e-4,
    )


@pytest.mark.parametrize("op", [aten.median.dim, aten.nanmedian.dim])
@pytest.mark.parametrize("n", [1, 6, 7])
def test_median(op, n):
    check(op, values(torch.float32, 3, n), 1)
    check(op, torch.randperm(3 * n).reshape(n, 3), 0, True)


def test_median_with_nan():
    check(aten.median.dim, SPECIAL[:1], 1)
    check(aten.nanmedian.dim, torch.tensor([[1.0, NAN, 3.0, 0.5], [NAN, 7.0, NAN, NAN]]), 1)
    check(aten.median.default, SPECIAL)
    check(aten.nanmedian.default, torch.tensor([NAN, 5.0, 1.0, 2.0]))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_kthvalue(k):
    check(aten.kthvalue.default, values(torch.float32, 4, 5), k, -1, True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_mode_is_the_smallest_most_frequent_value(dtype):
    check(aten.mode.default, torch.randint(0, 4, (6, 12)).to(dtype), 1)


def test_long_sums_stay_accurate():
    x = torch.full((1 << 22,), 0.1)
    text, inputs, metas, _ = build(aten.sum.default, (x,), {})
    torch.testing.assert_close(
        run(text, inputs, metas)[0], x.double().sum().float(), rtol=1e-5, atol=0
    )
