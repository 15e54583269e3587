"""Attention, the fused transformer layers and the recurrent cells equal PyTorch's own composition
on CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from tests.lowering import harness
from tests.lowering.harness import check
from torchtpu_core.lowering import graph
from torchtpu_core.lowering.dtypes import mlir, torch_dtype
from torchtpu_core.stablehlo import Module, TensorType, Value

aten = torch.ops.aten


def lower(op, *args, **kwargs):
    """The tensor results of an op that has no CPU kernel."""
    module, inputs = Module(), [a for a in args if isinstance(a, torch.Tensor)]
    b = module.function("main", [TensorType(mlir(t.dtype), tuple(t.shape)) for t in inputs], True)
    feed = iter(b.args)
    values = [next(feed) if isinstance(a, torch.Tensor) else a for a in args]
    outs = [v for v in graph.lower_op(b, op, values, kwargs) if isinstance(v, Value)]
    b.finish(outs)
    like = [torch.empty(v.shape, dtype=torch_dtype(v.dtype), device="meta") for v in outs]
    return harness.run(str(module), inputs, like)


def close(got, want, rtol=1e-4, atol=1e-5):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w.detach(), rtol=rtol, atol=atol)


def heads(batch=2, q_heads=4, kv_heads=4, length=5, keys=7, size=8, v_size=8, dtype=torch.float32):
    q = torch.randn(batch, q_heads, length, size, dtype=dtype)
    k = torch.randn(batch, kv_heads, keys, size, dtype=dtype)
    return q, k, torch.randn(batch, kv_heads, keys, v_size, dtype=dtype)


MASKS = {
    "none": lambda: None,
    "float": lambda: torch.randn(2, 1, 5, 7),
    "per key": lambda: torch.randn(1, 7),
    "bool": lambda: torch.rand(5, 7) > 0.4,
    "a row of nothing": lambda: torch.arange(5)[:, None] > torch.zeros(5, 7),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fused_attention(mask, kv_heads):
    q, k, v = heads(kv_heads=kv_heads, v_size=6)
    bias = MASKS[mask]()
    wanted = bias is not None and bias.is_floating_point()
    leaves = [t.clone().requires_grad_() for t in ((q, k, v, bias) if wanted else (q, k, v))]
    ref_bias = leaves[3] if wanted else bias
    out = F.scaled_dot_product_attention(*leaves[:3], ref_bias, scale=0.3, enable_gqa=True)
    grad = torch.randn_like(out)
    out.backward(grad)
    op = aten._scaled_dot_product_fused_attention_overrideable
    got, lse, _, _ = lower(op.default, q, k, v, bias, 0.0, False, False, scale=0.3)
    close([got], [out])
    rest = [None, None, 5, 7, 0.0, False, torch.tensor(0), torch.tensor(0)]
    asked = [True, True, True, wanted]
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward.default
    grads = lower(backward, grad, q, k, v, bias, asked, got, lse, *rest, scale=0.3)
    close(grads, [t.grad for t in leaves])


@pytest.mark.parametrize(
    "causal, dtype", list(itertools.product([False, True], [torch.float32, torch.bfloat16]))
)
def test_cpu_flash_attention(causal, dtype):
    q, k, v = heads(keys=5 if causal else 7, dtype=dtype)
    op, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    check(op.default, q, k, v, 0.0, causal)
    out, lse = op(q, k, v, 0.0, causal)
    loose = {} if dtype is torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    check(backward.default, torch.randn_like(out), q, k, v, out, lse, 0.0, causal, **loose)


def test_dropout_is_refused():
    q, k, v = heads()
    op = aten._scaled_dot_product_fused_attention_overrideable.default
    with pytest.raises(NotImplementedError, match="dropout_p"):
        lower(op, q, k, v, None, 0.5)


#: mask_type: (mask, True where not seen)
LAYER_MASKS = {
    None: None,
    0: torch.ones(6, 6, dtype=torch.bool).triu(1),
    1: torch.tensor([[0, 0, 0, 0, 1, 1], [0] * 6]).bool(),
}


@pytest.mark.parametrize("kind", LAYER_MASKS)
def test_transformer_layers(kind):
    x, mask = torch.randn(2, 6, 8), LAYER_MASKS[kind]
    weights = torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)
    for need, average in ((True, True), (True, False)):
        args = x, x, x, 8, 2, *weights, mask, need, average, kind
        check(aten._native_multi_head_attention.default, *args)
    norms = [torch.randn(8) for _ in range(4)]
    ffn = torch.randn(16, 8), torch.randn(16), torch.randn(8, 16), torch.randn(8)
    weights = [w * 0.3 for w in weights]
    for first in (False, True):
        args = x, 8, 2, *weights, True, first, 1e-5, *norms, *ffn, mask, kind
        check(aten._transformer_encoder_layer_fwd.default, *args, rtol=1e-3, atol=1e-4)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize("biased", [True, False])
def test_lstm_cell(biased):
    xi, xh, cx = leaf(3, 20), leaf(3, 20), leaf(3, 5)
    bias = [leaf(20), leaf(20)] if biased else [None, None]
    i, f, g, o = (xi + xh + (bias[0] + bias[1] if biased else 0)).chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    hy = o.sigmoid() * cy.tanh()
    got = lower(aten._thnn_fused_lstm_cell.default, xi, xh, cx, *bias)
    close(got[:2], [hy, cy])
    gh, gc = torch.randn(3, 5), torch.randn(3, 5)
    torch.autograd.backward([hy, cy], [gh, gc])
    backward = aten._thnn_fused_lstm_cell_backward_impl.default
    grads = lower(backward, gh, gc, cx, got[1], got[2], biased)
    close(grads, [xi.grad, cx.grad, *([bias[0].grad] if biased else [])])


def test_lstm_cell_with_one_gradient():
    cx, ws, cy = torch.randn(3, 5), torch.rand(3, 20), torch.randn(3, 5)
    backward, g, zero = (
        aten._thnn_fused_lstm_cell_backward_impl.default,
        torch.randn(3, 5),
        torch.zeros(3, 5),
    )
    close(lower(backward, g, None, cx, cy, ws, True), lower(backward, g, zero, cx, cy, ws, True))
    close(lower(backward, None, g, cx, cy, ws, True), lower(backward, zero, g, cx, cy, ws, True))


@pytest.mark.parametrize("biased", [True, False])
def test_gru_cell(biased):
    xi, xh, hx = leaf(3, 15), leaf(3, 15), leaf(3, 5)
    bias = [leaf(15), leaf(15)] if biased else [None, None]
    ir, iz, i_n = (xi + (bias[0] if biased else 0)).chunk(3, 1)
    hr, hz, hn = (xh + (bias[1] if biased else 0)).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    hy = n + z * (hx - n)
    got, ws = lower(aten._thnn_fused_gru_cell.default, xi, xh, hx, *bias)
    close([got], [hy])
    grad = torch.randn(3, 5)
    hy.backward(grad)
    grads = lower(aten._thnn_fused_gru_cell_backward.default, grad, ws, biased)
    close(grads, [t.grad for t in (xi, xh, hx, *(bias if biased else []))])
