"""Fourier transforms equal CPU, over dtypes, normalizations and dimensions."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
SHAPES = [
    ((8,), (0,)),
    ((3, 7), (1,)),
    ((5, 4), (0,)),
    ((4, 5, 6), (2, 0)),
    ((3, 2, 4, 3, 2), (0, 2, 1, 3)),
]


@pytest.mark.parametrize("shape, dims", SHAPES)
@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("forward", [True, False])
def test_complex_to_complex(shape, dims, normalization, forward):
    x = torch.randn(shape, dtype=torch.complex64)
    check(aten._fft_c2c.default, x, dims, normalization, forward)


@pytest.mark.parametrize("shape, dims", SHAPES)
@pytest.mark.parametrize("onesided", [True, False])
def test_real_to_complex(shape, dims, onesided):
    check(aten._fft_r2c.default, torch.randn(shape), dims, 1, onesided)


@pytest.mark.parametrize("shape, dims", SHAPES)
@pytest.mark.parametrize("odd", [0, 1])
def test_complex_to_real(shape, dims, odd):
    # The transform of a real signal: CPU's and XLA's ways to read an asymmetric spectrum differ.
    size = 2 * shape[dims[-1]] - 2 + odd
    real = list(shape)
    real[dims[-1]] = size
    x = torch.fft.rfftn(torch.randn(real), dim=dims)
    for normalization in range(3):
        check(aten._fft_c2r.default, x, dims, normalization, size)


@pytest.mark.parametrize("n", [1, 2, 31, 97])
def test_lengths(n):
    x = torch.randn(2, n, dtype=torch.float64)
    check(aten._fft_r2c.default, x, [1], 2, True)
    check(aten._fft_c2c.default, x.to(torch.complex128), [1], 0, False)
    check(aten._fft_c2r.default, torch.fft.rfft(x), [1], 2, n)


def test_no_dimension():
    check(aten._fft_c2c.default, torch.randn(3, dtype=torch.complex64), [], 0, True)
