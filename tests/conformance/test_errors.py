"""Wrong arguments: what the databases of operators and modules say must raise, raises on the device
the exception type that it raises on the CPU, with a message that fits the same pattern.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.opinfo.core import OpInfo

from tests.common.compare import describe
from tests.common.transfer import Transfer
from tests.conformance.items import operators
from tests.conformance.samples import seed_all

#: a message that names a device may differ
_DEVICE = re.compile(r"\b(cpu|CPU|tpu|meta|device)\b")

#: what is wrong is a value that is on the device: refusing it would wait for it in every call, so
#: that only debug mode and bounds checks do
_VALUES = re.compile(
    r"index -?\d+ is out of bounds|index out of range in self|invalid multinomial distribution"
    r"|probability tensor contains"
)


def _raised(call: Callable[[], Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            return error
    return None


def _problem(
    on_cpu: Exception | None, on_device: Exception | None, kind: type, regex: str
) -> str | None:
    """What is unlike the CPU, where the CPU does what the database says."""
    if not isinstance(on_cpu, kind):
        return None  # the database describes another device
    if _VALUES.search(str(on_cpu)):
        return None if on_device is None else f"{on_device!r} need not be excused any more"
    if on_device is None:
        return f"nothing raised instead of {on_cpu!r}"
    if not isinstance(on_device, kind):
        return f"{on_device!r} instead of {on_cpu!r}"
    fits = re.search(regex, str(on_device)) or not re.search(regex, str(on_cpu))
    if not fits and not _DEVICE.search(str(on_cpu)):
        return f"{str(on_device)!r} does not match {regex!r}"
    return None


_WITH_ERRORS = [op for op in operators().values() if op.error_inputs_func is not None]


@pytest.mark.parametrize("op", _WITH_ERRORS, ids=lambda op: op.full_name)
def test_operator(op: OpInfo, device: str) -> None:
    seed_all(0)
    problems = []
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        moved_args, moved_kwargs = Transfer(device)((args, kwargs))
        on_cpu = _raised(functools.partial(op, *args, **kwargs))
        on_device = _raised(functools.partial(op, *moved_args, **moved_kwargs))
        found = _problem(on_cpu, on_device, error.error_type, error.error_regex)
        if found is not None:
            problems.append(f"{describe(args)} {describe(kwargs)}: {found}")
    assert not problems, "\n" + "\n".join(problems)


_MODULES = [info for info in module_db if info.module_error_inputs_func is not None]


@pytest.mark.parametrize("info", _MODULES, ids=lambda info: info.name)
def test_module(info: Any, device: str) -> None:
    seed_all(0)
    problems = []
    for error in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    ):
        given = error.module_error_input
        made = given.constructor_input

        def act(on: str, given: Any = given, made: Any = made, error: Any = error) -> None:
            module = info.module_cls(*made.args, **made.kwargs).to(on)
            if error.error_on is ModuleErrorEnum.FORWARD_ERROR:
                move = Transfer(on)
                module(*move(given.forward_input.args), **move(given.forward_input.kwargs))

        found = _problem(
            _raised(lambda: act("cpu")),
            _raised(lambda: act(device)),
            error.error_type,
            error.error_regex,
        )
        if found is not None:
            problems.append(f"{made}: {found}")
    assert not problems, "\n" + "\n".join(problems)
