"""Reductions as PyTorch's test_reductions asks of every one in the database: which dimensions, kept
or not, empty inputs, strides, promotion of dtypes, NaN and infinities, and refused dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import reduction_ops

from tests.conformance.outcome import outcome_differs
from tests.conformance.rules import tolerance_of
from tests.conformance.samples import seed_all

_Calls = Iterable[tuple[torch.Tensor, dict[str, Any]]]
_each_op = pytest.mark.parametrize("op", reduction_ops, ids=lambda op: op.full_name)


def _drawn(op: Any, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    # Few values near zero: products and norms of them say little.
    low, high = (None, None) if dtype == torch.bool else (1, 5)
    return make_tensor(shape, device="cpu", dtype=dtype, low=low, high=high)


def _default(op: Any) -> torch.dtype:
    return torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.bool


def _run(op: Any, device: str, calls: _Calls) -> None:
    problems = []
    for t, options in calls:
        # The database's own arguments beside dim and keepdim, the first of its choices.
        args, kwargs = next(iter(op.generate_args_kwargs(t, **options)))
        call = functools.partial(_call, op, args, {**kwargs, **options})
        found = outcome_differs(call, [t], device, tolerance_of(op))
        if found is not None:
            problems.append(f"{options}: {found}")
    assert not problems, "\n" + "\n".join(problems)


def _call(op: Any, args: Any, kwargs: dict[str, Any], t: torch.Tensor) -> Any:
    return op(t, *args, **kwargs)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_all(0)


def _dims(op: Any) -> Iterator[dict[str, Any]]:
    yield {}
    for dim in (0, -1, 1):
        yield {"dim": dim}
        yield {"dim": dim, "keepdim": True}
    if op.supports_multiple_dims:
        for dims in ([], [0, 2], (0, 1, 2), (-1, 0)):
            yield {"dim": dims}
            yield {"dim": dims, "keepdim": True}


@_each_op
def test_dimensions(op: Any, device: str) -> None:
    t = _drawn(op, (3, 4, 2), _default(op))
    _run(op, device, ((t, options) for options in _dims(op)))


@_each_op
def test_refused_dimensions(op: Any, device: str) -> None:
    """Out of range, twice the same, and on a 0-d tensor."""
    t, scalar = _drawn(op, (3, 4), _default(op)), _drawn(op, (), _default(op))
    refused = [{"dim": 2}, {"dim": -3}]
    if op.supports_multiple_dims:
        refused += [{"dim": (0, 0)}, {"dim": (0, -2)}, {"dim": (0, 5)}]
    _run(op, device, [(t, r) for r in refused] + [(scalar, {"dim": d}) for d in (0, -1, 1)])


@_each_op
def test_empty(op: Any, device: str) -> None:
    """Over no elements: the identity or a refusal; over some, with an empty result."""
    dtype = _default(op)
    shapes = ((0,), (2, 0, 3))
    calls = [(_drawn(op, s, dtype), {"dim": d}) for s in shapes for d in range(len(s))]
    _run(op, device, calls + [(_drawn(op, s, dtype), {}) for s in shapes])


def _strided(make: Callable[[tuple[int, ...]], torch.Tensor]) -> Iterator[torch.Tensor]:
    yield make((4, 3)).T
    yield make((4, 6))[:, ::2]
    yield make((8, 3))[::2]
    yield make((4, 1)).expand(4, 3)
    yield make((2, 3, 4)).permute(2, 0, 1)[1:]


@_each_op
def test_strides(op: Any, device: str) -> None:
    make = functools.partial(_drawn, op, dtype=_default(op))
    _run(op, device, ((t, o) for t in _strided(make) for o in ({}, {"dim": 0}, {"dim": -1})))


_KINDS = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64)


@_each_op
def test_dtypes(op: Any, device: str) -> None:
    """Result dtypes and values, one dtype a kind; and those which the operator refuses."""
    _run(op, device, ((_drawn(op, (3, 4), d), o) for d in _KINDS for o in ({}, {"dim": 1})))


@_each_op
def test_extreme_values(op: Any, device: str) -> None:
    """NaN, infinities and signed zeros, alone and among others."""
    if _default(op) is torch.bool:
        pytest.skip("no floating point")
    nan, inf = float("nan"), float("inf")
    rows = [
        [nan, 1, 2],
        [inf, 1, 2],
        [-inf, inf, 1],
        [0.0, -0.0, 0.0],
        [nan, inf, 3],
        [1e18, 2e18, 3e18],
    ]
    t = torch.tensor(rows)
    _run(op, device, [(t, {"dim": 1}), (t, {}), (t.T.contiguous(), {"dim": 0})])
