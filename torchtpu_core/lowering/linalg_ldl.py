"""Symmetric indefinite systems: Bunch and Kaufman's diagonal pivoting, A = L D L^T (or L^H).

In LAPACK's packing, D's blocks and L's columns lie in the lower triangle; a pivot p > 0 exchanged
its row with row p, two equal negative ones mark a block of two whose second row was exchanged with
row -p.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torchtpu_core.lowering.linalg import diagonal, triangle
from torchtpu_core.lowering.matmul import adjoint, conj, transpose
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import broadcast_shapes

#: the ratio of pivot candidates that bounds the growth of elements
_ALPHA = (1 + math.sqrt(17)) / 8


def _size(b: Builder, x: Value) -> Value:
    """What LAPACK compares elements by: |re| + |im|."""
    return b.abs(b.real(x)) + b.abs(b.imag(x)) if x.dtype in T.COMPLEX else b.abs(x)


def _flat(b: Builder, x: Value) -> Value:
    """All batch dimensions as one."""
    return b.reshape(x, (math.prod(x.shape[:-2]), *x.shape[-2:]))


def _real(b: Builder, x: Value) -> Value:
    """Without its imaginary part, in the same type."""
    return b.complex(b.real(x), b.constant(0, T.real_of(x.dtype), x.shape))


def _pick(b: Builder, x: Value, where: Value, dim: int) -> Value:
    """The row (dim -2) or column (dim -1) of `x` that the mask names."""
    return b.reduce_op("add", b.select(where, x, 0), [dim], keepdim=True)


def _exchange(b: Builder, x: Value, index: Value, p: Value, q: Value, dim: int) -> Value:
    """Rows or columns p and q (batch, 1, 1) exchanged; `index` counts along `dim`."""
    at_p, at_q = index.eq(p), index.eq(q)
    row_p, row_q = _pick(b, x, at_p, dim), _pick(b, x, at_q, dim)
    return b.select(at_p, row_q, b.select(at_q, row_p, x))


def _peak(b: Builder, x: Value, keep: Value, index: Value) -> tuple[Value, Value]:
    """(largest size among `keep`, its first index) along the rows, (batch, 1, 1)."""
    size = b.select(keep, _size(b, x), -1)
    top = b.reduce_op("maximum", size, [1], keepdim=True)
    at = b.reduce_op("minimum", b.select(size.eq(top), index, x.shape[1]), [1], keepdim=True)
    return b.select(top < 0, 0, top), at


def factor(b: Builder, a: Value, herm: bool) -> tuple[Value, Value, Value]:
    """(packed L and D, pivots, info: the first singular block of D, 1-based, or 0)."""
    batch, n = a.shape[:-2], a.shape[-1]
    pivots, info = b.constant(0, "i32", a.shape[:-1]), b.constant(0, "i32", batch)
    if not a.numel:
        return a, pivots, info
    a_flat = _flat(b, a)
    size = a_flat.shape[0]
    i, j = (b.iota("i32", a_flat.shape, d) for d in (1, 2))
    strict = triangle(b, a_flat, False, -1)
    middle = b.select(i.eq(j), _real(b, a_flat) if herm else a_flat, 0)
    x = middle + strict + (adjoint(b, strict) if herm else transpose(b, strict))
    row = b.iota("i32", (size, n, 1), 1)

    def column(x: Value, at: Value) -> Value:
        return _pick(b, x, j.eq(at), -1)

    def element(column: Value, at: Value) -> Value:
        return _pick(b, column, row.eq(at), -2)

    # Matrices advance by their own steps: k (batch, 1, 1).
    def body(k: Value, x: Value, pivots: Value, info: Value) -> list[Value]:
        first = column(x, k)
        here = _size(b, element(first, k))
        colmax, imax = _peak(b, first, row > k, row)
        imax = b.select(k.eq(n - 1), k, imax)
        second = column(x, imax)
        rowmax, _ = _peak(b, second, (row >= k) & row.ne(imax), row)
        there = _size(b, element(second, imax))
        singular = b.maximum(here, colmax).eq(0) | b.is_nan(here)
        stay = singular | (here >= colmax * _ALPHA)
        stay = stay | (here * rowmax >= colmax * colmax * _ALPHA)
        two = ~stay & ~(there >= rowmax * _ALPHA)
        p = b.select(stay, k, imax)
        q = b.select(two, k + 1, k)
        moved = _exchange(b, x, i, p, q, -2)
        x = b.select(j >= k, moved, x)
        moved = _exchange(b, x, j, p, q, -1)
        x = b.select(i >= k, moved, x)
        x = _eliminated(b, x, i, j, k, two, column, element, herm)
        entry = b.select(two, -(p + 1), p + 1)
        mine = row.eq(k) | (two & row.eq(k + 1))
        pivots = b.select(mine, entry, pivots)
        info = b.select(info.eq(0) & singular & (k < n), k + 1, info)
        return [k + b.select(two, b.constant(2, "i32", two.shape), 1), x, pivots, info]

    def unfinished(k: Value, *_: Value) -> Value:
        return b.reduce_op("or", k < n, range(3))

    start = [b.constant(0, "i32", (size, 1, 1)), x]
    start += [b.constant(0, "i32", (size, n, 1)), b.constant(0, "i32", (size, 1, 1))]
    _, x, pivots, info = b.while_(start, unfinished, body)
    x = b.reshape(triangle(b, x, False), a.shape)
    return x, b.reshape(pivots, a.shape[:-1]), b.reshape(info, batch)


def _eliminated(
    b: Builder,
    x: Value,
    i: Value,
    j: Value,
    k: Value,
    two: Value,
    column: Callable[[Value, Value], Value],
    element: Callable[[Value, Value], Value],
    herm: bool,
) -> Value:
    """One block of D taken out: its columns become those of L, the rest the Schur complement."""
    at1 = k + 1
    x0, x1 = column(x, k), column(x, at1)
    d0, d1, e = element(x0, k), element(x1, at1), element(x0, at1)
    tail = b.select(two, at1, k)  # the last row of the block
    # one by one
    l0 = x0 / b.select(d0.eq(0), 1, d0)
    # two by two, scaled by the off-diagonal element: e is no smaller than the diagonal
    f = conj(b, e) if herm else e
    e, f = b.select(two, e, 1), b.select(two, f, 1)
    det = (d0 / e) * (d1 / f) - 1
    det = b.select(two, det, 1)
    m0 = (x0 * (d1 / f) - x1 * (e / f)) / e / det
    m1 = (x1 * (d0 / e) - x0 * (f / e)) / f / det
    l0, l1 = b.select(two, m0, l0), b.select(two, m1, 0)
    right0, right1 = (transpose(b, conj(b, v) if herm else v) for v in (x0, x1))
    complement = x - l0 * right0 - b.select(two, l1 * right1, 0)
    below = i > tail
    x = b.select(below & (j > tail), complement, x)
    x = b.select(below & j.eq(k), b.expand(l0, x.shape), x)
    return b.select(below & two & j.eq(at1), b.expand(l1, x.shape), x)


@lowering("linalg_ldl_factor_ex")
def _linalg_ldl_factor_ex(b: Builder, a: Value, *, hermitian=False, check_errors=False):
    return factor(b, a, hermitian and a.dtype in T.COMPLEX)


@lowering("linalg_ldl_solve")
def _linalg_ldl_solve(b: Builder, ld: Value, pivots: Value, y: Value, *, hermitian=False):
    pivots = b.unsqueeze(pivots, -1)
    batch = broadcast_shapes(*(v.shape[:-2] for v in (ld, y)))
    ld, y, pivots = (b.expand(v, (*batch, *v.shape[-2:])) for v in (ld, y, pivots))
    if not y.numel:
        return y
    shape, n = y.shape, y.shape[-2]
    ld, y, pivots = (_flat(b, v) for v in (ld, y, pivots))
    size, width = y.shape[0], y.shape[-1]
    herm = hermitian and ld.dtype in T.COMPLEX
    row = b.iota("i32", (size, n, 1), 1)
    zero = b.constant(0, "i32")
    paired = pivots < 0
    # Blocks of two count two negative pivots each: the first of a block has an odd count up to it.
    starts = paired & _odd_count(b, paired)
    lower = triangle(b, ld, False, -1)

    def step(at: Value, y: Value) -> tuple[Value, Value, Value]:
        """(column of L below its block, row to exchange, its partner)."""
        start = b.dynamic_slice(starts, [zero, at, zero], [size, 1, 1])
        pivot = b.dynamic_slice(pivots, [zero, at, zero], [size, 1, 1])
        column = b.dynamic_slice(lower, [zero, zero, at], [size, n, 1])
        tail = b.select(start, at + 1, at)
        partner = b.select(pivot > 0, pivot - 1, b.select(start, -pivot - 1, tail))
        return b.select(row > tail, column, 0), tail, partner

    def forward(at: Value, y: Value) -> list[Value]:
        column, tail, partner = step(at, y)
        y = _exchange(b, y, row, tail, partner, -2)
        mine = b.dynamic_slice(y, [zero, at, zero], [size, 1, width])
        return [at + 1, y - column * mine]

    def backward(at: Value, y: Value) -> list[Value]:
        column, tail, partner = step(at, y)
        column = conj(b, column) if herm else column
        change = b.reduce_op("add", column * y, [-2], keepdim=True)
        y = b.select(row.eq(at), y - change, y)
        return [at - 1, _exchange(b, y, row, tail, partner, -2)]

    y = b.while_([zero, y], lambda at, _: at < n, forward)[1]
    y = _block_solve(b, ld, y, starts, herm)
    y = b.while_([b.constant(n - 1, "i32"), y], lambda at, _: at >= 0, backward)[1]
    return b.reshape(y, shape)


def _odd_count(b: Builder, mask: Value) -> Value:
    """Whether an odd number of elements up to each one is set, along the rows (batch, n, 1)."""
    size, n, _ = mask.shape
    ones = b.convert(b.reshape(mask, (size, 1, n)), "i32")
    upto = triangle(b, b.expand(ones, (size, n, n)), False)
    return (b.reduce_op("add", upto, [-1], keepdim=True) & 1).eq(1)


def _block_solve(b: Builder, ld: Value, y: Value, starts: Value, herm: bool) -> Value:
    """D^-1 y, D's blocks beginning at `starts` being of two rows."""

    def shifted(v: Value, by: int) -> Value:
        """v[i + by], zeros outside."""
        return b.pad(v, 0, (0, -by, 0), (0, by, 0))

    d = b.unsqueeze(diagonal(b, ld), -1)
    sub = b.slice(b.pad(ld, 0, (0, -1, 0), (0, 1, 0)), (0, 0, 0), ld.shape)
    e = b.select(starts, b.unsqueeze(diagonal(b, sub), -1), 1)
    f = conj(b, e) if herm else e
    if herm:
        d = _real(b, d)
    det = (d / e) * (shifted(d, 1) / f) - 1
    det = b.select(starts, det, 1)
    up = (y * (shifted(d, 1) / e) - shifted(y, 1) * (f / e)) / f / det
    down = (shifted(y, 1) * (d / f) - y * (e / f)) / e / det
    ends = b.pad(starts, False, (0, 1, 0), (0, -1, 0))
    alone = y / b.select(starts | ends, 1, d)
    return b.select(starts, up, b.select(ends, shifted(down, -1), alone))
