"""Symmetric indefinite factorization and solve equal LAPACK's, pivots included."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten
# With zeros on the diagonal every other pivot is a block of two.
SHAPES = [(1, 1), (2, 2), (7, 7), (3, 2, 6, 6), (0, 3, 3), (2, 0, 0)]


def symmetric(shape, dtype, hermitian, hollow):
    a = torch.randn(shape, dtype=dtype)
    a = a + (a.mH if hermitian else a.mT)
    return a * (1 - torch.eye(shape[-1])) if hollow else a


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("hollow", [False, True])
def test_factor_and_solve(dtype, hermitian, hollow):
    torch.manual_seed(0)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {}
    for shape in SHAPES[1:] if hollow else SHAPES:
        a = symmetric(shape, dtype, hermitian, hollow)
        check(aten.linalg_ldl_factor_ex.default, a, hermitian=hermitian, **close)
        packed, pivots, _ = aten.linalg_ldl_factor_ex(a, hermitian=hermitian)
        y = torch.randn(*shape[:-1], 3, dtype=dtype)
        check(aten.linalg_ldl_solve.default, packed, pivots, y, hermitian=hermitian, **close)


def test_only_the_lower_triangle_counts():
    a = torch.randn(4, 4, dtype=torch.float64)
    check(aten.linalg_ldl_factor_ex.default, a)


def test_singular_block():
    check(aten.linalg_ldl_factor_ex.default, torch.zeros(3, 3))
    check(aten.linalg_ldl_factor_ex.default, torch.ones(2, 3, 3))


@pytest.mark.parametrize("op", [aten._linalg_det.default, aten._linalg_slogdet.default])
def test_determinant_factors_by_layout(op):
    """The gradient formulas know from the matrix's strides whether its transpose was factored."""
    a = torch.randn(2, 4, 4)
    check(op, a)
    check(op, a.mT)
    check(op, a.to(torch.complex64).mT)
