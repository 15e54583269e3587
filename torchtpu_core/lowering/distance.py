"""Distances between all pairs of rows: cdist and pdist, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.loss import take_rows
from torchtpu_core.lowering.reduction import power, sum_of, vector_norm, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.value import broadcast_shapes

#: from how many rows on the Euclidean distance is a matrix product, as on CPU (compute_mode 0)
_MATMUL_ROWS = 25


def _batched(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Both with the common batch dimensions."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return tuple(b.expand(v, batch + v.shape[-2:]) for v in (x, y))


def _differences(b: Builder, x: Value, y: Value) -> Value:
    """(.., P, 1, M) - (.., 1, R, M)."""
    return b.unsqueeze(x, x.ndim - 1) - b.unsqueeze(y, y.ndim - 2)


def _euclidean(b: Builder, x: Value, y: Value) -> Value:
    """|x|^2 + |y|^2 - 2 x.y, never below zero."""
    n, batch = x.ndim, list(range(x.ndim - 2))
    with b.products("HIGHEST"):  # a small difference of large products
        products = b.dot_general(x, y, ([n - 1], [n - 1]), (batch, batch))
    squares = b.unsqueeze(sum_of(x * x, [n - 1]), n - 1) + b.unsqueeze(
        sum_of(y * y, [n - 1]), n - 2
    )
    squared = squares - 2.0 * products
    return b.sqrt(b.maximum(squared, b.constant(0, squared.dtype, squared.shape)))


@lowering("_euclidean_dist")
def _euclidean_dist(b, x, y):
    return _euclidean(b, *_batched(b, wide(x), wide(y)))


@lowering("_cdist_forward")
def _cdist_forward(b, x, y, p, compute_mode=None):
    x, y = _batched(b, wide(x), wide(y))
    many = x.shape[-2] > _MATMUL_ROWS or y.shape[-2] > _MATMUL_ROWS
    if p == 2 and (compute_mode == 1 or (many and compute_mode in (None, 0))):
        return _euclidean(b, x, y)
    gaps = _differences(b, x, y)
    return vector_norm(gaps, p, [gaps.ndim - 1])


def _slope(b: Builder, gaps: Value, dist: Value, p: float) -> Value:
    """The derivative of each distance by its differences, 0 where the distance is 0.

    `dist` broadcasts against `gaps`.
    """
    sign, size = b.sign(gaps), b.abs(gaps)
    if p == 0:
        return b.constant(0, gaps.dtype, gaps.shape)
    if p == 1:
        return sign
    if math.isinf(p):
        return b.select(b.compare(size, b.expand(dist, size.shape), "EQ"), sign, 0.0)
    out = gaps / dist if p == 2 else sign * power(size, p - 1) / power(dist, p - 1)
    undefined = b.expand(dist.eq(0.0), out.shape)
    if p < 1:
        undefined = undefined | gaps.eq(0.0)
    return b.select(undefined, 0.0, out)


@lowering("_cdist_backward")
def _cdist_backward(b, grad, x, y, p, dist):
    if 0 in (*x.shape, *y.shape):
        return b.constant(0, x.dtype, x.shape)
    grad, dist = wide(grad), wide(dist)
    x, y = _batched(b, wide(x), wide(y))
    gaps = _differences(b, x, y)
    slope = _slope(b, gaps, b.unsqueeze(dist, dist.ndim), p)
    return sum_of(slope * b.unsqueeze(grad, grad.ndim), [gaps.ndim - 2])


def _pairs(b: Builder, n: int) -> tuple[Value, Value]:
    """(rows, columns) i32 of the strict upper triangle of an n x n matrix, row by row."""
    count = n * (n - 1) // 2
    starts = np.concatenate([[0], np.cumsum(np.arange(n - 1, 1, -1))]).astype(np.int32)
    # row of pair k = how many rows begin at or before k, less one
    marks = b.scatter(
        [b.constant(0, "i32", (count,))],
        b.array(starts[1:, None]),
        [b.constant(1, "i32", (len(starts) - 1,))],
        b.add,
        [],
        [0],
        [0],
        1,
        unique=True,
        sorted_=True,
    )[0]
    rows = cumulative_sum(b, marks, 0)
    columns = b.iota("i32", (count,)) - take_rows(b, b.array(starts), rows) + rows + 1
    return rows, columns


@lowering("_pdist_forward")
def _pdist_forward(b, x, p=2.0):
    x = wide(x)
    n = x.shape[0]
    if n < 2:
        return b.constant(0, x.dtype, (0,))
    gaps = _differences(b, x, x)
    rows, columns = _pairs(b, n)
    flat = b.reshape(vector_norm(gaps, p, [2]), (n * n,))
    return take_rows(b, flat, rows * n + columns)


@lowering("_pdist_backward")
def _pdist_backward(b, grad, x, p, dist):
    grad, x = wide(grad), wide(x)
    n = x.shape[0]
    if n < 2 or x.numel == 0:
        return b.constant(0, x.dtype, x.shape)
    rows, columns = _pairs(b, n)
    index = b.concatenate([b.unsqueeze(rows, 1), b.unsqueeze(columns, 1)], 1)
    zero = b.constant(0, x.dtype, (n, n))
    upper = b.scatter(
        [zero], index, [grad], lambda _, g: g, [], [0, 1], [0, 1], 1, unique=True, sorted_=True
    )[0]
    both = b.unsqueeze(upper + b.transpose(upper, (1, 0)), 2)
    gaps = _differences(b, x, x)
    return sum_of(_slope(b, gaps, vector_norm(gaps, p, [2], True), p) * both, [1])
