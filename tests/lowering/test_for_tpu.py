"""Forms that only programs for a TPU have: run here by XLA's CPU plugin, their results are
PyTorch's; and what they are for, in the program's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torchtpu_core import aot
from torchtpu_core.aot.lower import for_tpu


@pytest.fixture
def tpu_form() -> Iterator[None]:
    with for_tpu("highest"):
        yield


def results(fn: Callable[..., torch.Tensor], *args: torch.Tensor, device: str) -> list[Any]:
    """fn's result and the gradients of those of `args` that require them."""
    args = tuple(a.detach().to(device).requires_grad_(a.requires_grad) for a in args)
    out = fn(*args)
    grads = torch.autograd.grad(out.float().sin().sum(), [a for a in args if a.requires_grad])
    return [t.detach().cpu() for t in (out, *grads)]


def same(fn: Callable[..., torch.Tensor], *args: torch.Tensor, **tolerance: float) -> None:
    want = results(fn, *args, device="cpu")
    torch.testing.assert_close(results(fn, *args, device="tpu"), want, **tolerance)


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


TARGETS = torch.tensor([0, 6, -100, 3, 2, 2])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(tpu_form: None, reduction: str, weighted: bool) -> None:
    weight = torch.rand(7, generator=torch.Generator().manual_seed(1)) if weighted else None

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w = None if weight is None else weight.to(x.device)
        return F.cross_entropy(x.flatten(0, 1), y, w, reduction=reduction)

    same(loss, logits(2, 3, 7), TARGETS, rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_images(tpu_form: None) -> None:
    same(F.cross_entropy, logits(2, 7, 3, 1), TARGETS.view(2, 3, 1), rtol=1e-5, atol=1e-6)


def test_an_infinite_log_probability_beside_the_class_counts_nothing(tpu_form: None) -> None:
    x = torch.tensor([[0.5, -torch.inf, 1.0]])
    y = torch.tensor([2])
    got = F.nll_loss(x.to("tpu"), y.to("tpu"))
    torch.testing.assert_close(got.cpu(), F.nll_loss(x, y), rtol=0, atol=0)


def heads(dtype: torch.dtype, queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    """q of 4 heads, k and v of 2."""
    g = torch.Generator().manual_seed(2)
    shapes = ((2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 8))
    return tuple(torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(1)
    if q.shape[2] > 1:
        mask[1] = False  # a row without a key
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


@pytest.mark.parametrize(("queries", "keys"), [(5, 6), (1, 6), (2, 2048)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(tpu_form: None, dtype: torch.dtype, queries: int, keys: int) -> None:
    args = heads(dtype, queries, keys)
    want = results(attention, *(a.detach().double().requires_grad_() for a in args), device="cpu")
    got = results(attention, *args, device="tpu")
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for g, w in zip(got, want):
        torch.testing.assert_close(g.double(), w, rtol=tolerance, atol=tolerance)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = True) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def users(text: str, line: str) -> list[str]:
    """The lines that read what a line makes."""
    name = re.escape(line.split(" = ")[0].strip())
    return [x for x in text.splitlines() if re.search(rf"{name}\b", x.split(" = ", 1)[-1])]


def test_cross_entropy_of_a_batch_of_sequences_is_not_flattened() -> None:
    """Neither in the loss nor in its gradient, and nothing is gathered."""

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(x.flatten(0, 1).float(), y)
        return loss, torch.autograd.grad(loss, [x])

    y = meta(8 * 16, dtype=torch.int64, grad=False)
    text = aot.lowered(step, (meta(8, 16, 100), y)).stablehlo
    assert "stablehlo.gather" not in text
    used = [line for line in text.splitlines() if "(tensor<128x100x" in line]
    assert not used, used


def test_a_train_step_makes_the_probabilities_of_attention_once() -> None:
    """The gradient's are the forward's, term for term, so that the compiler merges them."""

    def step(*args: torch.Tensor) -> Any:
        out = F.scaled_dot_product_attention(*args, is_causal=True)
        return torch.autograd.grad(out.float().sum(), args)

    text = aot.lowered(step, tuple(meta(2, 4, 16, 8) for _ in range(3))).stablehlo
    lines = text.splitlines()
    for log in (line for line in lines if '"stablehlo.log"' in line):
        (lse,) = users(text, log)
        dead = users(text, lse)
        assert all('"stablehlo.reshape"' in line and not users(text, line) for line in dead), dead


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_layers_of_sequences(tpu_form: None, dtype: torch.dtype) -> None:
    """In a graph their products look through what flattens and transposes the sequences."""

    def layers(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, w)), u)

    g = torch.Generator().manual_seed(4)
    args = [(torch.randn(s, generator=g) / 2).to(dtype) for s in ((2, 5, 3), (4, 3), (6, 4))]
    doubles = [a.double().requires_grad_() for a in args]
    want = results(layers, *doubles, device="cpu")
    got = results(torch.compile(layers), *(a.requires_grad_() for a in args), device="tpu")
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for x, w in zip(got, want):
        torch.testing.assert_close(x.double(), w, rtol=tolerance, atol=tolerance)


def test_a_train_step_keeps_the_rounded_output_of_attention() -> None:
    """The gradient reads it behind a barrier, through which the compiler does not see f32."""

    def step(*args: torch.Tensor) -> Any:
        out = F.scaled_dot_product_attention(*args)
        return torch.autograd.grad(out.float().square().sum(), args)

    text = aot.lowered(step, tuple(meta(2, 4, n, 8) for n in (16, 32, 32))).stablehlo
    lines = text.splitlines()
    (barrier,) = (line for line in lines if '"stablehlo.optimization_barrier"' in line)
    assert ": (tensor<2x4x16x8xbf16>) ->" in barrier
    (rounded,) = re.findall(r"optimization_barrier\"\((%\d+)\)", barrier)
    others = [x for x in users(text, f"{rounded} = ") if x != barrier]
    assert users(text, barrier) and not others, others


@pytest.mark.parametrize("positions", [False, True])
def test_a_pool_finds_positions_only_for_who_reads_them(positions: bool) -> None:
    x = torch.empty(2, 3, 8, 8, device="meta")
    program = aot.lowered(lambda x: F.max_pool2d(x, 2, return_indices=positions), (x,))
    assert ("reduce_window" in program.stablehlo) is not positions


@pytest.mark.parametrize("at", [0, 4, -1, -5, 5, -6, 99])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool])
def test_a_row_of_a_cache_is_written_where_it_fits_and_nothing_elsewhere(
    tpu_form: None, at: int, dtype: torch.dtype
) -> None:
    x = torch.arange(30).reshape(2, 5, 3).transpose(0, 2).to(dtype)  # not contiguous
    row = torch.arange(40, 46).reshape(3, 1, 2).to(dtype)
    got, want = x.to("tpu"), x.clone()
    got.index_copy_(1, torch.tensor([at]).to("tpu"), row.to("tpu"))
    if -5 <= at < 5:
        want[:, at] = row[:, 0]
    assert torch.equal(got.cpu(), want)


def test_a_number_of_one_element_is_written_or_stays(tpu_form: None) -> None:
    for at, want in ((0, 7.0), (1, 3.0)):
        x = torch.tensor(3.0).to("tpu")
        x.index_copy_(0, torch.tensor(at).to("tpu"), torch.tensor(7.0).to("tpu"))
        assert x.item() == want


def test_writing_a_row_of_a_cache_reads_none() -> None:
    x, row = (meta(2, n, 3, grad=False) for n in (5, 1))
    at = meta(1, dtype=torch.int64, grad=False)
    text = aot.lowered(lambda x, i, y: x.index_copy(1, i, y), (x, at, row)).stablehlo
    assert "stablehlo.dynamic_slice" not in text
    assert "stablehlo.dynamic_update_slice" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(3, 2, 1, False), (2, 2, 0, True), (3, 1, 1, False), ((2, 3), (3, 2), (1, 0), True)],
)
def test_gradient_of_a_max_pool(
    tpu_form: None, dtype: torch.dtype, kernel: Any, stride: Any, padding: Any, ceil: bool
) -> None:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, 9, 10, generator=g).relu().to(dtype)  # with equals in many windows
    x[0, 0, 4, 4:6] = torch.nan
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2

    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, kernel, stride, padding, 1, ceil)

    def gradient(device: str) -> torch.Tensor:
        leaf = x.to(device).requires_grad_()
        out = pool(leaf)
        weight = torch.arange(out.numel(), dtype=dtype).reshape(out.shape) / out.numel()
        return torch.autograd.grad(out, leaf, weight.to(device))[0].cpu()

    torch.testing.assert_close(gradient("tpu"), gradient("cpu"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradient_of_a_max_pool_in_space(tpu_form: None, batch: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(6)
    x = torch.randn(*batch, 2, 5, 6, 7, generator=g).requires_grad_()
    same(lambda x: F.max_pool3d(x, 3, 2, 1), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "dilation"),
    [
        ((7,), 3, 1, 1),
        ((6, 5), 1, 0, 1),
        ((6, 5), (3, 2), (3, 0), 1),  # more padding than the window
        ((8, 9), (2, 3), (0, 1), (3, 2)),
        ((4, 5, 3), 2, 1, 1),
    ],
)
def test_gradient_of_a_convolutions_weight(
    tpu_form: None, dtype: torch.dtype, size: Any, kernel: Any, padding: Any, dilation: Any
) -> None:
    convolution = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    g = torch.Generator().manual_seed(7)
    kernels = (kernel,) * len(size) if isinstance(kernel, int) else kernel
    x = torch.randn(2, 3, *size, generator=g).to(dtype).requires_grad_()
    w = torch.randn(4, 3, *kernels, generator=g).to(dtype).requires_grad_()

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return convolution(x, w, None, 1, padding, dilation)

    want = results(layer, *(a.detach().double().requires_grad_() for a in (x, w)), device="cpu")
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for got, true in zip(results(layer, x, w, device="tpu"), want):
        torch.testing.assert_close(got.double(), true, rtol=tolerance, atol=tolerance * 4)


def test_the_gradient_of_a_weight_has_the_order_of_the_weight() -> None:
    """Input channels innermost in memory, but where a TPU has them further out to save space."""

    def layouts(*kernel: int) -> list[str]:
        x, w = meta(2, kernel[1], 9, 9, grad=False), meta(*kernel)

        def step(x: torch.Tensor, w: torch.Tensor) -> Any:
            return torch.autograd.grad(F.conv2d(x, w, None, 1, 1).sum(), [w])

        text = aot.lowered(step, (x, w)).stablehlo
        return re.findall(r"LayoutConstraint.*result_layouts = \[dense<(\[.*?\])>", text)

    assert layouts(64, 64, 3, 3) == layouts(512, 256, 1, 1) == ["[1, 0, 3, 2]"]
    assert layouts(64, 3, 7, 7) == layouts(256, 64, 1, 1) == []


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_weight_of_one_element_is_a_matrix_in_memory(memory_format: torch.memory_format) -> None:
    """Its sizes of 1 lead: a TPU's tiles hold the last two dimensions."""
    x = torch.empty(2, 3, 5, 5, device="meta")
    w = torch.empty(4, 3, 1, 1, device="meta").to(memory_format=memory_format)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w.mul_(2))

    text = aot.lowered(step, (x, w)).stablehlo
    (head,) = (line for line in text.splitlines() if "func.func public" in line)
    assert re.search(r"tensor<1x1x4x3xf32> \{tf.aliasing_output", head), head
    assert "tensor<4x3x1x1xf32>" not in head
