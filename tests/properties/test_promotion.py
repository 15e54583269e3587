"""Type promotion: any two dtypes, as tensors with dimensions, 0-d tensors and Python numbers, give
on the device the dtype and values that they give on the CPU, or the same refusal.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.outcome import outcome_differs

_DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (True, 3, 2.5, 1 + 2j)
_OPS = (
    torch.add, torch.sub, torch.mul, torch.true_divide, torch.floor_divide, torch.remainder,
    torch.pow, torch.maximum, torch.eq, torch.lt, torch.logical_and, torch.bitwise_or,
    torch.bitwise_left_shift, torch.atan2, torch.copysign, torch.where, torch.fmod, torch.hypot,
)  # fmt: skip
_IN_PLACE = ("add_", "mul_", "div_", "pow_", "copy_", "bitwise_and_", "eq_", "fmod_")


@st.composite
def _operand(draw: st.DrawFn) -> Any:
    """A tensor of two values, one of none (0-d), or a number; small values that no op overflows."""
    kind = draw(st.sampled_from(("tensor", "0-d", "number")))
    if kind == "number":
        return draw(st.sampled_from(_NUMBERS))
    dtype = draw(st.sampled_from(_DTYPES))
    return torch.tensor([1, 3] if kind == "tensor" else 2).to(dtype)


_some = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(_some, max_examples=250)
@given(st.sampled_from(_OPS), _operand(), _operand())
def test_operators(device: str, op: Any, a: Any, b: Any) -> None:
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        b = torch.tensor([1, 3])

    def call(x: Any, y: Any) -> Any:
        if op is torch.where:
            given = x if isinstance(x, torch.Tensor) else y
            return op(torch.tensor([True, False], device=given.device), x, y)
        return op(x, y)

    found = outcome_differs(call, [a, b], device)
    assert found is None, f"{op.__name__}{found}"


@settings(_some, max_examples=120)
@given(st.sampled_from(_IN_PLACE), _operand(), _operand())
def test_in_place(device: str, name: str, a: Any, b: Any) -> None:
    if not isinstance(a, torch.Tensor):
        a = torch.tensor([1, 3])
    found = outcome_differs(lambda x, y: getattr(x, name)(y), [a, b], device)
    assert found is None, f"{name}{found}"


@settings(_some, max_examples=60)
@given(st.sampled_from(_DTYPES), st.sampled_from(_DTYPES), st.sampled_from(_DTYPES))
def test_out_and_cat(
    device: str, first: torch.dtype, second: torch.dtype, out: torch.dtype
) -> None:
    """`cat`, `stack` and `add(out=)` of three dtypes."""
    tensors = [torch.tensor([1, 3]).to(d) for d in (first, second, out)]

    def call(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor) -> Any:
        return [torch.cat([a, b, o]), torch.stack([a, b]), torch.result_type(a, b)]

    found = outcome_differs(call, tensors, device)
    assert found is None, found
    found = outcome_differs(lambda a, b, o: torch.add(a, b, out=o), tensors, device)
    assert found is None, found
