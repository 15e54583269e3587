"""Products of 64-bit integers in other words. A TPU has no unit for them, and its compiler, which
makes pairs of 32-bit integers of everything else, refuses `dot_general` and `convolution` on them.
And the halves of products that are wider than any type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu_core.stablehlo import types as T

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder, Value

#: the element types meant
INTEGERS = frozenset(("i64", "ui64"))


def halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """The lower and the upper half of the bits of an unsigned integer, as numbers of its type."""
    n = T.bits(x.dtype) // 2
    return x & ((1 << n) - 1), b.binary("shift_right_logical", *b.broadcast(x, n))


def high_product(b: Builder, x: Value, y: Value | int) -> Value:
    """The upper half of a product of two unsigned integers of one type, which is twice as wide."""
    n = T.bits(x.dtype) // 2
    x0, x1 = halves(b, x)
    y0, y1 = (y & ((1 << n) - 1), y >> n) if isinstance(y, int) else halves(b, y)
    _, low = halves(b, x0 * y0)
    mid, mid_carry = halves(b, x1 * y0 + low)
    _, other_carry = halves(b, x0 * y1 + mid)
    return x1 * y1 + mid_carry + other_carry


def dot_general(
    b: Builder,
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> Value:
    """`Builder.dot_general` as a product of broadcast operands and its sum, which compilers fuse:
    the product itself takes no memory.
    """
    free = [
        [i for i in range(v.ndim) if i not in c and i not in p]
        for v, c, p in zip((x, y), contract, batch)
    ]
    n, fx, fy = len(batch[0]), len(free[0]), len(free[1])
    shape = [x.shape[i] for i in (*batch[0], *free[0])] + [y.shape[i] for i in free[1]]
    shape += [x.shape[i] for i in contract[0]]
    summed = range(n + fx + fy, len(shape))
    places = ([*range(n + fx), *summed], [*range(n), *range(n + fx, n + fx + fy), *summed])
    factors = []
    for v, p, f, c, where in zip((x, y), batch, free, contract, places):
        v = b.transpose(v, [*p, *f, *c])
        factors.append(b.broadcast_in_dim(v, shape, where))
    return b.reduce_op("add", b.multiply(*factors), list(summed))


def convolution(
    b: Builder,
    x: Value,
    w: Value,
    dims: tuple[str, str, str],
    out_shape: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_groups: int,
    batch_groups: int,
) -> Value:
    """`Builder.convolution` as one product with the windows of `x` side by side."""
    spatial = [str(i) for i in range(len(strides))]
    lhs, rhs, out = dims
    x = b.transpose(x, [lhs.index(d) for d in ("b", "f", *spatial)])
    w = b.transpose(w, [rhs.index(d) for d in ("o", "i", *spatial)])
    groups = feature_groups * batch_groups  # at most one of them is not 1
    if batch_groups > 1:  # [g * N, C, ..] -> [N, g * C, ..]
        x = b.reshape(x, [groups, x.shape[0] // groups, *x.shape[1:]])
        x = b.transpose(x, [1, 0, *range(2, x.ndim)])
        x = b.reshape(x, [x.shape[0], groups * x.shape[2], *x.shape[3:]])
    low, high = ([0, 0, *(p[i] for p in padding)] for i in (0, 1))
    x = b.pad(x, 0, low, high, [0, 0, *(d - 1 for d in lhs_dilation)])
    for i, d in enumerate(spatial):  # [N, C, out0, k0, ..]
        size, kernel = out_shape[out.index(d)], w.shape[2 + i]
        x = _windows(b, x, 2 + 2 * i, size, kernel, strides[i], rhs_dilation[i])
    x = b.reshape(x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    w = b.reshape(w, [groups, w.shape[0] // groups, *w.shape[1:]])
    n = len(spatial)
    contract = ([2, *range(4, x.ndim, 2)], list(range(2, w.ndim)))
    y = b.dot_general(x, w, contract, ([1], [0]))  # [g, N, out0, .., O / g]
    y = b.transpose(y, [1, 0, 2 + n, *range(2, 2 + n)])
    y = b.reshape(y, [y.shape[0], y.shape[1] * y.shape[2], *y.shape[3:]])
    order = ["b", "f", *spatial]
    return b.transpose(y, [order.index(d) for d in out])


def _windows(
    b: Builder, x: Value, dim: int, size: int, kernel: int, stride: int, dilation: int
) -> Value:
    """`dim` as two dimensions [size, kernel]: positions of the window, and elements within it."""
    at, k = (b.iota("i32", [size, kernel], d) for d in (0, 1))
    at = at * stride + k * dilation
    shape = [*x.shape[:dim], size, kernel, *x.shape[dim + 1 :]]
    slices = [1 if d == dim else s for d, s in enumerate(x.shape)]
    offset = [d for d in range(len(shape)) if d not in (dim, dim + 1)]
    return b.gather(x, b.reshape(at, [size, kernel, 1]), shape, offset, [dim], [dim], slices, 2)
