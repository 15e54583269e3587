"""Complex tensors: their real views share memory, conjugation is lazy, products and transforms
equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Z = torch.complex(*torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)))


def _write_through_views(x: torch.Tensor) -> list[torch.Tensor]:
    """`x`: (n, 2) floats."""
    z = torch.view_as_complex(x)
    z.mul_(2j)
    x[0, 0] = 7
    z.real.add_(1)
    z.imag[1] = 5
    torch.view_as_real(z)[2] = 0
    return [x, z]


def _write_through_conj(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z.conj().add_(1j)
    z.mH[0] = 2j
    z.conj().imag.mul_(3)
    return z


def _gradient(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def run(z: torch.Tensor) -> torch.Tensor:
        z = z.requires_grad_()
        fn(z).sum().backward()
        return z.grad

    return run


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "conj write": _write_through_conj,
    "real from imag": lambda z: z.clone().real.copy_(z.imag),
    "resolved": lambda z: [z.conj().resolve_conj(), z.conj().imag.resolve_neg()],
    "conj to host": lambda z: z.conj().cpu(),
    "conj sum": lambda z: z.conj().sum(),
    "neg view times": lambda z: z.conj().imag.mul(2),
    "conj_physical_": lambda z: z.clone().conj_physical_(),
    "matmul of adjoint": lambda z: z @ z.mH,
    "einsum": lambda z: torch.einsum("ij,kj->ik", z, z.conj()),
    "angle and abs": lambda z: [z.angle(), z.abs(), torch.polar(z.abs(), z.angle())],
    "fft2 and back": lambda z: torch.fft.ifft2(torch.fft.fft2(z)),
    "rfft and back": lambda z: torch.fft.irfft(torch.fft.rfft(z.real), n=4),
    "sparse": lambda z: z.to_sparse().coalesce().to_dense(),
    "gradient of a product": _gradient(lambda z: (z @ z.mH).abs()),
    "gradient of a real view": _gradient(lambda z: torch.view_as_real(z) ** 3),
    "gradient of a complex view": _gradient(
        lambda z: torch.view_as_complex(torch.view_as_real(z) * 2).abs()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_complex(name: str, assert_same: Any) -> None:
    assert_same(CASES[name], Z)


def test_real_views_share_memory(assert_same: Any) -> None:
    assert_same(_write_through_views, torch.view_as_real(Z[0].clone()).clone())


def test_conjugation_is_lazy(device: str) -> None:
    z = Z.to(device)
    assert z.conj().is_conj() and z.conj().data_ptr() == z.data_ptr()
    assert not z.conj().conj().is_conj() and z.conj().imag.is_neg()


def test_halves_of_complex_are_named_as_missing(device: str) -> None:
    with pytest.raises(NotImplementedError, match="ComplexHalf is not supported on tpu"):
        torch.zeros(3, dtype=torch.complex32, device=device)
    with pytest.raises(NotImplementedError, match="ComplexHalf is not supported on tpu"):
        Z.to(torch.complex32).to(device)
