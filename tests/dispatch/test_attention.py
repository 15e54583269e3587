"""scaled_dot_product_attention is one program where it can be, else PyTorch's composition."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchtpu_core


def executions(fn):
    before = torchtpu_core.stats()["executions"]
    fn()
    return torchtpu_core.stats()["executions"] - before


def inputs(dtype=torch.float32, heads=4, device="tpu"):
    q = torch.randn(2, 4, 6, 8, dtype=dtype, device=device)
    k, v = (torch.randn(2, heads, 6, 8, dtype=dtype, device=device) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_one_program_forward_and_backward(options):
    q, k, v = inputs()
    assert executions(lambda: F.scaled_dot_product_attention(q, k, v, **options)) == 1
    leaves = [t.requires_grad_() for t in (q, k, v)]
    hosts = [t.detach().cpu().requires_grad_() for t in leaves]
    out = F.scaled_dot_product_attention(*leaves, **options)
    grad = torch.randn_like(out)
    want = F.scaled_dot_product_attention(*hosts, **options)
    torch.testing.assert_close(out.cpu(), want, rtol=1e-4, atol=1e-5)
    assert executions(lambda: torch.autograd.backward(out, grad)) <= 2
    want.backward(grad.cpu())
    for t, h in zip(leaves, hosts):
        torch.testing.assert_close(t.grad.cpu(), h.grad, rtol=1e-4, atol=1e-5)


def test_grouped_query_heads_and_masks():
    q, k, v = inputs(heads=2)
    hosts = [t.cpu() for t in (q, k, v)]
    for mask in (None, torch.rand(6, 6) > 0.3, torch.randn(2, 1, 6, 6)):
        on_device = None if mask is None else mask.to("tpu")
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=on_device, enable_gqa=True)
        want = F.scaled_dot_product_attention(*hosts, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(out.cpu(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype):
    q, k, v = inputs(dtype)
    out = F.scaled_dot_product_attention(q, k, v)
    want = F.scaled_dot_product_attention(*(t.cpu().float() for t in (q, k, v)))
    assert out.dtype is dtype
    torch.testing.assert_close(out.cpu().float(), want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("floating", [False, True])
def test_rows_that_see_no_key_are_zero(dtype, floating):
    seen = torch.rand(2, 1, 6, 6) > 0.5
    seen[..., 2, :] = False
    mask = torch.where(seen, 0.0, -torch.inf).to(dtype) if floating else seen
    leaves = [t.requires_grad_() for t in inputs(dtype)]
    hosts = [t.detach().cpu().float().requires_grad_() for t in leaves]
    out = F.scaled_dot_product_attention(*leaves, attn_mask=mask.to("tpu"))
    want = F.scaled_dot_product_attention(*hosts, attn_mask=seen)
    assert out[..., 2, :].abs().max().item() == 0
    out.sum().backward()
    want.sum().backward()
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(out.cpu().float(), want, **near)
    for t, h in zip(leaves, hosts):
        torch.testing.assert_close(t.grad.cpu().float(), h.grad, **near)


def test_what_the_program_lacks_goes_by_the_composition():
    q, k, v = inputs()
    assert F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).shape == q.shape
    empty = q[:, :, :0]
    assert F.scaled_dot_product_attention(empty, k, v).shape == empty.shape
    flat = F.scaled_dot_product_attention(q[0], k[0], v[0])
    want = F.scaled_dot_product_attention(q[0].cpu(), k[0].cpu(), v[0].cpu())
    torch.testing.assert_close(flat.cpu(), want, rtol=1e-4, atol=1e-5)


def test_sdpa_kernel_chooses():
    q, k, v = inputs()
    with sdpa_kernel([SDPBackend.MATH]):
        assert executions(lambda: F.scaled_dot_product_attention(q, k, v)) > 1
    with sdpa_kernel([SDPBackend.OVERRIDEABLE]):
        assert executions(lambda: F.scaled_dot_product_attention(q, k, v)) == 1
        with pytest.raises(RuntimeError, match="OVERRIDEABLE"):
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
