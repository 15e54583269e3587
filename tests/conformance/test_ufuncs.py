"""Elementwise operators on the database's extended inputs (broadcasting, strides, scalars, extreme
values), on every pair of dtypes, and in place where the dtype of the result does not fit.
"""

from __future__ import annotations

import pytest
from torch.testing._internal.common_methods_invocations import binary_ufuncs, unary_ufuncs

from tests.conformance import check
from tests.conformance.items import Item, applies, dtype_named

# One dtype a kind, with the number of extended inputs.
_COLUMNS = (("float32", 16), ("bfloat16", 6), ("complex64", 6), ("int64", 8), ("bool", 4))


@pytest.mark.parametrize("op", [*binary_ufuncs, *unary_ufuncs], ids=lambda op: op.full_name)
def test_extended_inputs(op, device: str) -> None:
    problems = []
    for dtype, count in _COLUMNS:
        if applies(op, "forward", dtype_named(dtype)):
            item = Item(op.full_name, "reference", dtype, count)
            result = check.run(item, device)
            if result.status not in ("pass", "skip"):
                problems.append(f"{item.name}: {result.status}: {result.cause} {result.detail}")
    assert not problems, "\n" + "\n".join(problems)
