"""Scaled dot product attention, forward and backward, and the fused inference layers of
nn.Transformer.

Scores and softmax are computed in f32; the probabilities are rounded to the inputs' type for the
second product. A row with every key masked gives zeros.
"""

from __future__ import annotations

import math

import torch

from torchtpu_core.lowering.matmul import dot, matmul
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value, host_kernels
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand

#: of fewer keys the product's fusion has the softmax in it whatever makes them
_MANY_KEYS = 2048


def _no_dropout(op: str, p: float) -> None:
    if p > 0:
        raise NotImplementedError(
            f"{op}: dropout_p={p} is not lowered; the math implementation has it"
        )


def _scale(q: Value, scale: Operand | None) -> Operand:
    return scale if scale is not None else 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0


def _by_key_head(b: Builder, x: Value, heads: int) -> Value:
    """[.., H, L, E] -> [.., heads, H/heads, L, E]: the query heads that share a key head. They stay
    a dimension of their own, which costs no copy on a TPU, unlike rows of one matrix."""
    if heads == x.shape[-3]:
        return x
    return b.reshape(x, [*x.shape[:-3], heads, x.shape[-3] // heads, *x.shape[-2:]])


def _by_head(b: Builder, x: Value, like: Value) -> Value:
    """The inverse of `_by_key_head`, for `like` [.., H, L, E]."""
    return b.reshape(x, [*like.shape[:-1], x.shape[-1]])


def _product(b: Builder, x: Value, y: Value, adj_y: bool = False) -> Value:
    """x [.., K, G, L, E] or [.., K, L, E] times y [.., K, E, S] (with `adj_y` its transpose
    [.., K, S, E]): as x, with S in place of E."""
    batch = list(range(y.ndim - 2))
    return dot(b, x, y, ((-1,), (-1 if adj_y else -2,)), (batch, batch))


def _product_by_key(b: Builder, x: Value, y: Value, like: Value) -> Value:
    """The transpose of x [.., K, G, L, S] times y [.., K, G, L, E], summed over the query heads of
    each key head: as `like` [.., K, S, E]."""
    n = like.ndim - 2
    over = range(n, x.ndim - 1)
    return dot(b, x, y, (over, over), (range(n), range(n)))


def _scores(
    b: Builder, q: Value, k: Value, bias: Value | None, causal: bool, scale: Operand | None
) -> Value:
    """Masked, scaled scores [.., K, G, L, S] of q [.., K, G, L, E]. What a mask hides is the lowest
    finite number: a softmax then needs no step that asks about rows of -inf, so that a TPU has all
    of it in the product's fusion.
    """
    s = _product(b, q, k, adj_y=True)
    s = s * b.lift(_scale(q, scale), s.dtype)
    hidden = b.constant(-T.finfo_max(s.dtype), s.dtype)
    if bias is not None and bias.dtype == "i1":
        s = b.select(bias, s, hidden)
    elif bias is not None:
        s = b.maximum(*b.broadcast(s + bias.to(s.dtype), hidden))
    return b.select(_below_diagonal(b, *s.shape[-2:]), s, hidden) if causal else s


def _below_diagonal(b: Builder, rows: int, cols: int) -> Value:
    return b.iota("i32", (rows, cols), 0) >= b.iota("i32", (rows, cols), 1)


def _masks(
    b: Builder, bias: Value | None, causal: bool, q: Value, k: Value
) -> tuple[Value | None, bool, Value | None]:
    """(bias, causal, empty): a bias for scores [.., H, L, S], ready to broadcast to [.., K, G, L,
    S], of which a causal mask beside it is part, and the rows that have no key, [.., 1].
    """
    if bias is None:
        return None, causal, None
    if causal:
        none = False if bias.dtype == "i1" else -math.inf
        bias = b.select(_below_diagonal(b, q.shape[-2], k.shape[-2]), bias, none)
    heads = k.shape[-3]
    if heads != q.shape[-3] and bias.ndim > 2:
        bias = b.unsqueeze(bias, -3) if bias.shape[-3] == 1 else _by_key_head(b, bias, heads)
    if bias.dtype == "i1":
        return bias, False, ~b.reduce_op("or", bias, [-1], keepdim=True)
    return bias, False, b.reduce_op("maximum", bias, [-1], keepdim=True).eq(-math.inf)


def _exponentials(b: Builder, s: Value) -> tuple[Value, Value, Value]:
    """Of scores [.., S]: their exponentials less the greatest, the sum of these and the log of the
    scores' own sum of exponentials, both [.., 1].
    """
    last = [s.ndim - 1]
    top = b.reduce_op("maximum", s, last, keepdim=True)
    p = b.exp(s - top)
    total = b.reduce_op("add", p, last, keepdim=True)
    return p, total, top + b.log(total)


def _power_and_rest(b: Builder, x: Value) -> tuple[Value, Value]:
    """Each number x >= 1 (f32) as a power of two, given by its inverse, times a rest in [1, 2).

    Probabilities that are rounded before the product are divided by this part of their sum, which
    leaves the largest of them exact where it is almost 1 (gradients are differences of such), and
    the product by the rest. They depend on the sum all the same, so that a TPU's compiler makes the
    exponentials once for both. Both come from the bits, exactly.
    """
    bits = b.bitcast(x, "i32")
    inverse = b.bitcast(0x7F000000 - (bits & 0x7F800000), "f32")
    return inverse, b.bitcast((bits & 0x007FFFFF) | 0x3F800000, "f32")


def _kept(b: Builder, q: Value, k: Value) -> Value:
    """Keys, for a TPU in memory where they are many: with what makes them (rotary positions) in the
    product's fusion the compiler leaves the softmax of long rows out of it.
    """
    if b.module.target == "cpu" or k.shape[-2] < _MANY_KEYS or q.shape[-2] == 1:
        return k
    return b.barrier([k])[0]


def attend(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    causal: bool,
    scale: Operand | None,
) -> tuple[Value, Value]:
    """(output [.., H, L, Ev], log of the softmax denominator [.., H, L]), both in the accumulation
    type."""
    if host_kernels.takes_attention(b, q, k, v):
        return host_kernels.attention(b, q, k, v, bias, causal, b.lift(_scale(q, scale), "f64"))
    k = _kept(b, q, k)
    grouped = _by_key_head(b, q, k.shape[-3])
    bias, causal, empty = _masks(b, bias, causal, q, k)
    s = _scores(b, grouped, k, bias, causal, scale)
    if not k.shape[-2]:
        lse = b.constant(-math.inf, s.dtype, q.shape[:-1])
        return b.constant(0, s.dtype, (*q.shape[:-1], v.shape[-1])), lse
    p, total, lse = _exponentials(b, s)
    if v.dtype == p.dtype or q.shape[-2] == 1:  # one query, in decoding: not worth a kernel more
        out = _product(b, (p / total).to(v.dtype), v)
    else:
        inverse, rest = _power_and_rest(b, total)
        out = _product(b, (p * inverse).to(v.dtype), v) / rest
    if empty is not None:
        out, lse = b.select(empty, 0, out), b.select(empty, -math.inf, lse)
    return _by_head(b, out, q), b.squeeze(_by_head(b, lse, q), [-1])


def attend_backward(
    b: Builder,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    out: Value,
    lse: Value,
    causal: bool,
    scale: Operand | None,
    of_scores: bool = False,
) -> tuple[Value, Value, Value, Value | None]:
    """Gradients of q, k, v and, if asked, of the scores [.., H, L, S]."""
    if not of_scores and host_kernels.takes_attention(b, q, k, v):
        factor = b.lift(_scale(q, scale), "f64")
        dq, dk, dv = host_kernels.attention_backward(
            b, grad, q, k, v, out, lse, bias, causal, factor
        )
        return dq, dk, dv, None
    k = _kept(b, q, k)
    heads, like = k.shape[-3], q
    bias, causal, empty = _masks(b, bias, causal, q, k)
    q, grad, out = (_by_key_head(b, x, heads) for x in (q, grad, out))
    s = _scores(b, q, k, bias, causal, scale)
    if s.dtype == "f64" or b.module.target != "cpu":
        # The operator's schema keeps lse in f32. And a TPU's compiler has exponentials and their
        # sum in the product's fusion, shared with the forward's in a train step, which is then rid
        # of lse: that takes a slow pass of its own over the scores.
        p, total, _ = _exponentials(b, s)
        p = p / total
    else:
        p = b.exp(s - _by_key_head(b, b.unsqueeze(lse, lse.ndim), heads))
    if empty is not None:
        p = b.select(empty, 0, p)
    delta = b.reduce_op("add", grad.to(s.dtype) * out.to(s.dtype), [out.ndim - 1], keepdim=True)
    dp = _product(b, grad, v, adj_y=True)
    ds = p * (dp - delta)
    factor = b.lift(_scale(q, scale), s.dtype)
    p, gs = p.to(q.dtype), ds.to(q.dtype)
    dv = _product_by_key(b, p, grad, v)
    dq = _product(b, gs, k) * factor
    dk = _product_by_key(b, gs, q, k) * factor
    return _by_head(b, dq, like), dk, dv, _by_head(b, ds, like)


def _rounded(b: Builder, out: Value, q: Value) -> Value:
    """`attend`'s output in the type of the queries. For a TPU nothing looks behind that: a train
    step else keeps for the gradient what was rounded, in f32.
    """
    narrow = out.to(q.dtype)
    if narrow is out or b.module.target == "cpu" or q.shape[-2] == 1:
        return narrow
    return b.barrier([narrow])[0]


def _unbroadcast(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    """The sum of `x` over the dimensions in which `shape` was broadcast."""
    lead = x.ndim - len(shape)
    dims = [i for i in range(x.ndim) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1)]
    return b.reshape(b.reduce_op("add", x, dims), shape)


@lowering("_scaled_dot_product_fused_attention_overrideable", runtime=("scale",))
def _fused(b, q, k, v, bias=None, dropout_p=0.0, is_causal=False, debug_mask=False, *, scale=None):
    _no_dropout("_scaled_dot_product_fused_attention_overrideable", dropout_p)
    out, lse = attend(b, q, k, v, bias, is_causal, scale)
    if q.ndim == 3:
        lse = b.unsqueeze(lse, 0)
    zero = b.constant(0, "i64")
    return _rounded(b, out, q), lse, None, None, q.shape[-2], k.shape[-2], zero, zero, None


@lowering("_scaled_dot_product_fused_attention_overrideable_backward", runtime=("scale",))
def _fused_backward(
    b,
    grad,
    q,
    k,
    v,
    bias,
    mask,
    out,
    lse,
    cum_q,
    cum_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    seed,
    offset,
    *,
    scale=None,
):
    _no_dropout("_scaled_dot_product_fused_attention_overrideable_backward", dropout_p)
    if q.ndim == 3:
        lse = b.squeeze(lse, [0])
    biased = bias is not None and bias.dtype != "i1" and mask[3]
    *grads, ds = attend_backward(b, grad, q, k, v, bias, out, lse, is_causal, scale, biased)
    gb = _unbroadcast(b, ds, bias.shape) if biased else None
    return tuple(g if wanted else None for g, wanted in zip((*grads, gb), mask))


@lowering("_scaled_dot_product_flash_attention_for_cpu", runtime=("scale",))
def _flash(b, q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    _no_dropout("_scaled_dot_product_flash_attention_for_cpu", dropout_p)
    out, lse = attend(b, q, k, v, attn_mask, is_causal, scale)
    return _rounded(b, out, q), lse


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward", runtime=("scale",))
def _flash_backward(
    b, grad, q, k, v, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    _no_dropout("_scaled_dot_product_flash_attention_for_cpu_backward", dropout_p)
    return attend_backward(b, grad, q, k, v, attn_mask, out, lse, is_causal, scale)[:3]


# ---- nn.MultiheadAttention and nn.TransformerEncoderLayer in inference ---------------------------


def _affine(b: Builder, x: Value, w: Value, bias: Value | None) -> Value:
    """`x @ w.T + bias`, rounded to x's type."""
    out = dot(b, x, w, ((-1,), (-1,)))
    return (out if bias is None else out + bias.to(out.dtype)).to(x.dtype)


def _heads(b: Builder, x: Value, n: int) -> Value:
    """[B, L, H * E] -> [B, H, L, E]."""
    return b.transpose(b.reshape(x, [*x.shape[:2], n, x.shape[2] // n]), [0, 2, 1, 3])


@lowering("_transform_bias_rescale_qkv")
def _transform_bias_rescale_qkv(b, qkv, bias, num_heads):
    x = qkv.to(opmath(qkv.dtype)) + bias.to(opmath(qkv.dtype))
    e = x.shape[2] // 3
    q, k, v = (_heads(b, b.slice_dim(x, 2, i * e, (i + 1) * e), num_heads) for i in range(3))
    return tuple(t.to(qkv.dtype) for t in (q * (1 / math.sqrt(e // num_heads)), k, v))


def _masked_probabilities(b: Builder, s: Value, mask: Value | None, kind: int | None) -> Value:
    """softmax with True in `mask` meaning "not seen"; kind 0: [L, S], 1: [B, S], 2: as the scores
    [B, H, L, S]."""
    if mask is not None:
        mask = mask.to("i1")
        if kind == 1:
            mask = b.reshape(mask, [mask.shape[0], 1, 1, mask.shape[1]])
        s = b.select(b.expand(mask, s.shape), -math.inf, s)
    p = b.exp(s - b.reduce_op("maximum", s, [3], keepdim=True))
    return p / b.reduce_op("add", p, [3], keepdim=True)


@lowering("_native_multi_head_attention")
def _native_multi_head_attention(
    b,
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
):
    if query.numel == 0:
        return query, b.constant(0, query.dtype, [0])
    e, parts = embed_dim, []
    for i, x in enumerate((query, key, value)):
        w, c = (b.slice_dim(t, 0, i * e, (i + 1) * e) for t in (qkv_weight, qkv_bias))
        parts.append(_heads(b, _affine(b, x, w, c), num_head))
    q, k, v = parts
    s = matmul(b, q, k, adj_y=True) * (1 / math.sqrt(e // num_head))
    p = _masked_probabilities(b, s, mask, mask_type)
    context = b.transpose(matmul(b, p.to(v.dtype), v), [0, 2, 1, 3])
    context = b.reshape(context, [*query.shape[:2], e]).to(query.dtype)
    out = _affine(b, context, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    if average_attn_weights:
        p = b.reduce_op("add", p, [1]) / num_head
    return out, p.to(query.dtype)


@lowering("_transformer_encoder_layer_fwd")
def _transformer_encoder_layer(
    b,
    src,
    embed_dim,
    num_heads,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    use_gelu,
    norm_first,
    eps,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask=None,
    mask_type=None,
):
    from torchtpu_core.lowering.graph import lower_op

    aten = torch.ops.aten

    def norm(x: Value, w: Value, c: Value) -> Value:
        args = (x, [embed_dim], w, c, eps)
        return lower_op(b, aten.native_layer_norm.default, args, {})[0].to(x.dtype)

    def attention(x: Value) -> Value:
        return _native_multi_head_attention(
            b,
            x,
            x,
            x,
            embed_dim,
            num_heads,
            qkv_weight,
            qkv_bias,
            proj_weight,
            proj_bias,
            mask,
            False,
            True,
            mask_type,
        )[0]

    def feed_forward(x: Value) -> Value:
        h = _affine(b, x, ffn_weight_1, ffn_bias_1)
        act = aten.gelu.default if use_gelu else aten.relu.default
        return _affine(b, lower_op(b, act, (h,), {}).to(x.dtype), ffn_weight_2, ffn_bias_2)

    x = src
    if norm_first:
        x = x + attention(norm(x, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(x + attention(x), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)
