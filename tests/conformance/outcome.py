"""What a call comes to, on the CPU and on the device: equal results and equal effects on the
arguments, or an exception of the same type.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.common.compare import (
    EXACT,
    Tolerance,
    describe,
    difference,
    strides_differ,
    tensors_in,
    tolerance_for,
)
from tests.common.transfer import Transfer

_Call = Callable[..., Any]


def attempt(call: _Call, *args: Any) -> tuple[Any, Exception | None]:
    """(result, exception); warnings are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(*args), None
        except Exception as error:
            return None, error


def outcome_differs(
    call: _Call,
    args: Any,
    device: str,
    tolerance: Callable[[torch.dtype], Tolerance] = tolerance_for,
    *,
    strides: bool = False,
) -> str | None:
    """How `call(*args)` on the device is unlike the CPU's, or None. `args` are on the CPU and stay
    as they are; both sides get copies with the same strides and shared storages.
    """
    on_cpu, on_device = Transfer("cpu")(args), Transfer(device)(args)
    want, refusal = attempt(call, *on_cpu)
    got, error = attempt(call, *on_device)
    problem = None
    if refusal is not None or error is not None:
        # "Not implemented for a dtype" is a NotImplementedError or a plain RuntimeError, by kernel.
        both_runtime = isinstance(refusal, RuntimeError) and isinstance(error, RuntimeError)
        if type(refusal) is not type(error) and not both_runtime:
            problem = f"{error!r:.300} instead of {refusal!r:.300}"
    else:
        found = difference(want, got, tolerance)
        if found is None and strides:
            pairs = zip(tensors_in(want), tensors_in(got), strict=True)
            bad = [(w.stride(), g.stride()) for w, g in pairs if strides_differ(w, g)]
            problem = f"strides {bad[0][1]} instead of {bad[0][0]}" if bad else None
        elif found is not None:
            problem = f"{found.kind}: {found.detail}"
    if problem is None and refusal is None:
        before, want, got = tensors_in(args), tensors_in(on_cpu), tensors_in(on_device)
        written = difference(before, want, lambda _: EXACT) is not None
        found = difference(want, got, tolerance if written else lambda _: EXACT)
        problem = f"arguments after the call: {found.detail}" if found is not None else None
    return None if problem is None else f"({describe(args)}): {problem}"
