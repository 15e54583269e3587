"""Losses and their gradients equal CPU, for every reduction."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import build, check, run

aten = torch.ops.aten
REDUCTIONS = (0, 1, 2)


def grad_for(reduction: int, out: torch.Tensor) -> torch.Tensor:
    return torch.randn(out.shape) if reduction == 0 else torch.tensor(0.7)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "name, extra",
    [
        ("mse_loss", ()),
        ("soft_margin_loss", ()),
        ("smooth_l1_loss", (0.5,)),
        ("smooth_l1_loss", (0.0,)),
        ("huber_loss", (0.8,)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elementwise(name, extra, reduction, dtype):
    x, t = torch.randn(4, 5).to(dtype), torch.randn(4, 5).sign().to(dtype)
    op, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    check(op, x, t, reduction, *extra)
    grad = grad_for(reduction, x).to(dtype)
    check(backward, grad, x, t, reduction, *extra)


@pytest.mark.parametrize(
    "op", [aten.mse_loss.default, aten.soft_margin_loss.default, aten.huber_loss.default]
)
def test_of_nothing(op):
    check(op, torch.empty(0, 3), torch.empty(0, 3), 1)
    check(op, torch.empty(0, 3), torch.empty(0, 3), 2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(reduction, weighted):
    x, t = torch.rand(4, 5), torch.rand(4, 5)
    x[0, 0], t[0, 0], x[0, 1], t[0, 1] = 0.0, 1.0, 1.0, 0.0
    weight = torch.rand(5) if weighted else None
    check(aten.binary_cross_entropy.default, x, t, weight, reduction)
    check(
        aten.binary_cross_entropy_backward.default, grad_for(reduction, x), x, t, weight, reduction
    )
    logits = torch.randn(4, 5) * 30
    check(aten.binary_cross_entropy_with_logits.default, logits, t, weight, weight, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (4,), (0, 4)])
def test_negative_log_likelihood(reduction, weighted, shape):
    x = torch.randn(shape).log_softmax(-1)
    target = torch.randint(0, 4, shape[:-1])
    if target.numel() > 1:
        target[1] = -100
    weight = torch.rand(4) if weighted else None
    check(aten.nll_loss_forward.default, x, target, weight, reduction, -100)
    out, total = aten.nll_loss_forward(x, target, weight, reduction, -100)
    grad = grad_for(reduction, out)
    check(aten.nll_loss_backward.default, grad, x, target, weight, reduction, -100, total)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_negative_log_likelihood_of_images(reduction):
    x, target, weight = (
        torch.randn(2, 4, 3, 5).log_softmax(1),
        torch.randint(0, 4, (2, 3, 5)),
        torch.rand(4),
    )
    target[0, 0, 0] = 2
    check(aten.nll_loss2d_forward.default, x, target, weight, reduction, 2)
    out, total = aten.nll_loss2d_forward(x, target, weight, reduction, 2)
    check(
        aten.nll_loss2d_backward.default,
        grad_for(reduction, out),
        x,
        target,
        weight,
        reduction,
        2,
        total,
    )


def test_an_ignored_sample_counts_nothing_even_at_infinity():
    x = torch.tensor([[float("-inf"), 0.0], [-1.0, -2.0]])
    check(aten.nll_loss_forward.default, x, torch.tensor([0, 1]), None, 1, 0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shape", [(5, 4), (4,)])
def test_multi_margin(reduction, p, shape):
    x, target, weight = torch.randn(shape), torch.randint(0, 4, shape[:-1]), torch.rand(4)
    if reduction or len(shape) == 2:  # CPU and meta kernels disagree on the shape of the other
        check(aten.multi_margin_loss.default, x, target, p, 0.7, weight, reduction)
    grad = grad_for(reduction, target)
    check(aten.multi_margin_loss_backward.default, grad, x, target, p, 0.7, weight, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction):
    x, target = torch.randn(3, 4), torch.tensor([[1, 3, -1, 0], [-1, 2, 0, 1], [0, 1, 2, 3]])
    check(aten.multilabel_margin_loss_forward.default, x, target, reduction)
    out, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
    grad = grad_for(reduction, out)
    check(aten.multilabel_margin_loss_backward.default, grad, x, target, reduction, is_target)


CTC = [
    # targets, input lengths, target lengths, zero_infinity
    (torch.randint(1, 6, (3, 4)), [12, 10, 7], [4, 2, 3], False),
    (torch.randint(1, 6, (9,)), [12, 10, 7], [4, 2, 3], False),
    (torch.full((3, 4), 2), [12, 5, 1], [4, 4, 0], False),
    (torch.full((3, 4), 2), [12, 5, 0], [4, 4, 0], True),
    (torch.zeros((3, 0), dtype=torch.int64), [12, 3, 1], [0, 0, 0], False),
]


@pytest.mark.parametrize("targets, input_lengths, target_lengths, zero_infinity", CTC)
def test_ctc(targets, input_lengths, target_lengths, zero_infinity):
    """`log_alpha` is compared through the gradient made from it: CPU leaves parts of it unset."""
    x, grad = torch.randn(12, 3, 6).log_softmax(-1), torch.rand(3)
    lengths = (input_lengths, target_lengths)
    nll, alpha = aten._ctc_loss(x, targets, *lengths, 0, zero_infinity)
    text, inputs, metas, _ = build(
        aten._ctc_loss.default, (x, targets, *lengths, 0, zero_infinity), {}
    )
    got_nll, got_alpha = run(text, inputs, metas)
    torch.testing.assert_close(got_nll, nll, rtol=1e-4, atol=1e-5)
    args = (grad, x, targets, *lengths, nll, got_alpha, 0, zero_infinity)
    text, inputs, metas, _ = build(aten._ctc_loss_backward.default, args, {})
    want = aten._ctc_loss_backward(grad, x, targets, *lengths, nll, alpha, 0, zero_infinity)
    torch.testing.assert_close(
        run(text, inputs, metas)[0], want, rtol=1e-3, atol=1e-5, equal_nan=True
    )
