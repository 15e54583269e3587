"""Views and in-place writes as PyTorch's test_view_ops asks: which results are views, of what, with
which strides; writes seen through every alias; version counters; autograd's refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from tests.common.compare import tensors_in
from tests.conformance.items import applies, operators
from tests.conformance.outcome import outcome_differs
from tests.conformance.rules import ON_CPU, RANDOM, UNINITIALISED, tolerance_of
from tests.conformance.samples import Sample, draw, noncontiguous


def _returns_views(op: OpInfo) -> bool:
    """Whether some overload's schema says that a result aliases an argument, without a write."""
    packet = getattr(torch.ops.aten, op.aten_name or op.name, None)
    if packet is None or op.name in UNINITIALISED:
        return False
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    returned = [r.alias_info for s in schemas for r in s.returns]
    return any(info is not None and not info.is_write for info in returned)


def _ids(op: OpInfo) -> str:
    return op.full_name


def _problems(
    op: OpInfo, samples: list[Sample], story: Callable[[Sample], Any], device: str
) -> list[str]:
    # What stays on the CPU is not passed through the transfer.
    at = ON_CPU.get(op.full_name, max((len(s.args) for s in samples), default=0))
    found = []
    for s in samples:

        def call(moved: Any, kwargs: Any, s: Sample = s) -> Any:
            return story(s._replace(args=(*moved, *s.args[at:]), kwargs=kwargs))

        problem = outcome_differs(call, [s.args[:at], s.kwargs], device, tolerance_of(op))
        if problem is not None:
            found.append(problem)
    return found


def _whole(t: torch.Tensor) -> torch.Tensor:
    """The whole storage below `t`, flat."""
    return t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


_VIEWS = [op for op in operators().values() if _returns_views(op)]


@pytest.mark.parametrize("spread", [False, True], ids=["contiguous", "noncontiguous"])
@pytest.mark.parametrize("op", _VIEWS, ids=_ids)
def test_view(op: OpInfo, spread: bool, device: str) -> None:
    """A view is one on the device too, and writes go both ways."""

    def story(sample: Sample) -> Any:
        base = tensors_in(sample.args)[0]
        told: list[Any] = []
        outs = tensors_in(op(*sample.args, **sample.kwargs))
        views = [o for o in outs if torch._C._is_alias_of(o, base)]
        told.append(len(views))
        for v in views:
            told.append((v._is_view(), v is base or v._base is base or v._base is base._base))
            told.append((list(v.shape), v.stride(), v.storage_offset(), v.is_contiguous()))
        for v in views:
            v.fill_(1)
            told.append((v._version, base._version, base.clone()))
        base.zero_()
        told.append([v.clone() for v in views])
        return told

    samples = draw(op, torch.float32, 3)
    samples = [s for s in samples if tensors_in(s.args)[0].layout is torch.strided]
    problems = _problems(op, [noncontiguous(s) if spread else s for s in samples], story, device)
    assert not problems, "\n" + "\n".join(problems)


_INPLACE = [
    op
    for op in operators().values()
    if applies(op, "inplace", torch.float32)
    and op.full_name not in (*RANDOM, "nn.functional.rrelu")  # draws in training
    and op.name not in UNINITIALISED
]


@pytest.mark.parametrize("op", _INPLACE, ids=_ids)
def test_inplace_on_a_view(op: OpInfo, device: str) -> None:
    """An in-place operator writes through a strided view, and nowhere else in the storage."""

    def story(sample: Sample) -> Any:
        view = sample.args[0]
        result = op.get_inplace()(*sample.args, **sample.kwargs)
        return [result is view, view._version, _whole(view)]

    samples = [s for s in draw(op, torch.float32, 2) if not s.broadcasts]
    problems = _problems(op, [noncontiguous(s) for s in samples], story, device)
    assert not problems, "\n" + "\n".join(problems)


def _same(story: Callable[..., Any], device: str, *shape: int) -> None:
    t = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    found = outcome_differs(story, [t], device)
    assert found is None, found


def test_one_write_is_seen_by_every_alias(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        aliases = [t[1:], t.T, t.view(-1)[::2], t.unsqueeze(0).expand(2, -1, -1), t.detach()]
        t[1:].T[0].mul_(-1)
        aliases[1].diagonal().add_(10)
        return [a.clone() for a in aliases] + [a._version for a in aliases]

    _same(story, device, 3, 4)


def test_view_as_another_dtype(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        ints, pairs, halves = t.view(torch.int32), t.view(torch.int64), t.view(torch.int16)
        ints[0, 0] = 0
        halves[1, 2:4] = 0
        pairs[:, 1] = 0
        return [t, ints.clone(), pairs.clone(), halves.clone(), ints._is_view()]

    _same(story, device, 2, 4)


def test_parts_of_complex_numbers(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        z = torch.complex(t, -t)
        z.imag.mul_(2)
        z.conj().real.add_(1)
        torch.view_as_real(z)[..., 1].neg_()
        return [z, z.conj().is_conj(), z.conj().imag.is_neg(), z.conj().imag.clone()]

    _same(story, device, 2, 3)


def test_set_and_resize_of_shared_storage(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        other = torch.empty(0, device=t.device).set_(t.untyped_storage(), 2, (2, 2), (3, 1))
        other.fill_(7)
        shrunk = t.view(-1).resize_(4)
        shrunk.neg_()
        return [t, other, shrunk.clone()]

    _same(story, device, 3, 4)


_REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "view of a transposed tensor": lambda t: t.T.view(-1),
    "view of another size": lambda t: t.view(5, 5),
    "write into an expanded tensor": lambda t: t[:, :1].expand(3, 4).add_(1),
    "write over the input": lambda t: t.view(-1)[1:].copy_(t.view(-1)[:-1]),
    "in-place result too large": lambda t: t[0].add_(t),
    "in-place on a leaf": lambda t: t.requires_grad_().add_(1),
    "in-place on a view of a leaf": lambda t: t.requires_grad_()[0].zero_(),
    "in-place on a split": lambda t: t.requires_grad_().clone().unbind()[0].mul_(2),
    "saved tensor overwritten": lambda t: _overwritten(t),
    "detached view overwritten": lambda t: _overwritten(t, through_detach=True),
    "as_strided out of bounds": lambda t: t.as_strided((100,), (1,)),
    "negative stride": lambda t: t.as_strided((2,), (-1,)),
    "squeeze of a dimension that is not": lambda t: t.squeeze(7),
    "select out of range": lambda t: t.select(0, 3),
    "view as a wider dtype": lambda t: t[:, :3].view(torch.float64),
    "view of a conjugate as real": lambda t: torch.view_as_real(torch.complex(t, t).conj()),
}


def _overwritten(t: torch.Tensor, through_detach: bool = False) -> None:
    x = t.requires_grad_()
    y = x.exp()
    (y.detach() if through_detach else y).mul_(2)
    y.sum().backward()


@pytest.mark.parametrize("name", _REFUSED)
def test_refused_as_on_cpu(name: str, device: str) -> None:
    _same(_REFUSED[name], device, 3, 4)


def test_gradients_through_writes_into_views(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        x = t.requires_grad_()
        y = x * 1
        y[1:].mul_(3)
        y.T[0].copy_(x[0, :3].detach())
        y.diagonal().add_(x.sum(1))
        (y * y).sum().backward()
        return [y.detach(), x.grad, type(y.grad_fn).__name__]

    _same(story, device, 3, 4)
