"""Rules of matrix products and attention: the padding along contracted dimensions is zero in both
operands, and padded keys are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtpu_core.compile.padded.layout import (
    Dim,
    Padded,
    fixed,
    is_padded,
    is_padded_or_open,
    room,
    size,
)
from torchtpu_core.compile.padded.sizes import Inexact
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.stablehlo import Value


def _contracted(w: Walk, x: Any, y: Any, dx: int, dy: int, batch: Sequence[int] = ()):
    """Both operands with equal layouts along what is contracted and along `batch`, and zeros in the
    contracted padding.
    """
    x, y = w.layouts.of(x), w.layouts.of(y)
    pairs = [(dx % x.ndim, dy % y.ndim), *((d, d) for d in batch)]
    differ = [(i, j) for i, j in pairs if x.dims[i] != y.dims[j]]
    if differ:
        x = w.layouts.plain(x, [i for i, _ in differ])
        own = list(y.dims)
        for i, j in differ:
            own[j] = x.dims[i]
        y = w.layouts.as_(y, own)
    return tuple(
        Padded(w.layouts.filled(t, 0, [d % t.ndim]), t.dims) for t, d in ((x, dx), (y, dy))
    )


@rule("mm", "bmm", "mv", "dot", "vdot")
def _matmul(w: Walk, node, x, y):
    op = node.target._opname
    batch = [0] if op == "bmm" else []
    x, y = _contracted(w, x, y, -1, -1 if op in ("mv", "dot", "vdot") else -2, batch)
    dims: list[Dim] = {
        "mm": lambda: [x.dims[0], y.dims[1]],
        "bmm": lambda: [x.dims[0], x.dims[1], y.dims[2]],
        "mv": lambda: [x.dims[0]],
    }.get(op, list)()
    return w.result(node, w.lower(node.target, x.value, y.value), dims)


@rule("addmm", "baddbmm", "addmv")
def _addmm(w: Walk, node, bias, x, y, *, beta=1, alpha=1):
    op = node.target._opname
    x, y = _contracted(w, x, y, -1, -1 if op == "addmv" else -2, [0] if op == "baddbmm" else [])
    dims = list(x.dims[:-1]) if op == "addmv" else [*x.dims[:-1], y.dims[-1]]
    bias = w.layouts.aligned(bias, dims)
    beta, alpha = w.sizes.number(beta), w.sizes.number(alpha)
    v = w.lower(node.target, bias, x.value, y.value, beta=beta, alpha=alpha)
    return w.result(node, v, dims)


# ---- attention -----------------------------------------------------------------------------------


def _attention_operands(w: Walk, q: Any, k: Any, v: Any, bias: Any, causal: bool):
    """(q, k, v, bias, causal) with zeros in padded queries, keys and values and, where there are
    padded keys, a bias that masks them.
    """
    q, k, v = (w.layouts.of(t) for t in (q, k, v))
    q, k, v = (w.layouts.plain(t, [t.ndim - 2, t.ndim - 1]) for t in (q, k, v))
    if not q.dims[:-2] == k.dims[:-2] == v.dims[:-2]:
        q, k, v = map(w.layouts.plain, (q, k, v))
        if any(is_padded(t.dims[-3]) for t in (q, k, v)) and not (
            q.dims[-3] == k.dims[-3] == v.dims[-3]
        ):
            raise Inexact("groups of heads of open size")
    keys, b = k.dims[-2], w.b
    if bias is not None:
        bias = w.layouts.of(bias)
        rows = (*bias.dims[:-2], q.dims[-2], keys)
        bias = w.layouts.aligned(bias, [*rows[: bias.ndim]])
    if is_padded(keys):
        shape = (room(q.dims[-2]), room(keys))
        valid = b.broadcast_in_dim(w.layouts.counts(keys), shape, [1])
        if bias is None:
            bias = valid
        elif bias.dtype == "i1":
            bias = b.and_(*b.broadcast(bias, valid))
        else:
            bias = b.select(valid, bias, float("-inf"))
    return q, k, v, bias, causal


def _clean(w: Walk, x: Padded) -> Value:
    return w.layouts.filled(x, 0, [x.ndim - 2, x.ndim - 1])


def _scale(w: Walk, q: Padded, scale: Any) -> Any:
    """What scores are multiplied by."""
    if scale is not None or not is_padded(q.dims[-1]):
        return w.sizes.number(scale)
    width = w.sizes.count(size(q.dims[-1]), "f64")
    return w.b.rsqrt(width)


@rule("_scaled_dot_product_fused_attention_overrideable")
def _attention(
    w: Walk, node, q, k, v, bias=None, dropout_p=0.0, is_causal=False, *args, scale=None
):
    q, k, v, bias, causal = _attention_operands(w, q, k, v, bias, is_causal)
    values = [_clean(w, t) for t in (q, k, v)]
    out = w.lower(node.target, *values, bias, dropout_p, causal, *args, scale=_scale(w, q, scale))
    rows = q.dims[:-1]
    results: list[Any] = [
        w.result(node, out[0], [*rows, v.dims[-1]], 0),
        w.result(node, out[1], rows if q.ndim == 4 else [fixed(1), *rows], 1),
    ]
    val = node.meta["val"]
    for i in range(2, len(val)):
        if i in (4, 5):
            results.append(size((q, k)[i - 4].dims[-2]))
        else:
            results.append(out[i])
    return results


@rule("_scaled_dot_product_fused_attention_overrideable_backward")
def _attention_backward(w: Walk, node, grad, q, k, v, bias, mask, out, lse, *args, scale=None):
    cum_q, cum_k, _, _, dropout_p, is_causal, seed, offset = args
    if mask[3]:
        raise Inexact("the gradient of an attention bias")
    q, k, v, bias, causal = _attention_operands(w, q, k, v, bias, is_causal)
    rows = [*q.dims[:-1], v.dims[-1]]
    grad, out = (Padded(w.layouts.aligned(t, rows), tuple(rows)) for t in (grad, out))
    own = q.dims[:-1] if q.ndim == 4 else (fixed(1), *q.dims[:-1])
    lse = Padded(w.layouts.aligned(lse, own), tuple(own))
    values = [_clean(w, t) for t in (grad, q, k, v)]
    lse = w.layouts.filled(lse, 0, [lse.ndim - 1])
    n_q, n_k = room(q.dims[-2]), room(k.dims[-2])
    results = w.lower(
        node.target,
        *values,
        bias,
        mask,
        _clean(w, out),
        lse,
        cum_q,
        cum_k,
        n_q,
        n_k,
        dropout_p,
        causal,
        seed,
        offset,
        scale=_scale(w, q, scale),
    )
    layouts = [q.dims, k.dims, v.dims]
    return [
        w.result(node, r, layouts[i], i) if i < 3 and r is not None else r
        for i, r in enumerate(results)
    ]


# ---- Fourier transforms --------------------------------------------------------------------------


@rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fft(w: Walk, node, x, dim, *args):
    """Along dimensions that are not padded, whatever the others are."""
    x = w.layouts.of(x)
    which = [d % x.ndim for d in dim]
    if any(is_padded_or_open(x.dims[d]) for d in which):
        raise Inexact("a transform of open size")
    v = w.lower(node.target, x.value, dim, *args)
    dims = [fixed(n) if d in which else p for d, (p, n) in enumerate(zip(x.dims, v.shape))]
    return w.result(node, v, dims)
