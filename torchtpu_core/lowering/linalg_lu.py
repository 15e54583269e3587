"""LU with partial pivoting as a loop over columns, and what rests on it: solve, inverse,
determinants.

Pivots are LAPACK's: row i was exchanged with row pivots[i] - 1. All batches advance together; a
step is one masked rank-1 update.
"""

from __future__ import annotations

from torchtpu_core.lowering.linalg import crop, diagonal, eye, solve_triangular, triangle
from torchtpu_core.lowering.matmul import adjoint, transpose
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import broadcast_shapes


def factor(b: Builder, a: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    """(packed LU, pivots [.., min(m, n)], info [..])."""
    m, n = a.shape[-2:]
    k, lead = min(m, n), a.shape[:-2]
    pivots = b.expand(b.iota("i32", [k]) + 1, [*lead, k])
    info = b.constant(0, "i32", lead)
    if a.numel == 0:
        return a, pivots, info
    row_ids = b.broadcast_in_dim(b.iota("i32", [m]), [*lead, m, 1], [len(lead)])
    col_ids = b.expand(b.iota("i32", [n]), [*lead, 1, n])
    at = b.iota("i32", pivots.shape, len(lead))
    zero = b.constant(0, "i32")

    def body(i: Value, lu: Value, pivots: Value, info: Value) -> list[Value]:
        here = b.splat(i, row_ids.shape)
        column = b.dynamic_slice(lu, [zero] * (len(lead) + 1) + [i], [*lead, m, 1])
        row = b.dynamic_slice(lu, [zero] * len(lead) + [i, zero], [*lead, 1, n])
        if pivot:
            p = _argmax(b, b.select(row_ids >= here, _size(b, column), -1), row_ids)  # [.., 1, 1]
            chosen = row_ids.eq(b.expand(p, row_ids.shape))
            other = b.reduce_op(
                "add", b.select(b.expand(chosen, lu.shape), lu, 0), [lu.ndim - 2], True
            )
            lu = b.select(b.expand(chosen, lu.shape), b.expand(row, lu.shape), lu)
            lu = b.select(b.expand(row_ids.eq(here), lu.shape), b.expand(other, lu.shape), lu)
            column = b.dynamic_slice(lu, [zero] * (len(lead) + 1) + [i], [*lead, m, 1])
            row = other
            flat = b.expand(b.reshape(p, [*lead, 1]), pivots.shape)
            pivots = b.select(at.eq(b.splat(i, at.shape)), flat + 1, pivots)
        value = b.dynamic_slice(row, [zero] * (len(lead) + 1) + [i], [*lead, 1, 1])
        singular = value.eq(0)
        below = row_ids > here
        multiplier = b.select(
            below & ~b.expand(singular, below.shape), column / b.select(singular, 1, value), 0
        )
        kept = b.select(below & b.expand(singular, below.shape), column, multiplier)
        right = col_ids > b.splat(i, col_ids.shape)
        update = b.expand(multiplier, lu.shape) * b.expand(b.select(right, row, 0), lu.shape)
        lu = lu - update
        mine = b.expand(col_ids.eq(b.splat(i, col_ids.shape)), lu.shape) & b.expand(below, lu.shape)
        lu = b.select(mine, b.expand(kept, lu.shape), lu)
        fresh = b.reshape(singular, lead) & info.eq(0)
        info = b.select(fresh, b.splat(i + 1, lead), info)
        return [i + 1, lu, pivots, info]

    state = [zero, a, pivots, info]
    return tuple(b.while_(state, lambda i, *_: i < k, body)[1:])


def _size(b: Builder, x: Value) -> Value:
    """What LAPACK compares pivots by: |re| + |im|."""
    return b.abs(b.real(x)) + b.abs(b.imag(x)) if x.dtype in T.COMPLEX else b.abs(x)


def _argmax(b: Builder, x: Value, ids: Value) -> Value:
    """The first position of the largest of `x` [.., m, 1] (or of NaN), as [.., 1, 1]."""
    x = b.select(b.is_nan(x), float("inf"), x)
    top = b.reduce_op("maximum", x, [x.ndim - 2], True)
    where = b.select(x.eq(b.expand(top, x.shape)), ids, 2**31 - 1)
    return b.reduce_op("minimum", where, [x.ndim - 2], True)


def permutation(b: Builder, pivots: Value, m: int) -> Value:
    """[.., m]: the row of the original matrix that ends up in each place."""
    lead, k = pivots.shape[:-1], pivots.shape[-1]
    ids = b.iota("i32", [*lead, m], len(lead))
    if k == 0 or ids.numel == 0:
        return ids
    zero = b.constant(0, "i32")
    pivots = pivots.to("i32")

    def body(i: Value, perm: Value) -> list[Value]:
        p = b.dynamic_slice(pivots, [zero] * len(lead) + [i], [*lead, 1]) - 1
        theirs = ids.eq(b.expand(p, ids.shape))
        mine = ids.eq(b.splat(i, ids.shape))
        value = b.reduce_op("add", b.select(theirs, perm, 0), [len(lead)], True)
        own = b.dynamic_slice(perm, [zero] * len(lead) + [i], [*lead, 1])
        perm = b.select(theirs, b.expand(own, ids.shape), perm)
        return [i + 1, b.select(mine, b.expand(value, ids.shape), perm)]

    return b.while_([zero, ids], lambda i, _: i < k, body)[1]


def _rows(b: Builder, x: Value, perm: Value) -> Value:
    """x[.., perm, :]."""
    lead, m, n = x.shape[:-2], x.shape[-2], x.shape[-1]
    k = len(lead)
    perm = b.expand(perm, [*lead, m])
    return b.gather(
        x,
        b.unsqueeze(perm, k + 1),
        x.shape,
        [k + 1],
        [k],
        [k],
        [1] * k + [1, n],
        k + 1,
        range(k),
        range(k),
    )


def _inverse_permutation(b: Builder, perm: Value) -> Value:
    ids = b.iota("i32", perm.shape, perm.ndim - 1)
    return b.sort([perm, ids], perm.ndim - 1, lambda x, y, *_: x < y)[1]


def solve(
    b: Builder, lu: Value, pivots: Value, y: Value, left: bool = True, adj: bool = False
) -> Value:
    """x with op(A) x = y, or x op(A) = y, from A's packed LU."""
    if not left:
        return adjoint(b, solve(b, lu, pivots, adjoint(b, y), True, not adj))
    lead = broadcast_shapes(lu.shape[:-2], y.shape[:-2])
    lu, y = b.expand(lu, [*lead, *lu.shape[-2:]]), b.expand(y, [*lead, *y.shape[-2:]])
    if y.numel == 0:
        return y
    perm = b.expand(permutation(b, pivots, lu.shape[-1]), [*lead, lu.shape[-1]])
    if not adj:
        y = solve_triangular(b, lu, _rows(b, y, perm), False, unit=True)
        return solve_triangular(b, lu, y, True)
    y = solve_triangular(b, lu, y, True, how="ADJOINT")
    y = solve_triangular(b, lu, y, False, unit=True, how="ADJOINT")
    return _rows(b, y, _inverse_permutation(b, perm))


@lowering("linalg_lu_factor_ex")
def _lu_factor_ex(b, a, *, pivot=True, check_errors=False):
    return factor(b, a, pivot)


def _unpack(b: Builder, lu: Value) -> tuple[Value, Value]:
    m, n = lu.shape[-2:]
    k = min(m, n)
    low = triangle(b, crop(b, lu, m, k), False, -1)
    return low + eye(b, lu.dtype, low.shape), triangle(b, crop(b, lu, k, n), True)


def _permutation_matrix(b: Builder, pivots: Value, m: int, dtype: str) -> Value:
    perm = permutation(b, pivots, m)
    shape = [*perm.shape[:-1], m, m]
    rows = b.iota("i32", shape, len(shape) - 2)
    return rows.eq(b.expand(b.unsqueeze(perm, perm.ndim - 1), shape)).to(dtype)


@lowering("linalg_lu")
def _linalg_lu(b, a, *, pivot=True):
    lu, pivots, _ = factor(b, a, pivot)
    p = (
        _permutation_matrix(b, pivots, a.shape[-2], a.dtype)
        if pivot
        else b.constant(0, a.dtype, [0])
    )
    return p, *_unpack(b, lu)


@lowering("lu_unpack")
def _lu_unpack(b, lu, pivots, unpack_data=True, unpack_pivots=True):
    none = b.constant(0, lu.dtype, [0])
    low, up = _unpack(b, lu) if unpack_data else (none, none)
    return (
        _permutation_matrix(b, pivots, lu.shape[-2], lu.dtype) if unpack_pivots else none,
        low,
        up,
    )


@lowering("linalg_lu_solve")
def _lu_solve(b, lu, pivots, y, *, left=True, adjoint=False):
    return solve(b, lu, pivots, y, left, adjoint)


@lowering("_linalg_solve_ex")
def _solve_ex(b, a, y, *, left=True, check_errors=False):
    lu, pivots, info = factor(b, a)
    vector = y.ndim == 1 or (y.ndim + 1 == a.ndim and y.shape == a.shape[:-1])
    out = solve(b, lu, pivots, b.unsqueeze(y, y.ndim) if vector else y, left)
    return b.reshape(out, out.shape[:-1]) if vector else out, lu, pivots, info


@lowering("linalg_inv_ex")
def _inv_ex(b, a, *, check_errors=False):
    lu, pivots, info = factor(b, a)
    return solve(b, lu, pivots, eye(b, a.dtype, a.shape)), info


def _swaps_sign(b: Builder, pivots: Value, dtype: str) -> Value:
    """The determinant of the permutation."""
    k = pivots.shape[-1]
    moved = pivots.ne(b.expand(b.iota("i32", [k]) + 1, pivots.shape)).to("i32")
    odd = b.reduce_op("add", moved, [pivots.ndim - 1]) & 1
    return (1 - 2 * odd).to(dtype)


def _factor_for_det(b: Builder, a: Value) -> tuple[Value, Value]:
    """PyTorch factors the transpose of a real contiguous matrix: its gradients rely on that."""
    lu, pivots, _ = factor(b, transpose(b, a) if a.row_major and a.dtype not in T.COMPLEX else a)
    return lu, pivots


@lowering("_linalg_det")
def _linalg_det(b, a):
    lu, pivots = _factor_for_det(b, a)
    d = diagonal(b, lu)
    det = b.reduce_op("multiply", d, [d.ndim - 1]) * _swaps_sign(b, pivots, a.dtype)
    return det, lu, pivots


@lowering("_linalg_slogdet")
def _linalg_slogdet(b, a):
    lu, pivots = _factor_for_det(b, a)
    d = diagonal(b, lu)
    size = b.abs(d)
    if a.dtype in T.COMPLEX:
        unit = d / b.select(size.eq(0), 1, size).to(d.dtype)
        unit = b.select(size.eq(0), 0, unit)
    else:
        unit = b.sign(d)
    sign = b.reduce_op("multiply", unit, [d.ndim - 1]) * _swaps_sign(b, pivots, a.dtype)
    return sign, b.reduce_op("add", b.log(size), [d.ndim - 1]), lu, pivots
