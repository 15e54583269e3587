"""Nested tensors, jagged and strided: made, padded, computed with and differentiated as on the
CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering import harness
from torchtpu_core.lowering.dtypes import mlir

aten = torch.ops.aten

ROWS = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 1)]
WEIGHT = torch.randn(5, 4, generator=torch.Generator().manual_seed(9))


def nested(w: torch.Tensor, rows: list[torch.Tensor] = ROWS, **kwargs: Any) -> torch.Tensor:
    """The rows as one tensor where `w` is, jagged unless told otherwise."""
    kwargs = {"layout": torch.jagged, **kwargs}
    return torch.nested.nested_tensor(rows, device=w.device, **kwargs)


def heads(x: torch.Tensor) -> torch.Tensor:
    """(B, L, 16) -> (B, 2, L, 8)."""
    return x.unflatten(-1, [2, 8]).transpose(1, 2)


def attention(w: torch.Tensor) -> torch.Tensor:
    """Self-attention over rows of different lengths."""
    rows = [torch.sin(torch.arange(n * 16.0)).view(n, 16) for n in (2, 5, 3)]
    x = nested(w, rows, requires_grad=True) * 2
    q, k, v = heads(x), heads(x * 0.5), heads(x + 1)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()


JAGGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "offsets": lambda w: [nested(w).offsets(), nested(w).values()],
    "unbind": lambda w: list(nested(w).unbind()),
    "from jagged": lambda w: torch.nested.nested_tensor_from_jagged(
        torch.cat(ROWS).to(w.device), torch.tensor([0, 1, 6], device=w.device)
    ).values(),
    "from host": lambda w: nested(WEIGHT).to(w.device).values(),
    "padded": lambda w: nested(w).to_padded_tensor(7.0),
    "padded int": lambda w: nested(w, [x.mul(9).long() for x in ROWS]).to_padded_tensor(3),
    "padded bool": lambda w: nested(w, [x > 0 for x in ROWS]).to_padded_tensor(False),
    "padded bfloat16": lambda w: nested(w, [x.bfloat16() for x in ROWS]).to_padded_tensor(0.5),
    "padded 4-d": lambda w: nested(w, [x.view(-1, 2, 2) for x in ROWS]).to_padded_tensor(0.0),
    "with an empty row": lambda w: nested(w, [*ROWS, ROWS[0][:0]]).to_padded_tensor(1.0),
    "elementwise": lambda w: (nested(w).sin() * 2 + 1).values(),
    "linear": lambda w: F.linear(nested(w), w).values(),
    "matmul": lambda w: (nested(w) @ w.mT).values(),
    "softmax": lambda w: nested(w).softmax(-1).values(),
    "ragged softmax": lambda w: nested(w).softmax(1).values(),
    "ragged sum": lambda w: nested(w).sum(1),
    "ragged mean": lambda w: nested(w).mean(1),
    "ragged amax": lambda w: nested(w).amax(1),
    "layer_norm": lambda w: F.layer_norm(nested(w), (4,)).values(),
    "chunk": lambda w: nested(w).chunk(2, -1)[1].values(),
    "embedding": lambda w: F.embedding(
        nested(w, [torch.tensor([0, 1]), torch.tensor([2])]), w
    ).values(),
    "attention": attention,
}

STRIDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "padded": lambda x: x.to_padded_tensor(2.0),
    "unbind": lambda x: list(x.unbind()),
    "elementwise": lambda x: (x.sin() + x * 2).to_padded_tensor(0.0),
    "linear": lambda x: F.linear(x, WEIGHT.to(x.device)).to_padded_tensor(0.0),
    "softmax": lambda x: x.softmax(-1).to_padded_tensor(0.0),
    "matmul": lambda x: (x @ x.transpose(1, 2)).to_padded_tensor(0.0),
    "to host": lambda x: x.cpu().to_padded_tensor(0.0),
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str, assert_same: Any) -> None:
    assert_same(JAGGED[name], WEIGHT)


@pytest.mark.parametrize("name", STRIDED)
def test_strided(name: str, assert_same: Any) -> None:
    assert_same(lambda w: STRIDED[name](nested(w, layout=torch.strided)), WEIGHT)


def test_gradients_of_jagged(assert_same: Any) -> None:
    def gradients(w: torch.Tensor) -> list[torch.Tensor]:
        x, w = nested(w, requires_grad=True), w.requires_grad_()
        F.linear(x, w).sin().to_padded_tensor(0.0).cos().sum().backward()
        return [x.grad.values(), w.grad]

    assert_same(gradients, WEIGHT)


def test_gradients_of_attention(assert_same: Any) -> None:
    def gradient(w: torch.Tensor) -> torch.Tensor:
        x = nested(w, [torch.ones(n, 16).cumsum(1) for n in (2, 3)], requires_grad=True)
        q = heads(x * 0.1)
        out = F.scaled_dot_product_attention(q, q, q).transpose(1, 2)
        out.sin().values().sum().backward()
        return x.grad.values()

    assert_same(gradient, WEIGHT)


def test_gradients_of_strided(assert_same: Any) -> None:
    def gradient(w: torch.Tensor) -> torch.Tensor:
        x = nested(w, layout=torch.strided, requires_grad=True)
        F.linear(x, w).relu().to_padded_tensor(0.0).sin().sum().backward()
        return x.grad.to_padded_tensor(0.0)

    assert_same(gradient, WEIGHT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("length", [2, 3, 5, 0])
def test_padding_cuts_and_fills(dtype: torch.dtype, length: int) -> None:
    values = torch.arange(24).view(6, 4).to(dtype)
    offsets = torch.tensor([0, 2, 2, 5, 6])
    padded = values.new_full((4, length, 4), 9)
    for i in range(4):
        row = values[offsets[i] : offsets[i + 1]][:length]
        padded[i, : len(row)] = row
    text, inputs, _, _ = harness.build(
        aten._jagged_to_padded_dense_forward.default, (values, [offsets], [length], 9.0), {}
    )
    [got] = harness.run(text, inputs, [padded.to("meta")])
    assert mlir(dtype) in text
    torch.testing.assert_close(got, padded, rtol=0, atol=0)


def test_the_size_of_jagged_values_must_be_given() -> None:
    dense, offsets = torch.ones(2, 3, 4, device="tpu"), torch.tensor([0, 1, 3], device="tpu")
    with pytest.raises(NotImplementedError, match="total_L"):
        aten._padded_dense_to_jagged_forward(dense, [offsets])


def test_what_strided_ones_lack_is_named() -> None:
    x = nested(WEIGHT.to("tpu"), layout=torch.strided)
    with pytest.raises(NotImplementedError, match=r"aten::exp.*strided nested.*torch.jagged"):
        x.exp()
