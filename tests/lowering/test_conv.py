"""Convolutions and their gradients equal CPU, plain and transposed, grouped, dilated; unfold and
fold."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
SPATIAL = [9, 8, 7]
KERNEL = [3, 2, 3]
#: (stride, padding, dilation, output_padding)
WINDOWS = [(1, 0, 1, 0), (2, 1, 1, 1), (3, 2, 2, 1), (2, 4, 1, 0), (2, 1, 3, 2)]


def operands(n, transposed, groups, dtype=torch.float32, batch=2):
    c_in, c_out = 4, 8
    lead = (c_in, c_out // groups) if transposed else (c_out, c_in // groups)
    x = torch.randn(batch, c_in, *SPATIAL[:n], dtype=dtype)
    return x, torch.randn(*lead, *KERNEL[:n], dtype=dtype), torch.randn(c_out, dtype=dtype)


def both_ways(x, w, c, stride, padding, dilation, transposed, extra, groups, tolerance):
    n = x.ndim - 2
    how = [stride] * n, [padding] * n, [dilation] * n, transposed, [extra] * n, groups
    check(aten.convolution.default, x, w, c, *how, **tolerance)
    grad = torch.randn_like(aten.convolution(x, w, c, *how))
    args = (grad, x, w, list(c.shape), *how)
    check(aten.convolution_backward.default, *args, [True] * 3, **tolerance)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("transposed, groups", list(itertools.product([False, True], [1, 2, 4])))
@pytest.mark.parametrize("n", [1, 2])
def test_convolution(n, transposed, groups, window):
    stride, padding, dilation, extra = window
    x, w, c = operands(n, transposed, groups)
    extra = extra if transposed else 0
    close = {"rtol": 1e-3, "atol": 1e-4}
    both_ways(x, w, c, stride, padding, dilation, transposed, extra, groups, close)


@pytest.mark.parametrize("transposed, groups", [(False, 1), (False, 4), (True, 2)])
def test_three_dimensions(transposed, groups):
    x, w, c = operands(3, transposed, groups)
    both_ways(x, w, c, 2, 1, 1, transposed, 0, groups, {"rtol": 1e-3, "atol": 1e-3})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_dtypes(dtype, transposed):
    x, w, c = operands(2, transposed, 1, dtype)
    how = [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1
    loose = {} if dtype is torch.float64 else {"rtol": 2e-2, "atol": 6e-2}
    check(aten.convolution.default, x, w, c, *how, **loose)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, True, True]])
def test_only_the_wanted_gradients(mask):
    x, w, c = operands(1, False, 2)
    how = [2], [1], [1], False, [0], 2
    grad = torch.randn_like(aten.convolution(x, w, c, *how))
    check(aten.convolution_backward.default, grad, x, w, [8], *how, mask, rtol=1e-3, atol=1e-4)


def test_without_bias_and_without_batch():
    x, w, _ = operands(2, False, 1, batch=0)
    how = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    check(aten.convolution.default, x, w, None, *how)
    check(aten.convolution.default, *operands(2, False, 1)[:2], None, *how)


def test_time_batch_channel():
    x, w, c = torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4)
    check(aten.conv_tbc.default, x, w, c, 1)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    "kernel, dilation, padding, stride",
    [((2, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 1), (1, 2), (2, 3))],
)
def test_unfold_and_fold(batch, kernel, dilation, padding, stride):
    x = torch.randn(*batch, 3, 8, 9)
    window = list(kernel), list(dilation), list(padding), list(stride)
    check(aten.im2col.default, x, *window)
    check(aten.col2im.default, aten.im2col(x, *window), [8, 9], *window)
