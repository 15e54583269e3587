"""Elementwise operators on the database's extended inputs: broadcasting, strides, scalars, other
dtypes beside, and extreme values. (Pairs of dtypes are tests/properties/test_promotion.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from tests.conformance import check
from tests.conformance.items import Item, applies, dtype_named, operators

# One dtype a kind; `make conformance` has the others.
_DTYPES = ("float32", "int64", "complex64")
_SAMPLES = 5


def _items() -> Iterator[Any]:
    for op in operators().values():
        if not isinstance(op, (BinaryUfuncInfo, UnaryUfuncInfo)):
            continue
        for dtype in _DTYPES:
            if applies(op, "forward", dtype_named(dtype)):
                # Polynomials are asked for degrees of millions there: recurrences of that length.
                variant = "forward" if "polynomial" in op.name else "reference"
                item = Item(op.full_name, variant, dtype, _SAMPLES)
                yield pytest.param(item, id=f"{op.full_name}-{dtype}")


@pytest.mark.parametrize("item", _items())
def test_extended_inputs(item: Item, device: str) -> None:
    result = check.run(item, device)
    assert result.status in ("pass", "skip"), f"{result.status}: {result.cause} {result.detail}"
