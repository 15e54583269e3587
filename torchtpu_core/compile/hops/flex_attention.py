"""flex_attention and its gradient by PyTorch's own dense definition of both, traced with the score and
mask functions that the graph holds: exact for every score_mod and mask, at the cost of the whole
score matrix. The block mask only says which blocks a kernel may skip, so it is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile.hops import handles
from torchtpu_core.lowering import decompose

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


def _trace(walk: Interpreter, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return decompose.trace(walk.b, fn, args, {}, walk.device)


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
    from torch._higher_order_ops.flex_attention import sdpa_dense_backward

    mask_mod = block_mask[-1]
    wanted = [g is not None for g in walk.expected(node)[3]]

    def dense(*args: Any) -> Any:
        *tensors, scores, masks = args
        # The definition gives gradients to the buffers that require them.
        scores = tuple(
            s.detach().requires_grad_() if w else s for s, w in zip(scores, wanted, strict=True)
        )
        return sdpa_dense_backward(
            *tensors, score_mod, joint, (mask_mod,), scale, {}, scores, masks
        )

    tensors = (query, key, value, out, logsumexp, grad_out, grad_logsumexp)
    return _trace(walk, dense, (*tensors, tuple(score_buffers), tuple(mask_buffers)))
