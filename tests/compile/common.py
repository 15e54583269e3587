"""What the tests of compiled mode share: models in pairs, and gradients beside eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import torchtpu_core


def compiled_since(before: dict[str, Any]) -> int:
    """Programs compiled or loaded since `before`, a former `torchtpu_core.stats()`."""
    now = torchtpu_core.stats()
    return sum(now[k] - before[k] for k in ("programs_compiled", "programs_loaded"))


def executions(fn: Callable[[], Any]) -> int:
    """How many programs a call of `fn` launches."""
    before = torchtpu_core.stats()["executions"]
    fn()
    return torchtpu_core.stats()["executions"] - before


def assert_trains_alike(model: torch.nn.Module, *inputs: torch.Tensor, **options: Any) -> None:
    """The compiled model gives eager's outputs, gradients and buffers on the device."""
    tolerance = {"rtol": 1e-4, "atol": 1e-5, **options}
    eager = model.to("tpu")
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, backend="tpu", fullgraph=True)
    for _ in range(2):
        for m in (eager, other):
            m.zero_grad()
        xs = [x.to("tpu").requires_grad_(x.is_floating_point()) for x in inputs]
        ys = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in xs]
        expected, actual = eager(*xs), compiled(*ys)
        torch.testing.assert_close(actual, expected, **tolerance)
        expected.square().mean().backward()
        actual.square().mean().backward()
        for (name, p), q in zip(eager.named_parameters(), other.parameters()):
            torch.testing.assert_close(
                q.grad, p.grad, msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )
        for x, y in zip(xs, ys):
            if x.requires_grad:
                torch.testing.assert_close(y.grad, x.grad, **tolerance)
        for p, q in zip(eager.buffers(), other.buffers()):
            torch.testing.assert_close(q, p, **tolerance)
