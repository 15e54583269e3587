"""PyTorch's own database of modules: forward, backward, state_dict and moves between devices equal
CPU's.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from tests.common.compare import Tolerance, difference, tensors_in, tolerance_for


def _tolerance(dtype: torch.dtype) -> Tolerance:
    """A module is a chain of operators, each with its own rounding."""
    return tolerance_for(dtype).loosened(Tolerance(1e-3, 2e-5))


def _move(x: Any, device: str) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        moved = t.detach().clone().to(device)
        return moved.requires_grad_(t.requires_grad)

    return pytree.tree_map_only(torch.Tensor, one, x)


def _run(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[list, list, list]:
    """(results, gradients of inputs, gradients of parameters) with the sum of the results as the
    loss.
    """
    torch.manual_seed(1)
    outs = tensors_in(module(*args, **kwargs))
    loss = [t.real.sum() if t.is_complex() else t.sum() for t in outs if t.requires_grad]
    if loss:
        sum(loss).backward()
    inputs = [t.grad for t in tensors_in([args, kwargs]) if t.requires_grad]
    return outs, inputs, [p.grad for p in module.parameters()]


#: their windows come from the device's own generator
_RANDOM = ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d")


def _cases() -> list[tuple[Any, bool]]:
    infos = [info for info in module_db if info.name not in _RANDOM]
    return [(info, training) for info in infos for training in (False, True)]


@pytest.mark.parametrize(
    "info, training",
    _cases(),
    ids=lambda v: v.name if hasattr(v, "name") else "train" if v else "eval",
)
def test_module(info: Any, training: bool, device: str) -> None:
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    for given in inputs:
        if given.forward_input is None:
            continue
        torch.manual_seed(0)
        made = given.constructor_input
        reference = info.module_cls(*made.args, **made.kwargs)
        reference.train(training)
        for m in reference.modules():  # random on purpose: compared by OpInfo's distribution tests
            if isinstance(m, torch.nn.modules.dropout._DropoutNd):
                m.p = 0.0
            if isinstance(m, torch.nn.MultiheadAttention):
                m.dropout = 0.0
            if isinstance(m, torch.nn.RReLU):
                m.eval()
        fwd = given.forward_input
        if any(isinstance(p, UninitializedTensorMixin) for p in reference.parameters()):
            reference(
                *_move(fwd.args, "cpu"), **_move(fwd.kwargs, "cpu")
            )  # gives lazy ones a shape
        module = copy.deepcopy(reference).to(device)
        assert all(p.device.type == torch.device(device).type for p in module.parameters())
        want = _run(reference, _move(fwd.args, "cpu"), _move(fwd.kwargs, "cpu"))
        got = _run(module, _move(fwd.args, device), _move(fwd.kwargs, device))
        for name, w, g in zip(("results", "input gradients", "parameter gradients"), want, got):
            assert len(w) == len(g)
            found = difference(w, g, _tolerance)
            assert found is None, f"{name}: {found} for {made} {fwd}"
        moved = {k: v.cpu() for k, v in module.state_dict().items()}
        assert difference(dict(reference.state_dict()), moved) is None
