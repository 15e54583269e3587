"""Embeddings, bags of embeddings, and reductions over segments, with their gradients."""

from __future__ import annotations

from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.indexing import (
    overwrite,
    put_along,
    put_rows,
    reduce_into,
    take,
    take_along,
)
from torchtpu_core.lowering.reduction import sum_of, vector_norm, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.lowering.sorting import search
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T

# ---- embedding -----------------------------------------------------------------------------------


@lowering("embedding")
def _embedding(b, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return take(b, weight, indices, 0)


def _frequency(b: Builder, indices: Value, n: int) -> Value:
    """How often each of `indices` occurs among them (f32)."""
    counts = b.constant(0, "f32", (n,))
    return take(b, put_rows(b, counts, indices, b.constant(1, "f32"), 0, b.add), indices, 0)


def _table_gradient(
    b: Builder, rows: Value, indices: Value, n: int, padding_idx: int, by_frequency: bool
) -> Value:
    """Gradient of a table of `n` rows from those of the rows taken at `indices` (1-d)."""
    rows = wide(rows)
    if by_frequency:
        rows = rows / b.unsqueeze(_frequency(b, indices, n).to(rows.dtype), 1)
    if padding_idx >= 0:
        indices = b.select(indices.eq(padding_idx), n, indices)  # past the end: dropped
    table = b.constant(0, rows.dtype, (n, *rows.shape[1:]))
    return put_rows(b, table, indices, rows, 0, b.add)


@lowering("embedding_dense_backward")
def _embedding_dense_backward(b, grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    rows = b.reshape(grad, (indices.numel, grad.shape[-1]))
    indices = b.reshape(indices, (indices.numel,))
    return _table_gradient(b, rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@lowering("embedding_renorm")
def _embedding_renorm(b, weight, indices, max_norm, norm_type):
    indices = b.reshape(indices, (indices.numel,))
    rows = take(b, weight, indices, 0)
    norm = vector_norm(wide(rows), float(norm_type), list(range(1, rows.ndim)), True)
    factor = b.select(norm > max_norm, max_norm / (norm + 1e-7), 1.0)
    rows = wide(rows)
    rows = (rows * factor.to(rows.dtype)).to(weight.dtype)
    return put_rows(b, weight, indices, rows, 0, overwrite)  # equal indices write equal rows


# ---- bags ----------------------------------------------------------------------------------------

_SUM, _MEAN, _MAX = range(3)


def _bag_of(b: Builder, indices: Value, offsets: Value) -> Value:
    """The bag of each index (i32): how many offsets are at or before its position, less one."""
    starts = b.constant(0, "i32", indices.shape)
    starts = put_rows(b, starts, offsets, b.constant(1, "i32"), 0, b.add)
    return cumulative_sum(b, starts, 0) - 1


def _real(b: Builder, indices: Value, padding_idx: int) -> Value:
    return b.compare(indices, b.constant(padding_idx, indices.dtype, indices.shape), "NE")


@lowering("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    b,
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=_SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    """(bags, bag of each index, size of each bag without padding, index of each maximum)."""
    n, width = offsets.numel, weight.shape[1]
    bag = _bag_of(b, indices, offsets)
    rows = wide(take(b, weight, indices, 0))
    if per_sample_weights is not None:
        rows = rows * b.unsqueeze(per_sample_weights.to(rows.dtype), 1)
    real = _real(b, indices, padding_idx)
    target = b.select(real, bag, n)  # padding is dropped
    size = put_rows(b, b.constant(0, "i32", (n,)), target, b.constant(1, "i32"), 0, b.add)
    last = n - 1 if include_last_offset else n
    if mode != _MAX:
        out = put_rows(b, b.constant(0, rows.dtype, (n, width)), target, rows, 0, b.add)
        if mode == _MEAN:
            divisor = b.maximum(size, b.constant(1, "i32", size.shape)).to(rows.dtype)
            out = out / b.unsqueeze(divisor, 1)
        best = b.constant(0, "i64", (0,))
        return b.slice_dim(out, 0, 0, last), bag, size, best
    out = put_rows(
        b, b.constant(T.lowest(rows.dtype), rows.dtype, (n, width)), target, rows, 0, b.maximum
    )
    out = b.slice_dim(out, 0, 0, last)
    full = b.unsqueeze(b.slice_dim(size, 0, 0, last), 1) > 0
    if not indices.numel or not out.numel:
        return b.select(full, out, 0), bag, size, b.constant(0, "i64", out.shape)
    # The maximum's index: the first position of the bag whose row reaches it.
    reached = b.compare(rows, take(b, out, target, 0), "EQ") | b.is_nan(rows)
    none = indices.numel - 1
    place = b.select(reached, b.iota("i32", rows.shape, 0), none)
    best = put_rows(b, b.constant(none, "i32", out.shape), target, place, 0, b.minimum)
    return b.select(full, out, 0), bag, size, b.select(full, take(b, indices, best, 0), 0)


def _bag_gradient(b, grad, indices, bag, size, best, n, by_frequency, mode, weights, padding_idx):
    grad = wide(grad)
    if mode == _MAX:
        full = b.unsqueeze(b.slice_dim(size, 0, 0, grad.shape[0]), 1) > 0
        table = b.constant(0, grad.dtype, (n, grad.shape[1]))
        return put_along(b, table, b.select(full, best, n), grad, 0, b.add)
    if mode == _MEAN:
        size = b.slice_dim(size, 0, 0, grad.shape[0])
        divisor = b.maximum(size, b.constant(1, size.dtype, size.shape)).to(grad.dtype)
        grad = grad / b.unsqueeze(divisor, 1)
    rows = take(b, grad, bag, 0)
    if weights is not None:
        rows = rows * b.unsqueeze(weights.to(rows.dtype), 1)
    return _table_gradient(b, rows, indices, n, padding_idx, by_frequency)


@lowering("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    b,
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    return _bag_gradient(b, grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                         scale_grad_by_freq, mode, per_sample_weights, padding_idx)  # fmt: skip


@lowering("_embedding_bag_backward")
def _embedding_bag_backward(
    b,
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    if sparse:
        raise NotImplementedError(
            "aten::_embedding_bag_backward: sparse gradients are not supported"
        )
    bag = _bag_of(b, indices, offsets)
    return _bag_gradient(b, grad, indices, bag, bag_size, maximum_indices, num_weights,
                         scale_grad_by_freq, mode, per_sample_weights, padding_idx)  # fmt: skip


@lowering("_embedding_bag_per_sample_weights_backward")
def _per_sample_weights_backward(
    b, grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1
):
    bag = _bag_of(b, indices, offsets)
    products = wide(take(b, grad, bag, 0)) * wide(take(b, weight, indices, 0))
    return b.select(_real(b, indices, padding_idx), sum_of(products, [1]), 0.0)


# ---- segments ------------------------------------------------------------------------------------


def _segments(
    b: Builder, x: Value, lengths: Value | None, offsets: Value | None, axis: int
) -> tuple[Value, Value]:
    """(segment of each element of `x`, lengths of the segments); past the end for one in none."""
    if offsets is not None:
        n = offsets.shape[-1] - 1
        ends = b.slice_dim(offsets, -1, 1, n + 1)
        lengths = ends - b.slice_dim(offsets, -1, 0, n)
    else:
        ends = cumulative_sum(b, lengths, lengths.ndim - 1)
    shape = x.shape[: axis + 1]
    where = search(b, ends, b.iota(ends.dtype, shape, axis), right=True)
    return b.broadcast_in_dim(where, x.shape, range(axis + 1)), lengths


def _over(x: Value, like: Value) -> Value:
    """Trailing dimensions added to broadcast `x` against `like`."""
    return x.b.broadcast_in_dim(x, like.shape, range(x.ndim))


@lowering("segment_reduce", runtime=("initial",))
def _segment_reduce(
    b, x, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    if indices is not None:
        raise NotImplementedError("aten::segment_reduce with indices is not lowered")
    acc = wide(x)
    segment, lengths = _segments(b, x, lengths, offsets, axis)
    shape = lengths.shape + x.shape[axis + 1 :]
    name = {"max": "amax", "min": "amin", "mean": "sum"}.get(reduce, reduce)
    start = {"sum": 0, "prod": 1, "amax": T.lowest(acc.dtype), "amin": T.highest(acc.dtype)}[name]
    out = b.lift(start if initial is None else initial, acc.dtype, shape)

    def put(base, values, body):
        return put_along(b, base, segment, values, axis, body)

    out = reduce_into(b, out, acc, put, name)
    if reduce == "mean":
        counts = _over(lengths, out)
        empty = counts.eq(0)
        mean = out / b.select(empty, 1, counts).to(out.dtype)
        out = b.select(empty, float("nan"), mean) if initial is None else mean
    return out


@lowering("_segment_reduce_backward", runtime=("initial",))
def _segment_reduce_backward(
    b, grad, output, x, reduce, *, lengths=None, offsets=None, axis=0, initial=None
):
    segment, lengths = _segments(b, x, lengths, offsets, axis)
    if not lengths.numel or not x.numel:
        return b.constant(0, x.dtype, x.shape)
    grad, acc, output = wide(grad), wide(x), wide(output)
    covered = segment < lengths.shape[-1]

    def put(values: Value, start: float, body) -> Value:
        return put_along(
            b, b.constant(start, values.dtype, output.shape), segment, values, axis, body
        )

    def spread(value: Value) -> Value:
        return take_along(b, value, segment, axis)

    if reduce == "sum":
        out = spread(grad)
    elif reduce == "mean":
        divisor = b.maximum(lengths, b.constant(1, lengths.dtype, lengths.shape))
        out = spread(grad / _over(divisor, output).to(grad.dtype))
    elif reduce in ("max", "min"):
        reached = b.compare(acc, spread(output), "EQ") | b.is_nan(acc)
        ties = put(reached.to(acc.dtype), 0, b.add)
        out = b.select(reached, spread(grad / ties), 0.0)
    else:  # prod: the product of the others, exact with zeros
        zero = acc.eq(0.0)
        zeros = spread(put(zero.to(acc.dtype), 0, b.add))
        first = b.constant(1, acc.dtype) if initial is None else b.lift(initial, acc.dtype)
        others = spread(put(b.select(zero, 1.0, acc), 1, b.multiply)) * first
        others = b.select(zero, others, others / b.select(zero, 1.0, acc))
        alone = (zeros - b.select(zero, 1.0, b.constant(0, acc.dtype, acc.shape))).eq(0.0)
        out = spread(grad) * b.select(alone, others, 0.0)
    return b.select(covered, out, 0.0)
