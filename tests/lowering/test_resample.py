"""Interpolation, grid sampling and border padding equal CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
SIZES = {1: [9], 2: [7, 9], 3: [4, 5, 6]}
OUTS = {1: ([18], [4]), 2: ([14, 18], [3, 20]), 3: ([8, 10, 12], [3, 7, 6])}
NEAREST = [
    f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)
]
SMOOTH = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
SMOOTH += ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]


def both_ways(name, x, out, *rest):
    check(getattr(aten, name).default, x, out, *rest)
    grad = torch.randn(*x.shape[:2], *out, dtype=x.dtype)
    check(getattr(aten, f"{name}_backward").default, grad, out, list(x.shape), *rest)


@pytest.mark.parametrize("name", NEAREST)
@pytest.mark.parametrize("which", [0, 1])
def test_nearest(name, which):
    n = int(name[-2])
    both_ways(name, torch.randn(2, 3, *SIZES[n]), OUTS[n][which])


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_smooth(name, align, which):
    n = 2 if name.endswith("aa") else int(name[-2])
    both_ways(name, torch.randn(2, 3, *SIZES[n]), OUTS[n][which], align)


def test_scale_factors_win_over_sizes():
    both_ways("upsample_bilinear2d", torch.randn(1, 2, 5, 6), [12, 15], False, 2.5, 2.5)
    both_ways("upsample_nearest2d", torch.randn(1, 2, 5, 6), [12, 15], 2.5, 2.5)


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "_upsample_bilinear2d_aa"])
def test_bytes_are_rounded_as_on_cpu(name):
    x = torch.randint(0, 256, (1, 3, 8, 9), dtype=torch.uint8)
    check(getattr(aten, name).default, x, [5, 12], False)


def test_nan_stays_in_its_pixels():
    x = torch.randn(1, 1, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    x[0, 0, 5, 0] = float("inf")
    check(aten.upsample_nearest2d.default, x, [9, 9])
    check(aten.upsample_bilinear2d.default, x, [12, 12], False)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sampler_2d(mode, padding, align):
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 7, 2) * 3 - 1.5
    how = mode, padding, align
    check(aten.grid_sampler_2d.default, x, grid, *how)
    grad = torch.randn(2, 3, 4, 7)
    args = grad, x, grid, *how, [True, True]
    check(aten.grid_sampler_2d_backward.default, *args, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode, padding", [(0, 0), (0, 2), (1, 1)])
def test_grid_sampler_3d(mode, padding):
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 4, 2, 3) * 3 - 1.5
    check(aten.grid_sampler_3d.default, x, grid, mode, padding, False)
    args = torch.randn(2, 3, 3, 4, 2), x, grid, mode, padding, False, [True, True]
    check(aten.grid_sampler_3d_backward.default, *args, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("n, padding", [(1, [2, 3]), (2, [1, 0, 2, 3]), (3, [1, 2, 0, 3, 2, 1])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_border_padding(kind, n, padding, dtype):
    x = torch.randn(2, 3, *[5, 6, 7][:n], dtype=dtype)
    op = getattr(aten, f"{kind}_pad{n}d")
    check(op.default, x, padding)
    grad = torch.randn_like(op(x, padding))
    # CPU adds up the border in the tensor's own type.
    loose = {"rtol": 5e-2, "atol": 0.1} if dtype is torch.bfloat16 else {}
    check(getattr(aten, f"{kind}_pad{n}d_backward").default, grad, x, padding, **loose)


def test_negative_padding_crops():
    x = torch.randn(2, 3, 6, 7)
    for kind in ("reflection", "replication"):
        check(getattr(aten, f"{kind}_pad2d").default, x, [-1, 2, 1, -2])
