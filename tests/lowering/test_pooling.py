"""Pooling equals CPU: values, indices, NaN, ties, ceil_mode, padding, adaptive windows; and the
gradients."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
#: (kernel, stride, padding, dilation, ceil_mode)
MAX_WINDOWS = [
    ([2, 2], [], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 2], [2, 3], [1, 0], [2, 1], True),
    ([7, 7], [1, 1], [3, 3], [1, 1], False),
]
MAX = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
MAX_BACKWARD = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}


def image(*shape, dtype=torch.float32):
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(-50, 50, shape, dtype=dtype)


@pytest.mark.parametrize("window", MAX_WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_max(window, dtype):
    x = image(2, 3, 9, 10, dtype=dtype)
    check(MAX[2].default, x, *window)
    if dtype.is_floating_point:
        values, index = MAX[2](x, *window)
        # CPU adds up overlapping windows in the tensor's own type.
        loose = {"rtol": 5e-2, "atol": 0.1} if dtype is torch.bfloat16 else {}
        check(MAX_BACKWARD[2].default, torch.randn_like(values), x, *window, index, **loose)


@pytest.mark.parametrize("target", ["cpu", "tpu"])
@pytest.mark.parametrize("window", MAX_WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_max_without_positions(window, dtype, target):
    x = image(2, 3, 9, 10, dtype=dtype)
    if dtype.is_floating_point:
        x[0, 0, 4, 5], x[1, 1] = NAN, -INF
    check(aten.max_pool2d.default, x, *window, target=target)
    check(aten.max_pool2d.default, x[:0], *window, target=target)
    check(aten.max_pool2d.default, x[1].transpose(1, 2), *window, target=target)


@pytest.mark.parametrize("target", ["cpu", "tpu"])
def test_max_without_positions_in_three_dimensions(target):
    how = [3, 2, 3], [2, 2, 1], [1, 0, 1], [1, 2, 1], True
    check(aten.max_pool3d.default, image(2, 3, 6, 7, 8), *how, target=target)


@pytest.mark.parametrize(
    "kernel, padding", [([2, 2, 2], [0, 0, 0]), ([3, 3, 3], [1, 1, 1]), ([4, 3, 3], [1, 0, 1])]
)
def test_max_in_three_dimensions(kernel, padding):
    x = image(2, 6, 7, 8)
    args = kernel, [2, 2, 2], padding, [1, 1, 1], True
    check(MAX[3].default, x, *args)
    values, index = MAX[3](x, *args)
    check(MAX_BACKWARD[3].default, torch.randn_like(values), x, *args, index)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0])
def test_max_of_special_values_and_ties(value):
    """The first of equal values, and NaN, win; windows of -inf point at an element inside."""
    x = torch.full((1, 1, 6, 6), value)
    x[0, 0, 2, 3] = 1.0
    check(MAX[2].default, x, [3, 3], [2, 2], [1, 1], [1, 1], True)
    x[0, 0, 0, 1] = x[0, 0, 5, 5] = NAN
    check(MAX[2].default, x, [3, 3], [1, 1], [1, 1], [1, 1], False)


def test_max_without_batch():
    check(MAX[2].default, image(3, 6, 6), [2, 2])
    check(MAX[2].default, image(0, 3, 6, 6), [2, 2])


#: (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
AVG_WINDOWS = [
    ([2, 2], [], [0, 0], False, True, None),
    ([3, 3], [2, 2], [1, 1], False, True, None),
    ([3, 2], [2, 3], [1, 1], True, False, None),
    ([3, 2], [2, 3], [1, 1], True, True, None),
    ([2, 2], [3, 3], [0, 0], True, True, 3),
]


@pytest.mark.parametrize("window", AVG_WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_average(window, dtype):
    x = image(2, 3, 9, 10, dtype=dtype)
    check(aten.avg_pool2d.default, x, *window)
    if dtype.is_floating_point:
        grad = torch.randn_like(aten.avg_pool2d(x, *window))
        check(aten.avg_pool2d_backward.default, grad, x, *window)


def test_average_in_one_and_three_dimensions():
    check(aten.avg_pool1d.default, image(2, 3, 9), [3], [2], [1], True, False)
    x, window = image(2, 3, 6, 7, 8), ([2, 3, 2], [2, 2, 2], [1, 1, 0], True, False, None)
    check(aten.avg_pool3d.default, x, *window)
    grad = torch.randn_like(aten.avg_pool3d(x, *window))
    check(aten.avg_pool3d_backward.default, grad, x, *window)


@pytest.mark.parametrize("size", [[1, 1], [3, 5], [4, 3], [9, 10], [12, 20]], ids=str)
def test_adaptive_2d(size):
    x = image(2, 3, 9, 10)
    check(aten._adaptive_avg_pool2d.default, x, size)
    grad = torch.randn(2, 3, *size)
    check(aten._adaptive_avg_pool2d_backward.default, grad, x)
    check(aten.adaptive_max_pool2d.default, x, size)
    index = aten.adaptive_max_pool2d(x, size)[1]
    check(aten.adaptive_max_pool2d_backward.default, grad, x, index)


def test_adaptive_3d():
    x, size = image(2, 3, 5, 6, 7), [2, 4, 7]
    check(aten._adaptive_avg_pool3d.default, x, size)
    grad = torch.randn(2, 3, *size)
    check(aten._adaptive_avg_pool3d_backward.default, grad, x)
    check(aten.adaptive_max_pool3d.default, x, size)
    index = aten.adaptive_max_pool3d(x, size)[1]
    check(aten.adaptive_max_pool3d_backward.default, grad, x, index)


def test_adaptive_average_keeps_nan_in_its_windows():
    x = image(1, 1, 7, 7)
    x[0, 0, 2, 2], x[0, 0, 6, 0] = NAN, INF
    check(aten._adaptive_avg_pool2d.default, x, [3, 4])


def test_fractional():
    x = image(2, 3, 9, 10)
    args = [2, 3], [4, 3], torch.rand(2, 3, 2)
    check(aten.fractional_max_pool2d.default, x, *args)
    values, index = aten.fractional_max_pool2d(x, *args)
    grad = torch.randn_like(values)
    check(aten.fractional_max_pool2d_backward.default, grad, x, *args[:2], index)
    x = image(2, 2, 6, 7, 8)
    check(aten.fractional_max_pool3d.default, x, [2, 2, 3], [3, 1, 4], torch.rand(2, 2, 3))


def test_unpool():
    x = image(2, 3, 8, 8)
    values, index = MAX[2](x, [2, 2])
    check(aten.max_unpool2d.default, values, index, [8, 8])
    values, index = MAX[3](image(2, 3, 4, 4, 4), [2, 2, 2])
    check(aten.max_unpool3d.default, values, index, [4, 4, 4], [2, 2, 2], [0, 0, 0])
