"""Linear algebra equals CPU, or has the defining properties where signs and phases are free."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness
from tests.lowering.harness import check

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.complex64]
SINGLE = [torch.float32, torch.complex64]
SQUARE = [(1, 1), (2, 3, 5, 5), (0, 3, 3)]
ANY = [(4, 4), (3, 5), (2, 4, 3), (3, 0)]


def positive(shape, dtype=torch.float32):
    a = torch.randn(shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


def run(op, *args, **kwargs):
    text, inputs, metas, _ = harness.build(op, args, kwargs)
    return harness.run(text, inputs, metas)


def near(got, want, scale=1.0):
    """Equal within rounding of the factorization."""
    bound = 100 * torch.finfo(got.dtype).eps * max(1.0, float(scale))
    torch.testing.assert_close(got, want.to(got.dtype), rtol=0, atol=bound)


# ---- Cholesky and triangles


@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype, upper):
    for shape in SQUARE:
        a = positive(shape, dtype)
        check(aten.linalg_cholesky_ex.default, a, upper=upper)
    factor = torch.linalg.cholesky(positive((2, 4, 4), dtype), upper=upper)
    y = torch.randn(2, 4, 3, dtype=dtype)
    check(aten.cholesky_solve.default, y, factor, upper)
    check(aten.cholesky_inverse.default, factor, upper, rtol=1e-3, atol=1e-3)


def test_cholesky_reads_one_triangle_and_reports_failure():
    a = positive((4, 4))
    check(aten.linalg_cholesky_ex.default, a.tril() + 7 * torch.ones(4, 4).triu(1))
    bad = torch.stack([a, torch.diag(torch.tensor([1.0, 2.0, -3.0, 4.0])), -a])
    info = run(aten.linalg_cholesky_ex.default, bad)[1]
    assert info.tolist() == [0, 3, 1]


@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_solve_triangular(dtype, upper, left, unit):
    a = torch.randn(2, 1, 4, 4, dtype=dtype) * 0.3 + 2 * torch.eye(4)
    y = torch.randn(3, 4, 5, dtype=dtype) if left else torch.randn(3, 5, 4, dtype=dtype)
    how = {"upper": upper, "left": left, "unitriangular": unit}
    check(aten.linalg_solve_triangular.default, a, y, **how, rtol=1e-3, atol=1e-4)
    if left:
        y = y.expand(2, 3, 4, 5).contiguous()
        a = a.expand(2, 3, 4, 4).contiguous()
        check(aten.triangular_solve.default, y, a, upper, True, unit, rtol=1e-3, atol=1e-4)


# ---- QR


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(dtype, mode):
    for shape in ANY:
        check(aten.linalg_qr.default, torch.randn(shape, dtype=dtype), mode)


def test_reflectors():
    a, y = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    check(aten.geqrf.default, a)
    packed, taus = torch.geqrf(a)
    check(aten.linalg_householder_product.default, packed, taus)
    for transposed in (False, True):
        check(aten.ormqr.default, packed, taus, y, True, transposed)
        check(aten.ormqr.default, packed, taus, y.mT.contiguous(), False, transposed)


# ---- LU


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu(dtype):
    for shape in ANY:
        a = torch.randn(shape, dtype=dtype)
        check(aten.linalg_lu_factor_ex.default, a)
        check(aten.linalg_lu.default, a)
    a = torch.randn(2, 4, 4, dtype=dtype) + 4 * torch.eye(4)
    lu, pivots, info = run(aten.linalg_lu_factor_ex.default, a, pivot=False)
    near((lu.tril(-1) + torch.eye(4)) @ lu.triu(), a, 10)
    assert pivots.tolist() == [[1, 2, 3, 4]] * 2
    assert info.tolist() == [0, 0]
    lu, pivots = torch.linalg.lu_factor(torch.randn(2, 5, 3, dtype=dtype))
    check(aten.lu_unpack.default, lu, pivots)
    check(aten.lu_unpack.default, lu, pivots, True, False)


@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize(
    "left, adjoint", [(True, False), (True, True), (False, False), (False, True)]
)
def test_lu_solve(dtype, left, adjoint):
    lu, pivots = torch.linalg.lu_factor(torch.randn(2, 4, 4, dtype=dtype) + 2 * torch.eye(4))
    y = torch.randn(2, 4, 3, dtype=dtype)
    y = y if left else y.mT.contiguous()
    how = {"left": left, "adjoint": adjoint}
    check(aten.linalg_lu_solve.default, lu, pivots, y, **how, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solve_inverse_and_determinant(dtype):
    close = {"rtol": 1e-3, "atol": 1e-3}
    for shape in SQUARE:
        a = torch.randn(shape, dtype=dtype)
        check(aten._linalg_solve_ex.default, a, torch.randn(shape, dtype=dtype), **close)
        check(aten.linalg_inv_ex.default, a, **close)
        check(aten._linalg_det.default, a, **close)
        check(aten._linalg_slogdet.default, a, **close)
    a = torch.randn(2, 3, 3, dtype=dtype)
    check(aten._linalg_solve_ex.default, a, torch.randn(2, 3, dtype=dtype), **close)
    check(aten._linalg_solve_ex.default, a, torch.randn(2, 4, 3, dtype=dtype), left=False, **close)


def test_singular_matrix():
    a = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    info = run(aten.linalg_lu_factor_ex.default, torch.stack([a, torch.eye(3), 0 * a]))[2]
    assert info.tolist() == [3, 0, 1]
    check(aten._linalg_slogdet.default, torch.zeros(2, 2))


# ---- eigenvalues and singular values


def matrices(dtype, shapes):
    """Random matrices, and the same with dependent columns."""
    for shape in shapes:
        a = torch.randn(shape, dtype=dtype)
        yield a
        if min(shape[-2:]) > 1:
            a = a.clone()
            a[..., 0] = 2 * a[..., 1]
            yield a


@pytest.mark.parametrize("dtype", SINGLE, ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_svd(dtype, full):
    for a in matrices(dtype, [(4, 4), (2, 3, 5)]):
        u, s, vh = run(aten._linalg_svd.default, a, full, True)
        k, top = s.shape[-1], s.max()
        near(s, torch.linalg.svdvals(a), top)
        near((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, top)
        near(u.mH @ u, torch.eye(u.shape[-1]).expand(*u.shape[:-2], -1, -1))
        near(vh @ vh.mH, torch.eye(vh.shape[-2]).expand(*vh.shape[:-2], -1, -1))
    near(run(aten._linalg_svd.default, a, full, False)[1], s, top)


def test_svd_of_zeros_and_of_nothing():
    u, s, _ = run(aten._linalg_svd.default, torch.zeros(3, 2), False, True)
    near(s, torch.zeros(2))
    near(u.mT @ u, torch.eye(2))
    assert [t.shape for t in run(aten._linalg_svd.default, torch.zeros(0, 3, 2), True, True)] == [
        (0, 3, 3),
        (0, 2),
        (0, 2, 2),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(dtype, triangle):
    for shape in ((1, 1), (2, 5, 5)):
        a = torch.randn(shape, dtype=dtype)
        w, v = run(aten._linalg_eigh.default, a, triangle, True)
        half = a.tril(-1) if triangle == "L" else a.triu(1)
        middle = torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real).to(dtype)
        whole = half + half.mH + middle
        top = w.abs().max()
        near(w, torch.linalg.eigvalsh(whole), top)
        near((v * w[..., None, :]) @ v.mH, whole, top)
        near(v.mH @ v, torch.eye(shape[-1]).expand(shape))


@pytest.mark.parametrize("dtype", SINGLE, ids=str)
def test_pinv(dtype):
    op, real = aten.linalg_pinv.atol_rtol_tensor, torch.tensor(0.3, dtype=torch.float64)
    for a in matrices(dtype, [(2, 3, 5)]):
        want = torch.linalg.pinv(a)
        near(run(op, a)[0], want, 100 * want.abs().max())
    for tolerance in ("atol", "rtol"):
        got, want = run(op, a, **{tolerance: real})[0], torch.linalg.pinv(a, **{tolerance: real})
        near(got, want, 100 * want.abs().max())
    h = positive((4, 4), dtype)
    near(run(op, h, hermitian=True)[0], torch.linalg.pinv(h, hermitian=True), 100)


# ---- products


def test_cross():
    check(aten.linalg_cross.default, torch.randn(2, 3), torch.randn(2, 3))
    check(aten.linalg_cross.default, torch.randn(3, 4), torch.randn(3, 1), dim=0)
    ints = torch.randint(-9, 9, (2, 5, 3)), torch.randint(-9, 9, (2, 5, 3))
    check(aten.linalg_cross.default, *ints)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrix_exp(dtype):
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype is not torch.float64 else {}
    a = torch.randn(3, 4, 4, dtype=dtype) * torch.tensor([0.01, 1.0, 3.0])[:, None, None]
    for x in (a, torch.zeros(2, 2, dtype=dtype), torch.empty(0, 3, 3, dtype=dtype)):
        check(aten.linalg_matrix_exp.default, x, **close)
