"""Sorting and searching against CPU: NaN is the greatest value, equal elements keep their order."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (torch.rand(shape, generator=g) * 20 - 10).to(dtype)


SPECIAL = torch.tensor([1.0, NAN, -INF, 0.0, -0.0, INF, -NAN, 1.0, -2.5])
VALUES = {
    "f32": f(3, 7),
    "special": SPECIAL,
    "bf16": SPECIAL.bfloat16(),
    "f64": f(4, 5, dtype=torch.float64),
    "i64": f(3, 9, dtype=torch.int64),
    "u8": f(9).abs().to(torch.uint8),
    "bool": f(2, 6) > 0,
    "limits": torch.tensor([2**31 - 1, -(2**31), 0, -1], dtype=torch.int32),
    "0-d": torch.tensor(3.0),
    "empty": f(3, 0),
    "one": f(3, 1),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(name, descending):
    x = VALUES[name]
    harness.check(aten.sort.stable, x, stable=True, dim=-1, descending=descending)
    if x.ndim == 2 and x.numel():
        harness.check(aten.sort.stable, x, stable=True, dim=0, descending=descending)


def test_sort_families():
    harness.check(aten.sort.default, f(4, 5))
    harness.check(aten.argsort.default, f(4, 5), 0, True)
    harness.check(aten.argsort.stable, f(4, 5), stable=True, dim=0)
    harness.check(aten.msort.default, f(4, 5))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("largest", [False, True])
def test_topk(name, largest):
    """Values equal CPU's; the indices point at them, whichever of equal elements they choose."""
    x = VALUES[name]
    if x.dtype == torch.bool:
        x = x.to(torch.int8)  # CPU has no topk of bool
    n = x.shape[-1] if x.ndim else 1
    for k in {0, min(2, n), n}:
        args = (x, k, -1, largest, True)
        text, inputs, metas, _ = harness.build(aten.topk.default, args, {})
        values, indices = harness.run(text, inputs, metas)
        want = aten.topk.default(*args)[0]
        torch.testing.assert_close(values, want, equal_nan=True, rtol=0, atol=0)
        picked = x.gather(-1, indices) if x.ndim else x.reshape(want.shape)
        torch.testing.assert_close(picked, want, equal_nan=True, rtol=0, atol=0)
        distinct = indices.sort(-1)[0].diff(dim=-1) if x.ndim else torch.ones(1)
        assert (distinct > 0).all()


def test_topk_along_another_dim():
    harness.check(aten.topk.default, f(6, 4), 3, 0)


EDGES = torch.tensor([-3.0, -1.0, -1.0, 2.0, 5.0])
POINTS = torch.tensor([[-9.0, -1.0, 2.0], [5.0, INF, NAN]])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
def test_search(right, out_int32):
    kwargs = {"right": right, "out_int32": out_int32}
    harness.check(aten.searchsorted.Tensor, EDGES, POINTS, **kwargs)
    harness.check(aten.searchsorted.Tensor, f(2, 4).sort()[0], POINTS, **kwargs)
    harness.check(aten.searchsorted.Scalar, EDGES, 2, **kwargs)
    harness.check(aten.bucketize.Tensor, POINTS, EDGES, **kwargs)
    harness.check(aten.bucketize.Scalar, 2.0, EDGES, **kwargs)
    harness.check(aten.bucketize.Tensor, EDGES.long(), EDGES.long(), **kwargs)
    harness.check(aten.searchsorted.Tensor, torch.empty(0), POINTS, **kwargs)


@pytest.mark.parametrize("right", [False, True])
def test_binary_search(right):
    """Long enough that not every pair is compared."""
    edges, points = f(3000).round().sort()[0], f(500).round()
    points[7] = NAN
    harness.check(aten.searchsorted.Tensor, edges, points, right=right)
    harness.check(aten.searchsorted.Tensor, f(3, 3000).sort()[0], f(3, 300), right=right)


def test_search_with_side_and_sorter():
    x = f(9)
    harness.check(aten.searchsorted.Tensor, EDGES, POINTS, side="right")
    harness.check(aten.searchsorted.Tensor, x, f(4), sorter=x.argsort())


@pytest.mark.parametrize("invert", [False, True])
def test_isin(invert):
    x = torch.tensor([[1, 2, 3], [4, 2, 0]])
    harness.check(aten.isin.Tensor_Tensor, x, torch.tensor([2, 4, 9]), invert=invert)
    harness.check(aten.isin.Tensor_Tensor, x, torch.empty(0, dtype=torch.int64), invert=invert)
    harness.check(aten.isin.Tensor_Tensor, SPECIAL, torch.tensor([NAN, 1.0]), invert=invert)
    harness.check(aten.isin.Tensor_Scalar, x, 2, invert=invert)
    harness.check(aten.isin.Scalar_Tensor, 2, x, invert=invert)
    long = f(2000).round()
    harness.check(aten.isin.Tensor_Tensor, long * 2, long, invert=invert)


@pytest.mark.parametrize("bounds", [(0, 0), (-3, 4)])
def test_histc(bounds):
    harness.check(aten.histc.default, f(40), 7, *bounds)
    harness.check(aten.histc.default, torch.full((4,), 2.0), 5, *bounds)
    harness.check(aten.histc.default, torch.empty(0), 5, *bounds)
