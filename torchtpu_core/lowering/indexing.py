"""Gathers and scatters: advanced indexing, gather, scatter, index_*, take, put, masked moves.

Views by static bounds (slice, select) are in `shape.py`, embeddings in `embedding.py`.
Out-of-range indices are clamped when read and dropped when written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.dtypes import torch_dtype
from torchtpu_core.lowering.reduction import wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand, broadcast_shapes

# ---- helpers, also for the other families --------------------------------------------------------

Body = Callable[[Value, Value], Value]


def overwrite(old: Value, new: Value) -> Value:
    """The body of a scatter that stores."""
    return new


def as_index(b: Builder, index: Value, n: int, wrap: bool = False) -> Value:
    """`index` into a dimension of size `n`, in 32 bits where they suffice.

    With `wrap`, negative ones count from the end.
    """
    index = index.to("i32" if n < 1 << 31 else "i64")
    return b.select(index < 0, index + n, index) if wrap else index


def take(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """`x` at `index` along `dim`: the dimensions of `index` replace that one."""
    return advanced_index(b, x, [None] * (dim % x.ndim) + [index])


def put_rows(b: Builder, x: Value, index: Value, rows: Value, dim: int, body: Body) -> Value:
    """The inverse of `take`: `rows` combined into `x` at `index` along `dim`."""
    return advanced_put(b, x, [None] * (dim % x.ndim) + [index], rows, body)


def take_along(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """torch.gather for equal ranks."""
    dim = dim % x.ndim
    if index.numel == 0:
        return b.constant(0, x.dtype, index.shape)
    others = [d for d in range(x.ndim) if d != dim]
    x = b.slice(
        x, [0] * x.ndim, [x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim)]
    )
    index = as_index(b, index, x.shape[dim])
    return b.gather(x, index, index.shape, [], [dim], [dim], [1] * x.ndim, x.ndim, others, others)


def put_along(b: Builder, x: Value, index: Value, src: Value, dim: int, body: Body) -> Value:
    """torch.scatter for equal ranks, combining with `body`; `src` may be larger than `index`."""
    dim = dim % x.ndim
    if index.numel == 0 or x.numel == 0:
        return x
    src = b.slice(src, [0] * x.ndim, index.shape)
    others = [d for d in range(x.ndim) if d != dim]
    reach = [x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim)]
    part = b.slice(x, [0] * x.ndim, reach)
    index = as_index(b, index, x.shape[dim])
    part = b.scatter([part], index, [src], body, [], [dim], [dim], x.ndim, others, others)[0]
    if part.shape == x.shape:
        return part
    return b.dynamic_update_slice(x, part, [b.constant(0, "i32")] * x.ndim)


def _arrange(
    b: Builder, x: Value, indices: Sequence[Value | None]
) -> tuple[list[int], Value, list[int], list[int]]:
    """(indexed dims, index vectors along the last dim, result shape, result dims not indexed)."""
    where = [d for d, i in enumerate(indices) if i is not None]
    parts = [as_index(b, indices[d], x.shape[d], wrap=True) for d in where]
    shape = broadcast_shapes(*(p.shape for p in parts))
    dtype = "i64" if any(p.dtype == "i64" for p in parts) else "i32"
    parts = [b.expand(p.to(dtype), shape) for p in parts]
    # One index needs no vector dimension: `index_vector_dim` past the end stands for it.
    vectors = (
        parts[0] if len(parts) == 1 else b.concatenate([b.unsqueeze(p, -1) for p in parts], -1)
    )
    rest = [n for d, n in enumerate(x.shape) if d not in where]
    # Adjacent indices put their dimensions where they stood, separated ones in front.
    at = where[0] if where[-1] - where[0] == len(where) - 1 else 0
    result = rest[:at] + list(shape) + rest[at:]
    kept = [d for d in range(len(result)) if not at <= d < at + len(shape)]
    return where, vectors, result, kept


def advanced_index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[indices] with integer indices (None: the whole dimension)."""
    if all(i is None for i in indices):
        return x
    where, vectors, shape, kept = _arrange(b, x, indices)
    if math.prod(shape) == 0:
        return b.constant(0, x.dtype, shape)
    sizes = [1 if d in where else n for d, n in enumerate(x.shape)]
    vector_dim = vectors.ndim - (len(where) > 1)
    return b.gather(x, vectors, shape, kept, where, where, sizes, vector_dim)


def advanced_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, body: Body
) -> Value:
    """`values`, broadcast to the shape of x[indices], combined into `x` there."""
    if all(i is None for i in indices):
        return (
            b.expand(values, x.shape) if body is overwrite else body(x, b.expand(values, x.shape))
        )
    where, vectors, shape, kept = _arrange(b, x, indices)
    if math.prod(shape) == 0:
        return x
    values = b.expand(values, shape)
    vector_dim = vectors.ndim - (len(where) > 1)
    return b.scatter([x], vectors, [values], body, kept, where, where, vector_dim)[0]


def reduce_into(
    b: Builder,
    x: Value,
    src: Value,
    put: Callable[[Value, Value, Body], Value],
    reduce: str,
    include_self: bool = True,
) -> Value:
    """A scatter with a named reduction, in the accumulation dtype; `put(x, src, body)` scatters."""
    x = wide(x)
    src = src.to(x.dtype)
    name = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    body, identity = {
        "sum": (b.add, 0),
        "mean": (b.add, 0),
        "prod": (b.multiply, 1),
        "amax": (b.maximum, None if x.dtype in T.COMPLEX else T.lowest(x.dtype)),
        "amin": (b.minimum, None if x.dtype in T.COMPLEX else T.highest(x.dtype)),
    }[name]
    base = x if include_self else put(x, b.constant(identity, x.dtype, src.shape), overwrite)
    out = put(base, src, body)
    if name != "mean":
        return out
    counts = b.constant(int(include_self), "i32", x.shape)
    counts = put(counts, b.constant(1, "i32", src.shape), b.add)
    counts = b.maximum(counts, b.constant(1, "i32", x.shape)).to(x.dtype)
    if x.dtype not in T.SIGNED:
        return out / counts
    quotient, remainder = out / counts, b.remainder(out, counts)
    return b.select(remainder < 0, quotient - 1, quotient)


def _line(x: Value) -> Value:
    """A 0-d value as one element."""
    return x if x.ndim else x.b.reshape(x, (1,))


# ---- advanced indexing ---------------------------------------------------------------------------


def _is_mask(index: Value | None) -> bool:
    return index is not None and index.dtype in ("i1", "ui8")


_INDEX_DTYPES = ("i64", "i32", "i1", "ui8")


def _check_indices(x: Value, indices: Sequence[Value | None]) -> None:
    """IndexError for index tensors of a wrong dtype, and masks of another shape than what they
    mask (messages as in ATen/native/IndexingUtils.h).
    """
    dim = 0
    for index in indices:
        if index is None:
            dim += 1
            continue
        if index.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        n = index.ndim if _is_mask(index) else 1
        if _is_mask(index) and index.shape != x.shape[dim : dim + n]:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {dim} does not match the "
                f"shape of the indexed tensor {list(x.shape)} at index {dim}"
            )
        dim += n


@lowering("index.Tensor", "_unsafe_index.Tensor")
def _index(b, x, indices):
    _check_indices(x, indices)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not any(_is_mask(i) for _, i in given):
        return advanced_index(b, x, indices)
    if len(given) == 1 and given[0][1].ndim:
        from torchtpu_core.lowering.selection import select_rows

        return select_rows(b, x, given[0][1], given[0][0])
    raise NotImplementedError(
        "aten::index.Tensor with a mask beside other indices: the shape of the result depends on "
        "the data"
    )


def _put_mask(
    b: Builder, x: Value, dim: int, mask: Value, values: Value, accumulate: bool
) -> Value:
    """x[.., mask, ..] = values: a select, the k-th selected place taking the k-th value."""
    mask = mask.to("i1")
    end = dim + mask.ndim
    after = x.ndim - end
    counted = values.ndim - after - 1  # the dimension of `values` that counts selected places
    if counted >= 0:
        n, lead = values.shape[counted], values.shape[:counted]
        if n == 0:
            return x
        if n == 1:
            values = b.reshape(values, lead + (1,) * mask.ndim + values.shape[counted + 1 :])
        else:
            values = take(b, values, b.reshape(places(b, mask), mask.shape), counted)
    new = b.expand(values.to(x.dtype), x.shape)
    mask = b.broadcast_in_dim(mask, x.shape, range(dim, end))
    return b.select(mask, x + new if accumulate else new, x)


@lowering("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(b, x, indices, values, accumulate=False, unsafe=False):
    _check_indices(x, indices)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(_is_mask(i) for _, i in given):
        if len(given) == 1 and given[0][1].ndim:
            return _put_mask(b, x, *given[0], values, accumulate)
        raise NotImplementedError(
            "aten::index_put with a mask beside other indices: their number depends on the data"
        )
    if not accumulate:
        return advanced_put(b, x, indices, values, overwrite)
    x = wide(x)
    return advanced_put(b, x, indices, values.to(x.dtype), b.add)


# ---- gather and scatter --------------------------------------------------------------------------


@lowering("gather")
def _gather(b, x, dim, index, *, sparse_grad=False):
    return b.reshape(take_along(b, _line(x), _line(index), dim), index.shape)


def _scatter(
    b: Builder,
    x: Value,
    dim: int,
    index: Value,
    src: Operand,
    reduce: str | None,
    include_self: bool = True,
) -> Value:
    line, index = _line(x), _line(index)
    src = b.lift(src, x.dtype, index.shape) if not isinstance(src, Value) or src.ndim == 0 else src

    def put(base: Value, values: Value, body: Body) -> Value:
        return put_along(b, base, index, values, dim, body)

    if reduce is None:
        out = put(line, src.to(x.dtype), overwrite)
    else:
        out = reduce_into(b, line, src, put, reduce, include_self)
    return b.reshape(out, x.shape)


@lowering("scatter.src")
def _scatter_src(b, x, dim, index, src):
    return _scatter(b, x, dim, index, src, None)


@lowering("scatter.value", runtime=("value",))
def _scatter_value(b, x, dim, index, value):
    return _scatter(b, x, dim, index, value, None)


@lowering("scatter_add")
def _scatter_add(b, x, dim, index, src):
    return _scatter(b, x, dim, index, src, "sum")


@lowering("scatter.reduce")
def _scatter_src_reduce(b, x, dim, index, src, *, reduce):
    return _scatter(b, x, dim, index, src, reduce)


@lowering("scatter.value_reduce", runtime=("value",))
def _scatter_value_reduce(b, x, dim, index, value, *, reduce):
    return _scatter(b, x, dim, index, value, reduce)


@lowering("scatter_reduce.two")
def _scatter_reduce(b, x, dim, index, src, reduce, *, include_self=True):
    return _scatter(b, x, dim, index, src, reduce, include_self)


# ---- whole slices along a dimension --------------------------------------------------------------


@lowering("index_select")
def _index_select(b, x, dim, index):
    out = take(b, _line(x), _line(index), dim)
    return out if x.ndim else b.reshape(out, ())


def _rows(
    b: Builder, x: Value, dim: int, index: Value, source: Value | None, body: Callable[..., Value]
) -> Value:
    """body(x, put, rows) with x of at least one dimension, and rows of x's shape but for `dim`."""
    line, index = _line(x), _line(index)
    dim = dim % line.ndim
    shape = [index.numel if d == dim else n for d, n in enumerate(line.shape)]
    rows = b.reshape(source, shape) if source is not None else None

    def put(base: Value, values: Value, combine: Body) -> Value:
        return put_rows(b, base, index, values, dim, combine)

    return b.reshape(body(line, put, rows), x.shape)


@lowering("index_add", runtime=("alpha",))
def _index_add(b, x, dim, index, source, *, alpha=1):
    acc = wide(x)
    source = source.to(acc.dtype)
    if isinstance(alpha, Value) or alpha != 1:
        source = source * b.lift(alpha, acc.dtype)
    return _rows(b, acc, dim, index, source, lambda base, put, rows: put(base, rows, b.add))


@lowering("index_copy")
def _index_copy(b, x, dim, index, source):
    source = source.to(x.dtype)
    if index.numel == 1 and x.numel:  # a cache's next position: in place
        line = _line(x)
        dim = dim % line.ndim
        at = b.reshape(as_index(b, index, line.shape[dim], wrap=True), ())
        starts = [at if d == dim else b.constant(0, at.dtype) for d in range(line.ndim)]
        row = b.reshape(source, [1 if d == dim else n for d, n in enumerate(line.shape)])
        # The update moves to where it fits; out of range, what is there has to stay.
        inside = (at >= 0) & (at < line.shape[dim])
        if b.module.target != "cpu":  # in place; reading the row would take a kernel of its own
            (out,) = b.if_(
                inside,
                lambda: b.dynamic_update_slice(line, row, starts),
                lambda: line,
                [line.type],
            )
            return b.reshape(out, x.shape)
        row = b.select(b.splat(inside, row.shape), row, b.dynamic_slice(line, starts, row.shape))
        return b.reshape(b.dynamic_update_slice(line, row, starts), x.shape)
    return _rows(b, x, dim, index, source, lambda base, put, rows: put(base, rows, overwrite))


@lowering("index_fill.int_Scalar", "index_fill.int_Tensor", runtime=("value",))
def _index_fill(b, x, dim, index, value):
    line, index = _line(x), _line(index)
    dim = dim % line.ndim
    n = line.shape[dim]
    hit = b.constant(False, "i1", (n,))
    hit = put_rows(b, hit, index, b.constant(True, "i1"), 0, overwrite)
    hit = b.broadcast_in_dim(hit, line.shape, [dim])
    return b.reshape(b.select(hit, b.lift(value, x.dtype), line), x.shape)


@lowering("index_reduce")
def _index_reduce(b, x, dim, index, source, reduce, *, include_self=True):
    def body(base: Value, put: Callable[..., Value], rows: Value) -> Value:
        return reduce_into(b, base, rows, put, reduce, include_self)

    return _rows(b, x, dim, index, source, body)


# ---- flat positions ------------------------------------------------------------------------------


@lowering("take")
def _take(b, x, index):
    return take(b, b.reshape(x, (x.numel,)), index, 0)


@lowering("put")
def _put(b, x, index, source, accumulate=False):
    acc = wide(x) if accumulate else x
    flat = b.reshape(acc, (x.numel,))
    source = b.reshape(source.to(acc.dtype), index.shape)
    out = put_rows(b, flat, index, source, 0, b.add if accumulate else overwrite)
    return b.reshape(out, x.shape)


def places(b: Builder, mask: Value) -> Value:
    """How many true elements come before each one, in row-major order (i32, flat)."""
    return cumulative_sum(b, b.reshape(mask, (mask.numel,)).to("i32"), 0) - 1


@lowering("masked_scatter")
def _masked_scatter(b, x, mask, source):
    if mask.dtype != "i1":
        name = str(torch_dtype(mask.dtype)).removeprefix("torch.")
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask of {name}")
    x, mask = b.broadcast(x, mask.to("i1"))
    if x.numel == 0 or source.numel == 0:
        return x
    place = b.reshape(places(b, mask), x.shape)
    return b.select(mask, take(b, b.reshape(source, (source.numel,)), place, 0).to(x.dtype), x)


def compress(b: Builder, values: Value, mask: Value, n: int, fill: Operand) -> Value:
    """The first `n` elements of `values` under `mask` (both flat), `fill` where there are fewer."""
    place = b.select(mask, places(b, mask), n)  # a place past the end is dropped
    return put_rows(b, b.lift(fill, values.dtype, (n,)), place, values, 0, overwrite)


@lowering("masked_scatter_backward")
def _masked_scatter_backward(b, grad, mask, sizes):
    grad, mask = b.broadcast(grad, mask.to("i1"))
    n = math.prod(sizes)
    grad, mask = (b.reshape(v, (v.numel,)) for v in (grad, mask))
    return b.reshape(compress(b, grad, mask, n, 0), sizes)


@lowering("nonzero_static")
def _nonzero_static(b, x, *, size, fill_value=-1):
    """Row-major coordinates of the first `size` true elements."""
    if x.ndim == 0 or size == 0:
        return b.constant(0, "i64", (size, x.ndim))
    mask = b.reshape(x.to("i1"), (x.numel,))
    flat = compress(b, b.iota("i32", mask.shape), mask, size, -1)
    columns = coordinates(b, flat, x.shape)
    return b.concatenate([b.unsqueeze(b.select(flat < 0, fill_value, c), 1) for c in columns], 1)


def coordinates(b: Builder, flat: Value, shape: Sequence[int]) -> list[Value]:
    """The coordinates, one i32 vector a dimension, of flat i32 places in row-major order."""
    columns, stride = [], math.prod(shape)
    for n in shape:
        stride //= max(n, 1)
        columns.append(b.remainder(flat / max(stride, 1), b.constant(max(n, 1), "i32", flat.shape)))
    return columns
