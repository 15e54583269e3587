"""Linear algebra that XLA has operators for: Cholesky, triangular solves, QR by Householder
reflections; and products built on `matmul`: cross, matrix_exp. LU is in linalg_lu.py, eigenvalues
and singular values in linalg_spectral.py.

Matrices are the last two dimensions, all others are batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.lowering.matmul import adjoint
from torchtpu_core.lowering.matmul import exact_matmul as matmul
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, TensorType, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import broadcast_shapes


def triangle(b: Builder, x: Value, upper: bool, diagonal: int = 0) -> Value:
    """The upper or lower triangle, the rest zero."""
    rows, cols = (b.iota("i32", x.shape[-2:], d) for d in (0, 1))
    keep = cols >= rows + diagonal if upper else cols <= rows + diagonal
    return b.select(b.expand(keep, x.shape), x, 0)


def eye(b: Builder, dtype: str, shape: Sequence[int]) -> Value:
    """Identity matrices."""
    rows, cols = (b.iota("i32", shape[-2:], d) for d in (0, 1))
    return b.expand(rows.eq(cols), shape).to(dtype)


def diagonal(b: Builder, x: Value) -> Value:
    """The main diagonals [.., min(m, n)]."""
    m, n = x.shape[-2:]
    k = min(m, n)
    x = b.slice(x, [0] * x.ndim, [*x.shape[:-2], k, k])
    rows, cols = (b.iota("i32", [k, k], d) for d in (0, 1))
    return b.reduce_op("add", b.select(b.expand(rows.eq(cols), x.shape), x, 0), [x.ndim - 1])


def crop(b: Builder, x: Value, rows: int, cols: int) -> Value:
    """The leading `rows` x `cols` block."""
    return b.slice(x, [0] * x.ndim, [*x.shape[:-2], rows, cols])


def _paired(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Both with their batch dimensions broadcast together."""
    lead = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return b.expand(x, [*lead, *x.shape[-2:]]), b.expand(y, [*lead, *y.shape[-2:]])


def solve_triangular(
    b: Builder,
    a: Value,
    y: Value,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    how: str = "NO_TRANSPOSE",
) -> Value:
    """x with op(a) x = y (or x op(a) = y), `upper` as `a` is stored."""
    a, y = _paired(b, a, y)
    if a.numel == 0 or y.numel == 0:
        return b.constant(0, y.dtype, y.shape)
    return b.triangular_solve(a, y, left, not upper, unit, how)


# ---- Cholesky ------------------------------------------------------------------------------------


def _cholesky(b: Builder, a: Value, upper: bool) -> Value:
    if a.numel == 0:
        return a
    factor = triangle(b, b.cholesky(adjoint(b, a) if upper else a), False)
    return adjoint(b, factor) if upper else factor


def _first_bad_minor(b: Builder, a: Value, failed: Value) -> Value:
    """The order of the first leading minor that is not positive, where `failed` [..], else 0.

    Factors once more, column by column; no column at all when nothing failed.
    """
    lead, n, last = a.shape[:-2], a.shape[-1], a.ndim - 1
    zero = b.constant(0, "i32")
    end = b.select(b.reduce_op("or", failed, range(failed.ndim)), b.constant(n, "i32"), 0)

    def body(k: Value, rest: Value, info: Value) -> list[Value]:
        column = b.dynamic_slice(rest, [zero] * last + [k], [*lead, n, 1])
        pivot = b.real(b.dynamic_slice(column, [zero] * (last - 1) + [k, zero], [*lead, 1, 1]))
        bad = ~b.reshape(pivot > 0, lead)
        info = b.select(bad & failed & info.eq(0), b.splat(k + 1, lead), info)
        return [k + 1, rest - column * adjoint(b, column) / pivot.to(rest.dtype), info]

    state = [zero, a, b.constant(0, "i32", lead)]
    return b.while_(state, lambda k, *_: k < end, body)[2]


@lowering("linalg_cholesky_ex")
def _cholesky_ex(b, a, *, upper=False, check_errors=False):
    """Where a matrix is not positive definite XLA answers NaN."""
    factor = _cholesky(b, a, upper)
    if a.numel == 0:
        return factor, b.constant(0, "i32", a.shape[:-2])
    failed = b.reduce_op("or", b.is_nan(diagonal(b, factor)), [a.ndim - 2])
    strict = triangle(b, adjoint(b, a) if upper else a, False, -1)
    whole = strict + adjoint(b, strict) + triangle(b, triangle(b, a, False), True)
    return factor, _first_bad_minor(b, whole, failed)


@lowering("cholesky")
def _cholesky_plain(b, a, upper=False):
    return _cholesky(b, a, upper)


def _after_cholesky(b: Builder, y: Value, factor: Value, upper: bool) -> Value:
    first, second = ("ADJOINT", "NO_TRANSPOSE") if upper else ("NO_TRANSPOSE", "ADJOINT")
    y = solve_triangular(b, factor, y, upper, how=first)
    return solve_triangular(b, factor, y, upper, how=second)


@lowering("cholesky_solve", "_cholesky_solve_helper")
def _cholesky_solve(b, y, factor, upper=False):
    return _after_cholesky(b, y, factor, upper)


@lowering("cholesky_inverse")
def _cholesky_inverse(b, factor, upper=False):
    return _after_cholesky(b, eye(b, factor.dtype, factor.shape), factor, upper)


# ---- triangular solves ---------------------------------------------------------------------------


@lowering("triangular_solve")
def _triangular_solve(b, y, a, upper=True, transpose=False, unitriangular=False):
    a, y = _paired(b, a, y)
    how = "TRANSPOSE" if transpose else "NO_TRANSPOSE"
    return solve_triangular(b, a, y, upper, True, unitriangular, how), a


@lowering("linalg_solve_triangular")
def _linalg_solve_triangular(b, a, y, *, upper, left=True, unitriangular=False):
    return solve_triangular(b, a, y, upper, left, unitriangular)


# ---- QR ------------------------------------------------------------------------------------------


def householder(b: Builder, a: Value) -> tuple[Value, Value]:
    """LAPACK's geqrf: R above the diagonal, reflectors below; and their factors [.., min(m, n)]."""
    k = min(a.shape[-2:])
    taus = TensorType(a.dtype, (*a.shape[:-2], k))
    if a.numel == 0:
        return a, b.constant(0, a.dtype, taus.shape)
    return tuple(b.custom_call("Qr", [a], [a.type, taus]))


def reflectors(b: Builder, a: Value, taus: Value) -> Value:
    """The first columns [m, n] of the product of the reflectors stored in `a` [m, n]."""
    if a.numel == 0:
        return a
    if taus.shape[-1] == 0:
        return eye(b, a.dtype, a.shape)
    return b.custom_call("ProductOfElementaryHouseholderReflectors", [a, taus], [a.type])[0]


def _widened(b: Builder, a: Value, columns: int) -> Value:
    """Exactly `columns` columns, zeros added."""
    high = [0] * (a.ndim - 1) + [columns - a.shape[-1]]
    return b.pad(a, 0, [0] * a.ndim, high)


def qr(b: Builder, a: Value, complete: bool = False) -> tuple[Value, Value]:
    """(Q, R), Q with min(m, n) columns or, when `complete`, m."""
    m, n = a.shape[-2:]
    k = m if complete else min(m, n)
    if a.numel == 0:
        return eye(b, a.dtype, [*a.shape[:-2], m, k]), b.constant(0, a.dtype, [*a.shape[:-2], k, n])
    packed, taus = householder(b, a)
    q = reflectors(b, _widened(b, packed, k), taus)
    return q, triangle(b, crop(b, packed, k, n), True)


@lowering("linalg_qr")
def _linalg_qr(b, a, mode="reduced"):
    m, n = a.shape[-2:]
    if mode == "r":
        packed = householder(b, a)[0]
        return b.constant(0, a.dtype, [0]), triangle(b, crop(b, packed, min(m, n), n), True)
    return qr(b, a, mode == "complete")


@lowering("geqrf")
def _geqrf(b, a):
    return householder(b, a)


@lowering("linalg_householder_product")
def _householder_product(b, a, taus):
    return reflectors(b, a, taus)


@lowering("ormqr")
def _ormqr(b, a, taus, other, left=True, transpose=False):
    """The whole orthogonal matrix times `other`."""
    a, _ = _paired(b, a, other)
    q = reflectors(b, _widened(b, a, a.shape[-2]), b.expand(taus, [*a.shape[:-2], taus.shape[-1]]))
    return matmul(b, q, other, adj_x=transpose) if left else matmul(b, other, q, adj_y=transpose)


# ---- products ------------------------------------------------------------------------------------


@lowering("linalg_cross")
def _linalg_cross(b, x, y, *, dim=-1):
    x, y = b.broadcast(x, y)

    def shifted(v: Value, by: int) -> Value:
        cut = [b.slice_dim(v, dim, i, i + 1) for i in range(3)]
        return b.concatenate(cut[by:] + cut[:by], dim)

    return shifted(x, 1) * shifted(y, 2) - shifted(x, 2) * shifted(y, 1)


#: terms of the exponential series, in four groups of four powers
_TERMS = [[1 / math.factorial(4 * i + j) for j in range(4)] for i in range(5)]


@lowering("linalg_matrix_exp")
def _matrix_exp(b, a):
    """Scaled to a small norm, summed to degree 19, squared back as often as each matrix needs."""
    if a.numel == 0:
        return a
    a = a.to(opmath(a.dtype))
    real, last = T.real_of(a.dtype), a.ndim - 1
    norm = b.reduce_op("maximum", b.reduce_op("add", b.abs(a), [last - 1]), [last - 1])
    small = 2.0 if real == "f32" else 1.0  # the series' remainder is then below the rounding
    times = b.ceil(b.log(norm / small) / math.log(2))
    times = b.clamp(b.constant(0, real), times, b.constant(64, real))
    times = b.reshape(b.select(b.is_nan(times), 0, times), [*times.shape, 1, 1])
    scale = b.power(b.constant(0.5, real, times.shape), times)
    a = a * scale.to(a.dtype)
    powers = [eye(b, a.dtype, a.shape), a]
    for _ in range(3):
        powers.append(matmul(b, powers[-1], a))
    total = None
    for row in reversed(_TERMS):
        group = None
        for c, p in zip(row, powers):
            group = p * c if group is None else group + p * c
        total = group if total is None else matmul(b, total, powers[4]) + group
    whole = times.to("i32")
    most = b.reduce_op("maximum", whole, range(whole.ndim))

    def body(i: Value, x: Value) -> list[Value]:
        again = b.select(b.splat(i, whole.shape) < whole, matmul(b, x, x), x)
        return [i + 1, again]

    return b.while_([b.constant(0, "i32"), total], lambda i, x: i < most, body)[1]
