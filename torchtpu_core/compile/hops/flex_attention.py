"""flex_attention by PyTorch's own dense definition, and its gradient on the same dense scores,
traced with the score and mask functions that the graph holds: exact for every score_mod and mask,
at the cost of the whole score matrix. The block mask only says which blocks a kernel may skip, so
it is not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from torchtpu_core.compile.hops import handles
from torchtpu_core.lowering import decompose, graph
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


def _trace(walk: Interpreter, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return decompose.trace(walk.b, fn, args, {}, walk.device)


@lowering("flex_lib::zeros_and_scatter")
def _zeros_and_scatter(b: Builder, shape: Any, indices: Any, values: Value) -> Value:
    """The gradient of a captured buffer, read by index in a score function: zeros of `shape`, with
    `values` added at `indices`.
    """
    zeros = b.constant(0, values.dtype, shape)
    return graph.lower_op(
        b, torch.ops.aten.index_put.default, [zeros, indices, values], {"accumulate": True}
    )


@handles("flex_attention")
def _flex_attention(
    walk: Interpreter,
    node: torch.fx.Node,
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    kernel_options: Any,
    score_buffers: Any = (),
    mask_buffers: Any = (),
) -> Any:
    """(output, logsumexp in base 2, largest scores in base 2)."""
    from torch._higher_order_ops.flex_attention import math_attention

    mask_mod = block_mask[-1]

    def dense(q: Any, k: Any, v: Any, scores: Any, masks: Any) -> Any:
        return math_attention(q, k, v, score_mod, (mask_mod,), scale, {}, scores, masks)

    return _trace(walk, dense, (query, key, value, tuple(score_buffers), tuple(mask_buffers)))


@handles("flex_attention_backward")
def _flex_attention_backward(
    walk: Interpreter,
    node: torch.fx.Node,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    grad_out: Any,
    grad_logsumexp: Any,
    score_mod: Any,
    joint: Any,
    block_mask: Any,
    scale: float,
    kernel_options: Any,
    score_buffers: Any = (),
    mask_buffers: Any = (),
) -> Any:
    """(gradients of query, key and value, those of the score function's buffers or None)."""
    mask_mod = block_mask[-1]
    wanted = [g is not None for g in walk.expected(node)[3]]

    def dense(*args: Any) -> Any:
        *tensors, scores, masks = args
        return _dense_backward(*tensors, score_mod, joint, mask_mod, scale, scores, masks)

    tensors = (query, key, value, out, logsumexp, grad_out, grad_logsumexp)
    grads = _trace(walk, dense, (*tensors, tuple(score_buffers), tuple(mask_buffers)))
    return *grads[:3], tuple(g if w else None for g, w in zip(grads[3:], wanted, strict=True))


def _dense_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
    score_mod: Any,
    joint: Any,
    mask_mod: Any,
    scale: float,
    score_buffers: tuple[Any, ...],
    mask_buffers: tuple[Any, ...],
) -> tuple[Any, ...]:
    """The gradients by the formulas of FlashAttention (Dao et al., 2022, appendix B.2) on the whole
    score matrix, through `joint`, the gradient of score_mod for one score:

        P = exp(S' - L), dV = P^T dO, dS' = P * (dO V^T - rowsum(O * dO) + dL)

    with S' = score_mod(S), -inf where masked, S = scale * Q K^T, and L its logsumexp, which the
    operator keeps in base 2. Shapes: query (B, Hq, M, E), key (B or 1, Hkv, N, E); computed in f32
    (f64 for f64).
    """
    from torch._higher_order_ops.flex_attention import _math_attention_inner
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    kv_batch, kv_heads, groups = key.size(0), key.size(1), query.size(1) // key.size(1)
    k, v = (x.repeat_interleave(groups, 1).expand(query.size(0), -1, -1, -1) for x in (key, value))
    scores, modified = _math_attention_inner(
        query, k, v, score_mod, (mask_mod,), scale, {}, score_buffers, mask_buffers
    )
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    empty = (logsumexp == -math.inf).unsqueeze(-1)
    # A graph keeps L in f32, too coarse for f64.
    norm = modified.logsumexp(-1) if wide == torch.float64 else logsumexp * math.log(2)
    p = torch.exp(modified - norm.unsqueeze(-1)).masked_fill(empty, 0)
    grad_p = grad_out.to(wide) @ v.to(wide).transpose(-2, -1)
    shift = (out.to(wide) * grad_out.to(wide)).sum(-1, keepdim=True)
    if grad_logsumexp is not None:
        shift = shift - (grad_logsumexp / math.log(2)).unsqueeze(-1)
    grad_modified = p * (grad_p - shift)

    at = [torch.arange(n, device=query.device) for n in scores.shape]
    shared = (None,) * len(score_buffers)
    through = _vmap_for_bhqkv(
        joint, prefix=(0,), suffix=(0, *shared), out_dims=[0, None, None, None, None, *shared]
    )
    visible = _vmap_for_bhqkv(mask_mod, prefix=(), suffix=(None,) * len(mask_buffers))
    with TransformGetItemToIndex():
        grad_scores, _, _, _, _, *grad_buffers = through(scores, *at, grad_modified, *score_buffers)
        seen = visible(*at, *mask_buffers)
    grad_scores = torch.where(seen, grad_scores * scale, 0).to(query.dtype)

    def of_heads(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.unflatten(1, (kv_heads, groups)).sum(2)
        return grad.sum(0, keepdim=True) if kv_batch != grad.size(0) else grad

    return (
        grad_scores @ k,
        of_heads(grad_scores.transpose(-2, -1) @ query),
        of_heads(p.to(query.dtype).transpose(-2, -1) @ grad_out),
        *grad_buffers,
    )
