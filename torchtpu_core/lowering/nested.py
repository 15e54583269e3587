"""Between jagged values, rows of many lengths one after the other, and padded batches.

Nested tensors themselves are PyTorch's, in Python: a jagged one is its values and offsets, and most
operators on it are operators on the values.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.indexing import take
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.lowering.sorting import search
from torchtpu_core.stablehlo import Builder, Value


def _only(offsets: Sequence[Value], op: str) -> Value:
    if len(offsets) != 1:
        raise NotImplementedError(
            f"aten::{op}: only one jagged dimension is supported, got {len(offsets)} offsets"
        )
    return offsets[0]


@lowering("_jagged_to_padded_dense_forward", runtime=("padding_value",))
def _to_padded(b, values, offsets, max_lengths, padding_value=0.0):
    """(N, ...) and offsets (B + 1,) -> (B, L, ...): row i is values[offsets[i]:offsets[i + 1]], cut
    or padded to L = max_lengths[0]."""
    offset = _only(offsets, "_jagged_to_padded_dense_forward")
    n, length = offset.shape[0] - 1, max_lengths[0]
    shape = (n, length, *values.shape[1:])
    padding = b.lift(padding_value, values.dtype, shape)
    if not values.numel or not n or not length:
        return padding
    start, end = (
        b.broadcast_in_dim(b.slice_dim(offset, 0, i, i + n), (n, length), (0,)) for i in (0, 1)
    )
    at = start + b.iota(offset.dtype, (n, length), 1)
    inside = b.broadcast_in_dim(at < end, shape, (0, 1))
    at = b.minimum(at, b.constant(values.shape[0] - 1, at.dtype, at.shape))
    return b.select(inside, take(b, values, at, 0), padding)


@lowering("_padded_dense_to_jagged_forward")
def _to_jagged(b: Builder, dense: Value, offsets: Sequence[Value], total_L: int | None = None):
    """(B, L, ...) and offsets (B + 1,) -> (total_L, ...), the inverse; zero beyond L."""
    offset = _only(offsets, "_padded_dense_to_jagged_forward")
    if total_L is None:
        raise NotImplementedError(
            "aten::_padded_dense_to_jagged_forward: the size of the result depends on the data; "
            "pass total_L"
        )
    n, length = dense.shape[:2]
    shape = (total_L, *dense.shape[2:])
    if not dense.numel or not total_L:
        return b.constant(0, dense.dtype, shape)
    entry = b.iota(offset.dtype, (total_L,))
    row = search(b, b.slice_dim(offset, 0, 1, n + 1), entry, True).to(offset.dtype)
    row = b.minimum(row, b.constant(n - 1, row.dtype, row.shape))
    column = entry - take(b, offset, row, 0)
    inside = b.broadcast_in_dim(column < length, shape, (0,))
    flat = b.reshape(dense, (n * length, *dense.shape[2:]))
    column = b.minimum(column, b.constant(length - 1, column.dtype, column.shape))
    return b.select(inside, take(b, flat, row * length + column, 0), 0)
