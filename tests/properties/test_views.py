"""Strided views: any composition of view operators, with writes through random views in between,
gives on the device what it gives on the CPU, in every alias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.common.compare import EXACT, difference

_examples = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_Step = tuple[str, Callable[[torch.Tensor], torch.Tensor]]
_LIMIT = 64  # elements of a view


@st.composite
def _slice(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    dim = draw(st.integers(0, t.dim() - 1))
    start, stop = (draw(st.integers(-t.size(dim) - 1, t.size(dim) + 1)) for _ in range(2))
    index = (slice(None),) * dim + (slice(start, stop, draw(st.integers(1, 3))),)
    return f"[{index}]", lambda x: x[index]


@st.composite
def _select(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    dims = [d for d in range(t.dim()) if t.size(d)]
    dim = draw(st.sampled_from(dims))
    at = draw(st.integers(-t.size(dim), t.size(dim) - 1))
    return f"select({dim}, {at})", lambda x: x.select(dim, at)


@st.composite
def _permute(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    order = draw(st.permutations(range(t.dim())))
    return f"permute({order})", lambda x: x.permute(order)


@st.composite
def _expand(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    sizes = [draw(st.integers(1, 3)) if n == 1 else n for n in t.shape]
    lead = draw(st.lists(st.integers(1, 2), max_size=1))
    return f"expand({lead + sizes})", lambda x: x.expand(*lead, *sizes)


@st.composite
def _reshape(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    n = t.numel()
    first = draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    shape = draw(st.sampled_from([(first, n // first), (n,), (1, first, n // first)]))
    return f"reshape({shape})", lambda x: x.reshape(shape)


@st.composite
def _unsqueeze(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    dim = draw(st.integers(0, t.dim()))
    return f"unsqueeze({dim})", lambda x: x.unsqueeze(dim)


@st.composite
def _flip(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    dim = draw(st.integers(0, t.dim() - 1))
    return f"flip({dim})", lambda x: x.flip(dim)  # a copy: it starts another storage


@st.composite
def _unfold(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    dims = [d for d in range(t.dim()) if t.size(d)]
    dim = draw(st.sampled_from(dims))
    size, step = draw(st.integers(1, t.size(dim))), draw(st.integers(1, 2))
    return f"unfold({dim}, {size}, {step})", lambda x: x.unfold(dim, size, step)


@st.composite
def _view_step(draw: st.DrawFn, t: torch.Tensor) -> _Step:
    choices = [_unsqueeze, _expand, _permute]
    if t.dim():
        choices += [_slice, _slice, _flip]
        if t.numel():
            choices += [_select, _reshape, _unfold]
        if t.dim() > 1:
            choices.append(lambda t: st.just(("diagonal()", torch.diagonal)))
    return draw(draw(st.sampled_from(choices))(t))


def _indexed(x: torch.Tensor) -> torch.Tensor:
    if x.dim() and x.size(0):
        x[torch.tensor([0, -1], device=x.device)] = 3.0
    return x


_WRITES: dict[str, Callable[[torch.Tensor, list[torch.Tensor]], Any]] = {
    "fill_(5)": lambda x, _: x.fill_(5),
    "add_(1)": lambda x, _: x.add_(1),
    "mul_(column)": lambda x, _: x.mul_(
        torch.full((x.shape[-1:] or (1,)), 2.0, device=x.device)[:1]
    ),
    "copy_(arange)": lambda x, _: x.copy_(
        torch.arange(float(x.numel()), device=x.device).reshape(x.shape)
    ),
    "copy_(flipped self)": lambda x, _: x.copy_(x.flip(0) if x.dim() else x.clone()),
    "[0] = -1": lambda x, _: x.__setitem__(0, -1) if x.dim() and x.size(0) else None,
    "[indices] = 3": lambda x, _: _indexed(x),
    "masked_fill_": lambda x, _: x.masked_fill_(x > 4, 0),
    "add_(sum of another)": lambda x, others: x.add_(others[0].sum()),
    "sub_(itself)": lambda x, _: x.sub_(x),
}


def _run(t: torch.Tensor, program: list[tuple[int, Any]]) -> list[Any]:
    """The tensors after a program: (place, step) adds a view, (place, name of a write) writes."""
    tensors, told = [t], []
    for place, step in program:
        x = tensors[place]
        if isinstance(step, str):
            try:
                _WRITES[step](x, tensors)
            except RuntimeError as error:
                told.append(type(error).__name__)
        else:
            tensors.append(step[1](x))
    return [*tensors, *told, *(x.stride() for x in tensors), *(x._version for x in tensors)]


@st.composite
def _programs(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, Any]]]:
    shape = draw(st.sampled_from([(4, 3), (6,), (2, 3, 2), (4, 1, 2)]))
    tensors = [torch.empty(shape)]
    program: list[tuple[int, Any]] = []
    for _ in range(draw(st.integers(2, 7))):
        place = draw(st.integers(0, len(tensors) - 1))
        if len(program) and draw(st.booleans()):
            program.append((place, draw(st.sampled_from(sorted(_WRITES)))))
            continue
        step = draw(_view_step(tensors[place]))
        made = step[1](tensors[place])
        if made.numel() <= _LIMIT and made.dim() <= 4:
            tensors.append(made)
            program.append((place, step))
    return shape, program


@_examples
@given(_programs())
def test_programs_of_views_and_writes(device: str, drawn: Any) -> None:
    shape, program = drawn
    base = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    want, got = _run(base.clone(), program), _run(base.to(device), program)
    found = difference(want, got, lambda _: EXACT)
    told = [(place, s if isinstance(s, str) else s[0]) for place, s in program]
    assert found is None, f"{found} after {told} on {list(shape)}"
