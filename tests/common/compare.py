"""Comparing what a device computed with what the CPU computed.

The one table of tolerances, the comparison of nested results (`difference`), and `assert_same`,
which runs a function on the CPU and on the device and compares. Knows nothing about OpInfo: that is
`tests/conformance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.common.transfer import Transfer


class Tolerance(NamedTuple):
    """Largest accepted `|actual - expected| - rtol * |expected|`, and the relative part."""

    rtol: float
    atol: float

    def loosened(self, other: Tolerance) -> Tolerance:
        """The wider of the two in each part."""
        return Tolerance(max(self.rtol, other.rtol), max(self.atol, other.atol))


EXACT = Tolerance(0.0, 0.0)

TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-7, 1e-7),
    torch.complex128: Tolerance(1e-7, 1e-7),
    torch.float32: Tolerance(1e-4, 1e-5),
    torch.complex64: Tolerance(1e-4, 1e-5),
    torch.float16: Tolerance(2e-3, 1e-3),
    torch.complex32: Tolerance(2e-3, 1e-3),
    torch.bfloat16: Tolerance(1.6e-2, 1e-2),
    torch.float8_e4m3fn: Tolerance(0.125, 0.01),
    torch.float8_e5m2: Tolerance(0.25, 0.01),
}

# Relative error under which two results are called "close": a lack of accuracy rather than another
# meaning.
_CLOSE = 1e-2


class Difference(NamedTuple):
    """How two results differ: `kind` groups alike failures, `detail` tells this one."""

    kind: str
    detail: str


def tolerance_for(dtype: torch.dtype) -> Tolerance:
    """The default tolerance of a dtype; integers and bool are exact."""
    return TOLERANCES.get(dtype, EXACT)


def short_dtype(dtype: torch.dtype) -> str:
    """`float32` rather than `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def describe(value: Any) -> str:
    """A short text for a value: dtype, sizes and, when not contiguous, strides of every tensor in
    it.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return f"{short_dtype(value.dtype)}{list(value.shape)}:{str(value.layout)[6:]}"
        text = f"{short_dtype(value.dtype)}{list(value.shape)}"
        if not value.is_contiguous():
            text += f"/{list(value.stride())}+{value.storage_offset()}"
        return text
    if isinstance(value, torch.dtype):
        return short_dtype(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(describe(v) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={describe(v)}" for k, v in value.items()) + "}"
    if callable(value):
        return getattr(value, "__name__", "function")
    return repr(value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    return []


def difference(
    expected: Any,
    actual: Any,
    tolerance: Callable[[torch.dtype], Tolerance] = tolerance_for,
    *,
    values: bool = True,
) -> Difference | None:
    """The first difference between nested results, or None. `expected` is on the CPU, `actual`
    anywhere.

    `values=False` compares structure, dtypes and shapes only.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            return Difference("structure", f"{type(actual).__name__} instead of a tensor")
        return _tensor_difference(expected, actual, tolerance, values)
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            found = len(actual) if isinstance(actual, (list, tuple)) else type(actual).__name__
            return Difference("structure", f"{found} instead of {len(expected)} results")
        for index, (e, a) in enumerate(zip(expected, actual, strict=True)):
            found = difference(e, a, tolerance, values=values)
            if found is not None:
                return Difference(found.kind, f"result {index}: {found.detail}")
        return None
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            return Difference("structure", "other keys")
        return difference(
            list(expected.values()), [actual[k] for k in expected], tolerance, values=values
        )
    return _scalar_difference(expected, actual, values)


def _scalar_difference(expected: Any, actual: Any, values: bool) -> Difference | None:
    if type(expected) is not type(actual):
        return Difference(
            "structure", f"{type(actual).__name__} instead of {type(expected).__name__}"
        )
    if not values:
        return None
    if isinstance(expected, (float, complex)):
        return _tensor_difference(
            torch.tensor(expected), torch.tensor(actual), lambda _: Tolerance(1e-4, 1e-5), True
        )
    if expected != actual:
        return Difference("values", f"{actual!r} instead of {expected!r}")
    return None


def _tensor_difference(
    expected: torch.Tensor,
    actual: torch.Tensor,
    tolerance: Callable[[torch.dtype], Tolerance],
    values: bool,
) -> Difference | None:
    if actual.dtype != expected.dtype:
        return Difference(
            "dtype", f"{short_dtype(actual.dtype)} instead of {short_dtype(expected.dtype)}"
        )
    if actual.shape != expected.shape:
        return Difference("shape", f"{list(actual.shape)} instead of {list(expected.shape)}")
    if actual.layout != expected.layout:
        return Difference("layout", f"{actual.layout} instead of {expected.layout}")
    if not values:
        return None
    return _value_difference(_plain(expected), _plain(actual), tolerance(expected.dtype))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense CPU copy in a dtype that every comparison supports."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128))
    if tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor.to(torch.int64) if tensor.dtype != torch.uint64 else tensor


def _value_difference(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance
) -> Difference | None:
    if not expected.is_floating_point():
        wrong = expected != actual
    else:
        wrong = ~torch.isclose(
            actual, expected, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
        )
    count = int(wrong.sum())
    if count == 0:
        return None
    where = tuple(wrong.nonzero()[0].tolist())
    detail = (
        f"{count}/{wrong.numel()} wrong, at {list(where)}: "
        f"{_number(actual[where].item())} instead of {_number(expected[where].item())}"
    )
    if not expected.is_floating_point():
        return Difference("values", detail)
    return Difference(_value_kind(expected[wrong], actual[wrong]), detail)


def _value_kind(expected: torch.Tensor, actual: torch.Tensor) -> str:
    if (actual.isnan() & ~expected.isnan()).any():
        return "values: nan where the CPU has none"
    if (expected.isnan() & ~actual.isnan()).any():
        return "values: no nan where the CPU has one"
    if (actual.isinf() != expected.isinf()).any():
        return "values: inf differs"
    error = ((actual - expected).abs() / expected.abs().clamp_min(1e-2)).max().item()
    return "values: close (< 1%)" if error < _CLOSE else "values"


def _number(value: float | int) -> str:
    return f"{value:.7g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def strides_differ(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Whether strides differ in a dimension where they can be seen."""
    if expected.layout is not torch.strided or actual.layout is not torch.strided:
        return False
    if expected.numel() == 0:
        return False
    pairs = zip(expected.shape, expected.stride(), actual.stride(), strict=True)
    return any(size > 1 and e != a for size, e, a in pairs)


def assert_same(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str = "tpu",
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = False,
) -> Any:
    """Call `fn` with CPU inputs and with the same inputs on `device`; results must agree. Returns
    the device's.

    Inputs keep strides, offsets and shared storages on their way. Inputs that `fn` writes to must
    agree too.
    """
    on_cpu = Transfer("cpu")(list(inputs))
    on_device = Transfer(device)(list(inputs))

    def tolerance(dtype: torch.dtype) -> Tolerance:
        default = tolerance_for(dtype)
        return Tolerance(
            default.rtol if rtol is None else rtol, default.atol if atol is None else atol
        )

    expected = fn(*on_cpu)
    actual = fn(*on_device)
    found = difference(expected, actual, tolerance)
    if found is None:
        inputs_found = difference(on_cpu, on_device, tolerance)
        if inputs_found is not None:
            found = Difference(f"inputs after the call: {inputs_found.kind}", inputs_found.detail)
    if found is None and strides:
        for e, a in zip(tensors_in(expected), tensors_in(actual), strict=True):
            if strides_differ(e, a):
                found = Difference("strides", f"{a.stride()} instead of {e.stride()}")
    if found is not None:
        name = getattr(fn, "__name__", str(fn))
        raise AssertionError(
            f"{name} on {device} is not what the CPU gives: {found.kind}: {found.detail}\n"
            f"  inputs:  {describe(on_cpu)}\n"
            f"  cpu:     {describe(expected)}\n"
            f"  {device + ':':<8} {describe(actual)}"
        )
    return actual
