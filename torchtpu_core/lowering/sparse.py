"""Conversions between the row indices of sparse matrices and their compressed form.

The kernels for sparse tensors themselves are in csrc/layouts; they are made of operators on dense
tensors, of which these two are the only ones that exist for them alone.
"""

from __future__ import annotations

from torchtpu_core.lowering.registry import lowering
from torchtpu_core.lowering.sorting import search
from torchtpu_core.stablehlo import Builder, Value


@lowering("_convert_indices_from_coo_to_csr")
def _coo_to_csr(b: Builder, rows: Value, size: int, *, out_int32: bool = False) -> Value:
    """(nnz,) sorted row indices -> (size + 1,): how many entries come before each row."""
    return search(b, rows, b.iota(rows.dtype, (size + 1,)), False)


@lowering("_convert_indices_from_csr_to_coo")
def _csr_to_coo(
    b: Builder, crow: Value, col: Value, *, out_int32: bool = False, transpose: bool = False
) -> Value:
    """(..., m + 1) and (..., nnz) -> (d, N): the row and column of each of the N entries, after its
    place in the batch; `transpose` swaps row and column."""
    m = crow.shape[-1] - 1
    batch = col.shape[:-1]
    ends = b.slice_dim(crow, -1, 1, m + 1)
    entry = b.iota(crow.dtype, col.shape, col.ndim - 1)
    rows = search(b, ends, entry, True) if m else b.constant(0, col.dtype, col.shape)
    places = [b.iota(col.dtype, col.shape, d) for d in range(len(batch))]
    pair = [col, rows] if transpose else [rows, col]
    n = 1
    for size in col.shape:
        n *= size
    lines = [b.reshape(x.to(col.dtype), (1, n)) for x in [*places, *pair]]
    return b.concatenate(lines, 0)
