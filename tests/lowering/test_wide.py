"""What a TPU's compiler lacks, in other words: products of 64-bit integers, Fourier transforms in
double precision.
"""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness
from tests.lowering.harness import check
from torchtpu_core import flags, precision

aten = torch.ops.aten
LARGE = 2**40


def ints(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers whose products and sums wrap around."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-LARGE, LARGE, shape, generator=generator)


def test_products() -> None:
    check(aten.mm.default, ints(5, 7), ints(7, 3, seed=1))
    check(aten.mm.default, ints(5, 0), ints(0, 3))
    check(aten.bmm.default, ints(2, 5, 7), ints(2, 7, 3, seed=1))
    check(aten.mv.default, ints(5, 7), ints(7))
    check(aten.dot.default, ints(7), ints(7, seed=1))
    check(aten.addbmm.default, ints(5, 3), ints(2, 5, 7), ints(2, 7, 3), beta=2, alpha=3)


@pytest.mark.parametrize(
    "stride,padding,dilation,groups", [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4)]
)
def test_convolutions(stride: int, padding: int, dilation: int, groups: int) -> None:
    settings = [stride] * 2, [padding] * 2, [dilation] * 2
    x, w = ints(2, 4, 9, 7), ints(8, 4 // groups, 3, 2, seed=1)
    check(aten.convolution.default, x, w, ints(8), *settings, False, [0, 0], groups)
    w = ints(4, 8 // groups, 3, 2, seed=1)
    check(aten.convolution.default, x, w, None, *settings, True, [0, 0], groups)


def test_convolution_in_batch_groups() -> None:
    """The gradient of a grouped convolution's weight; PyTorch has none for integers."""
    x, grad = ints(2, 4, 6, seed=1) % 9, ints(2, 6, 4) % 9
    args = ([6], [1], [0], [1], False, [0], 2, [True, True, True])
    want = aten.convolution_backward.default(
        grad.double(), x.double(), torch.zeros(6, 2, 3).double(), *args
    )
    text, inputs, metas, _ = harness.build(
        aten.convolution_backward.default,
        (grad, x, torch.zeros(6, 2, 3, dtype=torch.int64), *args),
        {},
    )
    assert "stablehlo.convolution" not in text
    for got, expected in zip(harness.run(text, inputs, metas), want):
        assert torch.equal(got, expected.long())


@pytest.mark.parametrize("n", [1, 2, 7, 64, 67, 96, 130, 1024])
def test_fourier_transforms_in_double_precision(n: int) -> None:
    x = torch.randn(2, n, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    close = {"rtol": 1e-11, "atol": 1e-11 * n}
    check(aten._fft_c2c.default, x, [1], 0, True, **close)
    check(aten._fft_c2c.default, x, [0, 1, 2], 2, False, **close)
    check(aten._fft_r2c.default, x.real, [0, 1], 0, True, **close)
    half = torch.fft.rfft(x.real, dim=1)
    check(aten._fft_c2r.default, half, [0, 1], 0, n, **close)
    text = harness.build(aten._fft_c2r.default, (half, [1], 0, n), {})[0]
    assert "stablehlo.fft" not in text


def test_each_platform_has_its_own_form() -> None:
    """A CPU's compiler has these products, and makes faster programs of them."""
    before = flags.put(flags.FOR_TPU, 0)
    try:
        assert precision.of_products()["target"] == "cpu"
        flags.put(flags.FOR_TPU, flags.FOR_TPU)
        assert precision.of_products()["target"] == "tpu"
    finally:
        flags.put(flags.FOR_TPU, before)
