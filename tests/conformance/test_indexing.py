"""Indexing as PyTorch's test_indexing asks: ints, slices, None, ellipsis, masks and index tensors,
mixed, read and written, with accumulation and gradients; and what is refused.

An index is written as in Python; inside, `i` makes an index tensor and `m` a mask, on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conformance.outcome import outcome_differs

_SHAPE = (4, 5, 6)


class _Index:
    """`_Index("0, ..., i([1, 2])")` for a tensor: the text evaluated with tensors on its device."""

    def __init__(self, text: str) -> None:
        self.code = compile(f"S[{text}]", text, "eval")

    def __call__(self, t: torch.Tensor) -> Any:
        return eval(self.code, {"S": _Subscript(), **_makers(t), "t": t})


class _Subscript:
    def __getitem__(self, index: Any) -> Any:
        return index


def _makers(t: torch.Tensor) -> dict[str, Callable[..., torch.Tensor]]:
    def i(values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=t.device)

    def m(*shape: int) -> torch.Tensor:
        count = torch.arange(torch.Size(shape).numel(), device=t.device)
        return (count % 3 == 1).reshape(shape)

    return {"i": i, "m": m, "torch": torch, "cpu": lambda values: torch.tensor(values)}


_INDICES = """
0
-1
1, -2
1, 2, 3
0, -5, -6
slice(None)
1:3
-3:-1
3:1
::2
1::3
:100
-100:
:, 1
:, :, -1
:, 1:4, ::2
1:3, 2:, 5
...
..., 0
0, ...
0, ..., 1:3
1, ..., 2, 3
..., None
None
None, 1, None, :, None
:, None, 2
True
False
None, True
1, True
i(2)
i(-1), 1
i([0, 3, 3])
i([-1, 0])
i([[0, 1], [2, 3]])
i([])
i([1, 0], torch.int32)
:, i([4, 0])
:, :, i([5, 5, 0])
i([0, 1]), i([1, 2])
i([0, 1]), :, i([1, 2])
:, i([0, 1]), i([1, 2])
i([[0], [3]]), i([[0, 4]])
i([0, 1]), i(2)
i([0, 1, 2]), i([1, 2, 3]), i([-1, -2, -3])
i([0, 1]), 1:3
i([0, 1]), 1
1, i([0, 2])
1, :, i([0, 2])
i([0, 1]), None, i([1, 2])
None, i([0, 1]), i([1, 2])
i([0, 1]), 1:3, i([1, 2])
..., i([1, 2])
i([0, 1]), ..., i([1, 2])
i([[0, 1]]), ..., None
2, None, i([0, 1]), ::2
[0, 2]
[0, 2], [1, 3]
:, [0, -1]
[[0, 1], [2, 3]],
cpu([0, 2])
:, cpu([1, 2])
m(4)
m(4, 5)
m(4, 5, 6)
:, m(5)
:, m(5, 6)
..., m(6)
m(4), 1
m(4), ::2
1, m(5)
1, :, m(6)
m(4), i([2])
i([0, 3]), :, m(6)
m(4), None
t > 60
t > 1000
t[0] > 10, 1:0
i([1, 0, 1, 0], torch.uint8)
[True, False, True, False]
"""
_TEXTS = [line for line in _INDICES.strip().splitlines() if line != "t[0] > 10, 1:0"]
_each_index = pytest.mark.parametrize("text", _TEXTS)


def _base(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = _SHAPE) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def _same(story: Callable[..., Any], device: str, *args: torch.Tensor) -> None:
    found = outcome_differs(story, list(args) or [_base()], device)
    assert found is None, found


@_each_index
def test_get(text: str, device: str) -> None:
    """Values, strides, and whether the result is a view."""
    index = _Index(text)

    def story(t: torch.Tensor) -> Any:
        got = t[index(t)]
        strides = got.stride() if got.numel() and t.is_contiguous() else ()
        return [got, strides, torch._C._is_alias_of(got, t)]

    _same(story, device)
    _same(story, device, _base(torch.float32, (6, 5, 4)).permute(2, 1, 0))


@_each_index
def test_set(text: str, device: str) -> None:
    """A number, a 0-d tensor, and a tensor that is broadcast; int64 as well as float32."""
    index = _Index(text)

    def story(t: torch.Tensor) -> Any:
        told = []
        for dtype in (torch.float32, torch.int64):
            x = t.to(dtype)
            x[index(x)] = 7
            told.append(x.clone())
            x[index(x)] = torch.tensor(-1, dtype=dtype, device=t.device)
            told.append(x.clone())
            part = x[index(x)]
            if _written_once(index(x)):
                value = torch.arange(part.numel(), device=t.device).reshape(part.shape).to(dtype)
                x[index(x)] = value[..., :1] if value.dim() else value
                told.append(x.clone())
                x[index(x)] += value
                told.append(x)
        return told

    _same(story, device)


def _written_once(index: Any) -> bool:
    """Whether no position is named twice: which of two values stays is not defined."""
    parts = index if isinstance(index, tuple) else (index,)
    named = [p for p in parts if isinstance(p, torch.Tensor) and p.dtype.itemsize > 1]
    return all(p.unique().numel() == p.numel() for p in named)


# The CPU refuses to differentiate a write under a mask of bytes, which the device allows.
@pytest.mark.parametrize("text", [text for text in _TEXTS if "uint8" not in text])
def test_gradient(text: str, device: str) -> None:
    """Of a read, which adds up where a position is named twice; and of a write."""
    index = _Index(text)

    def story(t: torch.Tensor) -> Any:
        x = t.clone().requires_grad_()
        got = x[index(x)]
        weight = torch.arange(1.0, got.numel() + 1, device=t.device).reshape(got.shape)
        (got * weight).sum().backward()
        read, x.grad = x.grad, None
        y = x * 2
        v = torch.ones((), device=t.device, requires_grad=True)
        y[index(y)] = v
        (y * t).sum().backward()
        return [read, x.grad, v.grad if _written_once(index(t)) else None]

    _same(story, device)


_PUTS = ("i([0, 3, 3])", "i([0, 0]), i([1, 1])", ":, i([4, -1, 4])", "i([[0], [0]]), i([[2, 2]])",
         "i([0, 1, 1]), :, i([2, 3, 3])", "m(4)", "m(4, 5)", "i([]), i([])")  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("text", _PUTS)
def test_index_put_accumulates(text: str, dtype: torch.dtype, device: str) -> None:
    index = _Index(text)

    def story(t: torch.Tensor) -> Any:
        parts = index(t) if isinstance(index(t), tuple) else (index(t),)
        parts = tuple(None if isinstance(p, slice) else p for p in parts)
        shape = t[index(t)].shape
        value = (torch.arange(shape.numel(), device=t.device) % 3).reshape(shape).to(t.dtype)
        added = torch.ops.aten.index_put(t, list(parts), value, True)
        once = torch.ones((), dtype=t.dtype, device=t.device)
        torch.ops.aten.index_put_(t, list(parts), once, True)
        return [added, t]

    _same(story, device, _base(dtype) % 5 if dtype != torch.bool else _base() % 2 == 0)


_REFUSED = """
4
-5
1, 5
1, -6
0, 0, 0, 0
..., ...
i([0]), i([0]), i([0]), i([0])
::-1
::0
1.5
'a'
i([0.5], torch.float32)
m(5)
m(4, 4)
:, m(4)
i([0, 1]), i([0, 1, 2])
i([0, 1]), m(5, 5)
[0, 'a']
object()
"""


@pytest.mark.parametrize("text", _REFUSED.strip().splitlines())
def test_refused(text: str, device: str) -> None:
    """The same exception, read or written; a value that is an index tensor's is not looked at."""
    index = _Index(text)
    _same(lambda t: t[index(t)], device)

    def write(t: torch.Tensor) -> Any:
        t[index(t)] = 1

    _same(write, device)


_REFUSED_VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "0 = ones(5, 5)": lambda t: t.__setitem__(0, torch.ones(5, 5, device=t.device)),
    "i = too many": lambda t: t.__setitem__(_Index("i([0, 1])")(t), torch.ones(3, device=t.device)),
    "m = too few": lambda t: t.__setitem__(m := t > 60, torch.ones(2, device=m.device)),
    "i = another dtype": lambda t: t.__setitem__(_Index("i([0])")(t), torch.ones(6).long()),
    "0-d tensor": lambda t: t[0, 0, 0][0],
    "index_put with too many": lambda t: t.index_put((_Index("i([0])")(t),) * 4, t),
    "index_add, wrong shape": lambda t: t.index_add(0, _Index("i([0])")(t), t),
    "index_select, two dimensions": lambda t: t.index_select(0, _Index("i([[0]])")(t)),
    "gather, another rank": lambda t: t.gather(0, _Index("i([0])")(t)),
    "take_along_dim, another rank": lambda t: t.take_along_dim(_Index("i([0])")(t), 0),
    "int() of many": lambda t: int(t),
    "index() of a float": lambda t: [1, 2][t[0, 0, 0]],
    "iterate a 0-d": lambda t: list(t[0, 0, 0]),
    "bool() of many": lambda t: bool(t),
}


@pytest.mark.parametrize("name", _REFUSED_VALUES)
def test_refused_values(name: str, device: str) -> None:
    _same(_REFUSED_VALUES[name], device)


def test_tensors_as_python_indices(device: str) -> None:
    def story(t: torch.Tensor) -> Any:
        two = torch.tensor(2, device=t.device)
        values = list(range(10))
        rows = [r.sum() for r in t]
        return [values[two], values[two:], t[two].clone(), t[:two], rows, len(t), 3.0 in t]

    _same(story, device)
