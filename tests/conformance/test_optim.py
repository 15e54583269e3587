"""PyTorch's own database of optimizers: every implementation (for-loop, foreach, fused, with and
without capturable) takes the steps that the CPU's for-loop takes, state_dicts move between devices,
and wrong arguments are refused alike.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    optim_db,
)

from tests.common.compare import Tolerance, difference
from tests.common.transfer import Transfer

_STEPS = 3
#: a step divides by square roots of averages that start at zero, so that roundings grow
_TOLERANCE = Tolerance(1e-4, 2e-5)
_IMPLS = ("forloop", "foreach", "fused")


class _Case(NamedTuple):
    info: OptimizerInfo
    given: OptimizerInput
    impl: str

    @property
    def name(self) -> str:
        return f"{self.info.name}-{self.impl}-{self.given.desc.replace(' ', '_')}"


def _cases() -> list[_Case]:
    """Every input of the database as cuda has them (they include capturable), by implementation."""
    return [
        _Case(info, given, impl)
        for info in optim_db
        for given in info.optim_inputs_func(device="cuda")
        for impl in _IMPLS
        if impl == "forloop" or impl in info.supported_impls
    ]


def _flags(info: OptimizerInfo, impl: str) -> dict[str, bool]:
    return {flag: flag == impl for flag in ("foreach", "fused") if flag in info.supported_impls}


class _Problem:
    """A little regression: two parameters of 2 dimensions (Muon takes no others) and one of 1."""

    def __init__(self, info: OptimizerInfo, kwargs: dict[str, Any], device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes = [(4, 3), (3, 2)] + ([(2,)] if info.name != "Muon" else [])
        # LBFGS's inner iterations magnify float32's rounding beyond any useful tolerance.
        dtype = torch.float64 if info.name == "LBFGS" else torch.float32
        shapes = [*shapes, (5, 4), (5, 2)]
        *drawn, x, y = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
        self.x, self.y = x.to(device), y.to(device)
        self.params = [torch.nn.Parameter(t.to(device)) for t in drawn]
        self.sparse = info.only_supports_sparse_grads
        self.optimizer = info.optim_cls(self.params, **copy.deepcopy(kwargs))

    def closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        hidden = torch.tanh(self.x @ self.params[0])
        out = hidden @ self.params[1] + sum(self.params[2:])
        loss = torch.nn.functional.mse_loss(out, self.y)
        loss.backward()
        if self.sparse:
            for p in self.params:
                p.grad = p.grad.to_sparse()
        return loss

    def run(self, steps: int) -> list[float]:
        return [self.optimizer.step(self.closure).item() for _ in range(steps)]

    def results(self) -> list[Any]:
        state = self.optimizer.state_dict()["state"]
        return [[p.detach() for p in self.params], state]


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.name)
def test_steps_equal_cpu(case: _Case, device: str) -> None:
    info, kwargs = case.info, case.given.kwargs
    plain = {k: v for k, v in kwargs.items() if k != "capturable"}
    reference = _Problem(info, {**plain, **_flags(info, "forloop")}, "cpu")
    tried = _Problem(info, {**kwargs, **_flags(info, case.impl)}, device)
    want, got = reference.run(_STEPS), tried.run(_STEPS)
    assert got == pytest.approx(want, rel=1e-4)
    found = difference(reference.results()[0], tried.results()[0], lambda _: _TOLERANCE)
    assert found is None, found
    found = difference(_numbers(reference), _numbers(tried), lambda _: _TOLERANCE)
    assert found is None, f"state: {found}"


def _numbers(problem: _Problem) -> Any:
    """The state with every number as a double: counts of steps are tensors or not, by flag."""

    def number(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: number(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return [number(v) for v in x]
        if isinstance(x, (bool, int, float)):
            return torch.tensor(float(x), dtype=torch.float64)
        return x.double().cpu() if isinstance(x, torch.Tensor) else x

    return number(problem.results()[1])


@pytest.mark.parametrize("info", optim_db, ids=lambda info: info.name)
def test_state_dict_round_trip(info: OptimizerInfo, device: str) -> None:
    """A run continues as if it had not stopped, on the device and from a CPU's checkpoint."""
    impl = info.supported_impls[0] if info.supported_impls else "forloop"
    whole = _Problem(info, _flags(info, impl), device)
    whole.run(4)
    for first_device in (device, "cpu"):
        first = _Problem(info, _flags(info, impl), first_device)
        first.run(2)
        second = _Problem(info, _flags(info, impl), device)
        with torch.no_grad():
            for p, q in zip(second.params, first.params, strict=True):
                p.copy_(q)
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.run(2)
        found = difference(
            [p.detach().cpu() for p in whole.params], second.results()[0], lambda _: _TOLERANCE
        )
        assert found is None, f"from {first_device}: {found}"


def _error_cases() -> list[Any]:
    return [
        pytest.param(info, error, id=f"{info.name}-{error.optimizer_error_input.desc}")
        for info in optim_db
        for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32)
    ]


@pytest.mark.parametrize("info, error", _error_cases())
def test_error_inputs(info: OptimizerInfo, error: ErrorOptimizerInput, device: str) -> None:
    given = error.optimizer_error_input
    params = given.params
    if params is None:
        params = [torch.nn.Parameter(torch.randn(2, 3, device=device))]
    else:
        params = _moved(params, device)

    def act() -> None:
        optimizer = info.optim_cls(params, **copy.deepcopy(given.kwargs))
        if error.error_on is OptimizerErrorEnum.STEP_ERROR:
            optimizer.step()

    if issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=error.error_regex):
            act()
        return
    with pytest.raises(error.error_type, match=error.error_regex), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        act()


def _moved(params: Any, device: str) -> Any:
    """The parameters on the device, with their gradients; the same one stays the same."""
    kept: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in kept:
                moved = Transfer(device)(x.detach())
                kept[id(x)] = torch.nn.Parameter(moved, x.requires_grad)
                if x.grad is not None:
                    kept[id(x)].grad = Transfer(device)(x.grad)
            return kept[id(x)]
        if isinstance(x, dict):
            return {k: move(v) for k, v in x.items()}
        return type(x)(move(v) for v in x) if isinstance(x, (list, tuple)) else x

    return move(params)


def test_foreach_and_fused_are_default_or_supported_as_on_cuda(device: str) -> None:
    """Without flags an optimizer on the device chooses foreach; `fused=True` is accepted."""
    params = [torch.nn.Parameter(torch.randn(3, device=device))]
    _, foreach = _default_to_fused_or_foreach(params, False, False)
    assert foreach
    assert torch.optim.Adam(params, fused=True).defaults["fused"]
