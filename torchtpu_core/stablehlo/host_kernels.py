"""What a program on XLA's CPU plugin leaves to PyTorch's own CPU kernels, by custom calls
(csrc/kernels), because XLA's code for it is slow: products and convolutions (up to ten times the
time), attention, whose scores need not be in memory, reductions of batch norm and scatters of
pools, and steps of Adam, whose loops XLA does not vectorise for the weights of convolutions. Small
ones stay with XLA, for whose code a call is too far.

A transpose before a product is part of the call; convolutions keep the channels where they are in
memory. All else is row-major.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu_core.stablehlo import literals as lit
from torchtpu_core.stablehlo.types import TensorType

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder, Value

#: element types of the products meant
_DOT = frozenset(("f32", "f64"))
_CONVOLUTION = frozenset(("f32",))

#: multiplications from which on a call is worth it
_MANY = 1 << 19

#: numbers in a tensor, or in all parameters, from which on a call is worth it
_MANY_NUMBERS = 1 << 14


def takes_dot(
    b: Builder,
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> bool:
    """Whether PyTorch's kernel is to do this `dot_general`. A product with a vector reads its
    matrix once, which XLA does as fast.
    """
    if not b.module.host_kernels or x.dtype not in _DOT:
        return False
    size = [math.prod(v.shape[i] for i in (*c, *p)) for v, c, p in zip((x, y), contract, batch)]
    if 0 in size:
        return False
    rows, columns = x.numel // size[0], y.numel // size[1]
    return min(rows, columns) > 1 and size[0] * rows * columns >= _MANY


def dot_general(
    b: Builder,
    x: Value,
    y: Value,
    shape: Sequence[int],
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> Value:
    """`Builder.dot_general` with a result of this shape."""
    result = TensorType(x.dtype, tuple(shape))
    xs, ys = (_untransposed(v, c, p) for v, c, p in zip((x, y), contract, batch))
    numbers = {
        "lhs_batching_dimensions": xs[2],
        "rhs_batching_dimensions": ys[2],
        "lhs_contracting_dimensions": xs[1],
        "rhs_contracting_dimensions": ys[1],
    }
    operands = (xs[0], ys[0])
    return _call(b, "torchtpu.dot_general", operands, [result], _printed(numbers))[0]


def _untransposed(
    x: Value, contract: Sequence[int], batch: Sequence[int]
) -> tuple[Value, list[int], list[int]]:
    """(x, contract, batch) before transposes that leave the order of all other dimensions."""
    contract, batch = list(contract), list(batch)

    def free(v: Value) -> list[int]:
        return [d for d in range(v.ndim) if d not in contract and d not in batch]

    while x.origin is not None and x.origin[1] is not None:
        source, perm = x.origin
        if [perm[d] for d in free(x)] != sorted(perm[d] for d in free(x)):
            break
        contract, batch = [perm[d] for d in contract], [perm[d] for d in batch]
        x = source
    return x, contract, batch


def takes_convolution(b: Builder, x: Value, y: Value, multiplications: int) -> bool:
    """Whether PyTorch's kernels are to do a convolution, or a gradient of one, in one to three
    spatial dimensions.
    """
    return (
        b.module.host_kernels
        and not b.emulate
        and x.dtype == y.dtype
        and x.dtype in _CONVOLUTION
        and 3 <= x.ndim <= 5
        and multiplications >= _MANY
    )


def convolution(
    b: Builder,
    kind: str,
    x: Value,
    y: Value,
    shape: Sequence[int],
    numbers: dict[str, Sequence[int]],
) -> Value:
    """A result of this shape. kind: "convolution" of x by y, "convolution_input_gradient" from the
    output's gradient x and the weight y, or "convolution_weight_gradient" from the output's
    gradient x and the input y. numbers: PyTorch's stride, padding, dilation and groups.
    """
    data = [x, y] if kind == "convolution_weight_gradient" else [x]
    last = any(v.origin is not None and v.origin[1] == _channels_first(v.ndim) for v in data)
    orders = [_channels_last(v.ndim) if last and v in data else _row_major(v.ndim) for v in (x, y)]
    weight = kind == "convolution_weight_gradient" or not last
    orders.append(_row_major(len(shape)) if weight else _channels_last(len(shape)))
    config = _printed({**numbers, "channels_last": [int(last)]})
    result = TensorType(x.dtype, tuple(shape))
    return _call(b, f"torchtpu.{kind}", (x, y), [result], config, orders)[0]


def takes(b: Builder, *xs: Value | None) -> bool:
    """Whether PyTorch's kernel is to do something to these (x first) as a whole: all of them are
    there, f32, and there is enough to do.
    """
    return (
        b.module.host_kernels
        and all(x is not None and x.dtype == "f32" and x.numel > 0 for x in xs)
        and xs[0] is not None
        and xs[0].numel >= _MANY_NUMBERS
    )


def batch_norm(b: Builder, x: Value, weight: Value, bias: Value, eps: Value) -> list[Value]:
    """In a train step, with eps an f64: the output, and of each channel the mean, the inverse of
    the standard deviation, and the variance without bias.
    """
    types = [x.type, *[weight.type] * 3]
    return _call(b, "torchtpu.batch_norm", (x, weight, bias, eps), types, "")


def batch_norm_backward(
    b: Builder, grad: Value, x: Value, weight: Value, mean: Value, invstd: Value
) -> list[Value]:
    """The gradients of x, weight and bias of a train step."""
    operands = (grad, x, weight, mean, invstd)
    types = [x.type, weight.type, weight.type]
    return _call(b, "torchtpu.batch_norm_backward", operands, types, "")


def max_pool2d_backward(
    b: Builder,
    grad: Value,
    places: Value,
    shape: Sequence[int],
    numbers: dict[str, Sequence[int]],
) -> Value:
    """The gradient of the input [N, C, H, W], of this shape, from the places of the maxima (i64).
    numbers: PyTorch's kernel, stride, padding, dilation (two each) and ceil_mode.
    """
    result = TensorType(grad.dtype, tuple(shape))
    config = _printed(numbers)
    return _call(b, "torchtpu.max_pool2d_backward", (grad, places), [result], config)[0]


def takes_attention(b: Builder, q: Value, k: Value, v: Value) -> bool:
    """Whether PyTorch's kernel is to do attention of q [B, H, L, E], k and v, or its gradient. With
    one query, in decoding, the products are of vectors.
    """
    return (
        b.module.host_kernels
        and not b.emulate
        and all(x.dtype == "f32" and x.ndim == 4 and x.numel > 0 for x in (q, k, v))
        and q.shape[-1] == v.shape[-1]
        and q.shape[-2] > 1
        and q.numel * k.shape[-2] >= _MANY
    )


def attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: Value
) -> tuple[Value, Value]:
    """The output [B, H, L, E], and the log of the sums of exponentials [B, H, L], which is 0 where
    a row has no key. mask: broadcasts to [B, H, L, S] and is added to the scores; scale: f64.
    """
    batch, heads, rows, width = q.shape
    types = [TensorType("f32", (batch, rows, heads, *last)) for last in ((width,), ())]
    out, lse = _attention(b, "torchtpu.attention", [q, k, v], [], mask, causal, scale, types)
    return b.transpose(out, _HEADS), b.transpose(lse, _HEADS[:3])


def attention_backward(
    b: Builder,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    lse: Value,
    mask: Value | None,
    causal: bool,
    scale: Value,
) -> list[Value]:
    """The gradients of q, k and v, from what `attention` got and gave."""
    xs = [grad, q, k, v, out]
    types = [TensorType("f32", tuple(x.shape[d] for d in _HEADS)) for x in (q, k, v)]
    more = [b.transpose(lse, _HEADS[:3])]
    grads = _attention(b, "torchtpu.attention_backward", xs, more, mask, causal, scale, types)
    return [b.transpose(g, _HEADS) for g in grads]


#: [B, L, H, E] as [B, H, L, E], and the inverse
_HEADS = (0, 2, 1, 3)


def _attention(
    b: Builder,
    target: str,
    heads: Sequence[Value],
    more: Sequence[Value],
    mask: Value | None,
    causal: bool,
    scale: Value,
    types: Sequence[TensorType],
) -> list[Value]:
    inside = [x.origin is not None and x.origin[1] == _HEADS for x in heads]
    operands = [x.origin[0] if i else x for x, i in zip(heads, inside)]  # type: ignore[index]
    operands += more
    if mask is not None:
        if mask.dtype == "i1":
            mask = b.select(mask, 0.0, b.constant(-math.inf, "f32"))
        mask = b.reshape(mask.to("f32"), [*[1] * (4 - mask.ndim), *mask.shape])
        operands.append(mask)
    numbers = {
        "heads_inside": [int(i) for i in inside],
        "masked": [int(mask is not None)],
        "causal": [int(causal)],
    }
    return _call(b, target, [*operands, scale], types, _printed(numbers))


def takes_adam(b: Builder, columns: Sequence[Sequence[Value]], steps: Sequence[Value]) -> bool:
    """Whether PyTorch's kernel is to do a step for these parameters, gradients and states."""
    return (
        b.module.host_kernels
        and all(v.dtype == "f32" for column in (*columns, steps) for v in column)
        and all(v.numel == 1 for v in steps)
        and sum(v.numel for v in columns[0]) >= _MANY_NUMBERS
    )


def adam(
    b: Builder,
    columns: Sequence[Sequence[Value]],
    steps: Sequence[Value],
    scalars: Sequence[Value],
    betas: tuple[float, float],
    *,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> list[list[Value]]:
    """columns: parameters, gradients, exp_avgs, exp_avg_sqs and, with amsgrad, max_exp_avg_sqs;
    scalars: lr, weight_decay and eps (f64). Returns the new columns but for the gradients.
    """
    params, grads, *states = columns
    updated = [v for column in (params, *states) for v in column]
    operands = [*scalars, *steps, *grads, *updated]
    first = len(operands) - len(updated)
    n = len(params)
    numbers = {
        "count": [n],
        "amsgrad": [int(amsgrad)],
        "maximize": [int(maximize)],
        "decoupled": [int(decoupled)],
    }
    decay = ", ".join(lit.scalar_text(x, "f64") for x in betas)
    config = f"{_printed(numbers)}, betas = array<f64: {decay}>"
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i}], "
        f"operand_index = {first + i}, operand_tuple_indices = []>"
        for i in range(len(updated))
    )
    types = [v.type for v in updated]
    more = f", output_operand_aliases = [{aliases}]"
    out = _call(b, "torchtpu.fused_adam", operands, types, config, more=more)
    return [out[i : i + n] for i in range(0, len(out), n)]


def _channels_first(ndim: int) -> tuple[int, ...]:
    """The permutation of [N, *S, C] that gives [N, C, *S]."""
    return (0, ndim - 1, *range(1, ndim - 1))


def _channels_last(ndim: int) -> list[int]:
    """The layout of values [N, C, *S] that lie in memory as [N, *S, C]: fastest dimension first."""
    return [1, *range(ndim - 1, 1, -1), 0]


def _row_major(ndim: int) -> list[int]:
    return list(range(ndim))[::-1]


def _call(
    b: Builder,
    target: str,
    operands: Sequence[Value],
    results: Sequence[TensorType],
    config: str,
    layouts: Sequence[Sequence[int]] | None = None,
    more: str = "",
) -> list[Value]:
    """config, more: printed attributes, of the kernel and of the op; layouts: of the operands and
    the results, all row-major by default.
    """
    layouts = layouts or [_row_major(len(v.shape)) for v in (*operands, *results)]
    each = [lit.layout(order) for order in layouts]
    n = len(operands)
    # version 4 has typed attributes and an error to return
    attrs = (
        f"api_version = 4 : i32, backend_config = {{{config}}}, "
        f"operand_layouts = [{', '.join(each[:n])}], result_layouts = [{', '.join(each[n:])}]{more}"
    )
    return b.custom_call(target, operands, results, attrs)


def _printed(numbers: dict[str, Sequence[int]]) -> str:
    return ", ".join(f"{k} = {lit.ints(v)}" for k, v in numbers.items())
