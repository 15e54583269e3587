"""Operators that run by a round trip over the host, with the reason.

The dispatcher copies the arguments to the CPU, runs the CPU kernel and copies the results back; the
transfers are counted. A lowering of the same operator takes precedence over this table, and sends
single calls here by raising OnHost.
"""


class OnHost(NotImplementedError):
    """Raised by a lowering: this call is better run on the host, or not to be lowered at all."""


_SHAPE = "the shape of the result depends on the data"
_ASSERT = "the host raises the error, so it has to see the value"
_BITS = "it hashes the bits of doubles, which a TPU does not have"
_EDGES = "rare; the CPU kernel also computes the edges"
_FACTORIZE = "XLA has no portable operator for this factorization"

_OPERATORS: dict[str, str] = {
    _SHAPE: """
        bincount
    """,
    _BITS: "hash_tensor",
    _ASSERT: """
        _assert_async _assert_async.msg _functional_assert_async.msg
        _validate_compressed_sparse_indices
    """,
    _EDGES: """
        histogram.bin_ct histogram.bins_tensor _histogramdd_bin_edges _histogramdd_from_bin_cts
        _histogramdd_from_bin_tensors
    """,
    _FACTORIZE: """
        linalg_eig linalg_eigvals.out _linalg_eigvals linalg_lstsq
    """,
}

#: canonical operator name -> why it is not a program
REASONS: dict[str, str] = {
    f"aten::{name if '.' in name else name + '.default'}": reason
    for reason, names in _OPERATORS.items()
    for name in names.split()
}
