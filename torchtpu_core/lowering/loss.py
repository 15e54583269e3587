"""Losses and their gradients: elementwise losses, negative log likelihood, and margin losses.

CTC is in `ctc.py`. Everything is computed in f32 for low-precision inputs.
"""

from __future__ import annotations

from collections.abc import Callable

from torchtpu_core.lowering.cumulative import scan
from torchtpu_core.lowering.reduction import axes, mean_of, sum_of, wide
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.origins import unmerged
from torchtpu_core.stablehlo.value import Operand

_NONE, _MEAN, _SUM = range(3)


def reduced(x: Value, reduction: int) -> Value:
    """`reduction` as in ATen: 0 none, 1 mean, 2 sum."""
    if reduction == _NONE:
        return x
    return (mean_of if reduction == _MEAN else sum_of)(x, axes(x, None))


def spread_grad(grad: Value, like: Value, reduction: int) -> Value:
    """The gradient of each element of `like` under the loss's reduction."""
    grad = like.b.expand(grad.to(like.dtype), like.shape)
    return grad / max(like.numel, 1) if reduction == _MEAN else grad


# ---- elementwise losses -------------------------------------------------------------------------
# name: (loss of (input, target, parameter), its derivative by the input, name of the parameter)


def _smooth_l1(b, x, t, beta):
    d = b.abs(x - t)
    return b.select(b.compare(d, beta, "LT"), 0.5 * d * d / beta, d - 0.5 * beta)


def _smooth_l1_grad(b, x, t, beta):
    d = x - t
    return b.select(b.compare(b.abs(d), beta, "LT"), d / beta, b.sign(d))


def _huber(b, x, t, delta):
    d = b.abs(x - t)
    return b.select(b.compare(d, delta, "LE"), 0.5 * d * d, delta * (d - 0.5 * delta))


def _huber_grad(b, x, t, delta):
    return b.clamp(b.negate(delta), x - t, delta)


_ELEMENTWISE: dict[str, tuple[Callable[..., Value], Callable[..., Value], str | None]] = {
    "mse_loss": (
        lambda b, x, t, _: (x - t) * (x - t),
        lambda b, x, t, _: 2.0 * (x - t),
        None,
    ),
    "soft_margin_loss": (
        lambda b, x, t, _: b.log1p(b.exp(b.negate(t * x))),
        lambda b, x, t, _: b.negate(t * b.logistic(b.negate(t * x))),
        None,
    ),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_grad, "beta"),
    "huber_loss": (_huber, _huber_grad, "delta"),
}


def _elementwise(
    name: str, fn: Callable[..., Value], derivative: Callable[..., Value], param: str | None
) -> None:
    def operands(b: Builder, x: Value, t: Value, p: Operand | None):
        x, t = b.broadcast(wide(x), wide(t).to(wide(x).dtype))
        return x, t, None if p is None else b.lift(p, x.dtype, x.shape)

    def forward(b, x, t, reduction=_MEAN, p=None):
        return reduced(fn(b, *operands(b, x, t, p)), reduction)

    def backward(b, grad, x, t, reduction, p=None):
        x, t, p = operands(b, x, t, p)
        return derivative(b, x, t, p) * spread_grad(grad, x, reduction)

    runtime = (param,) if param else ()
    lowering(name, runtime=runtime)(forward)
    lowering(f"{name}_backward", runtime=runtime)(backward)


for _name, (_fn, _derivative, _param) in _ELEMENTWISE.items():
    _elementwise(_name, _fn, _derivative, _param)


# ---- binary cross entropy -----------------------------------------------------------------------


def _weighted(x: Value, weight: Value | None) -> Value:
    return x if weight is None else x * x.b.expand(weight.to(x.dtype), x.shape)


@lowering("binary_cross_entropy")
def _bce(b, x, t, weight=None, reduction=_MEAN):
    x = wide(x)
    t = t.to(x.dtype)
    floor = b.constant(-100.0, x.dtype, x.shape)
    log_x, log_1mx = b.maximum(b.log(x), floor), b.maximum(b.log1p(b.negate(x)), floor)
    return reduced(_weighted((t - 1.0) * log_1mx - t * log_x, weight), reduction)


@lowering("binary_cross_entropy_backward")
def _bce_backward(b, grad, x, t, weight=None, reduction=_MEAN):
    x = wide(x)
    slope = (x - t.to(x.dtype)) / b.maximum((1.0 - x) * x, b.constant(1e-12, x.dtype, x.shape))
    return _weighted(slope, weight) * spread_grad(grad, x, reduction)


@lowering("binary_cross_entropy_with_logits")
def _bce_logits(b, x, t, weight=None, pos_weight=None, reduction=_MEAN):
    x = wide(x)
    t = t.to(x.dtype)
    x, t = b.broadcast(x, t)
    # -log sigmoid(x) = max(-x, 0) + log1p(exp(-|x|))
    loss = b.maximum(b.negate(x), b.constant(0, x.dtype, x.shape)) + b.log1p(
        b.exp(b.negate(b.abs(x)))
    )
    if pos_weight is not None:
        loss = loss * (1.0 + (pos_weight.to(x.dtype) - 1.0) * t)
    return reduced(_weighted((1.0 - t) * x + loss, weight), reduction)


# ---- negative log likelihood --------------------------------------------------------------------
# The class dimension is 1, or 0 for a single sample; targets lack it.


def _classes(x: Value) -> int:
    return 1 if x.ndim > 1 else 0


def take_class(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """x[.., index[..], ..] along `dim`; `index` has the other dimensions, values in range.

    For a TPU a sum of which all but one term are 0: it is in the fusion that makes `x`, where a
    gather needs all of `x` (probabilities of a vocabulary, in f32) in memory.
    """
    if b.module.target != "cpu":
        low, high = (b.constant(n, "i32", index.shape) for n in (0, x.shape[dim] - 1))
        source, d = unmerged(x, dim)
        hit = _hit(b, source, b.clamp(low, index.to("i32"), high), d)
        return b.reshape(sum_of(b.select(hit, source, 0), [d]), index.shape)
    others = [i for i in range(x.ndim) if i != dim]
    batch = list(range(len(others)))
    return b.gather(
        x,
        b.unsqueeze(index, index.ndim),
        index.shape,
        [],
        [dim],
        [dim],
        [1] * x.ndim,
        index.ndim,
        others,
        batch,
    )


def _without(x: Value, dim: int) -> list[int]:
    return [n for i, n in enumerate(x.shape) if i != dim]


def _hit(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """As `x`: which elements `index` names along `dim`; it has the other dimensions, or these
    merged."""
    index = b.unsqueeze(b.reshape(index, _without(x, dim)), dim)
    return b.iota("i32", x.shape, dim).eq(b.expand(index, x.shape))


def _kept(b: Builder, target: Value, ignore: int) -> Value:
    return b.compare(target, b.constant(ignore, target.dtype, target.shape), "NE")


def _target_weight(
    b: Builder, x: Value, target: Value, weight: Value | None, ignore: int
) -> tuple[Value, Value]:
    """(target in range, weight of each sample: 0 for ignored ones)."""
    kept = _kept(b, target, ignore)
    index = b.select(kept, target, 0).to("i32")
    if weight is None:
        return index, kept.to(x.dtype)
    w = take_rows(b, weight.to(x.dtype), index)
    return index, b.select(kept, w, 0.0)


def take_rows(b: Builder, table: Value, index: Value) -> Value:
    """table[index] for a 1-d table."""
    return b.gather(
        table, b.unsqueeze(index, index.ndim), index.shape, [], [0], [0], [1], index.ndim
    )


@lowering("nll_loss_forward", "nll_loss2d_forward")
def _nll(b, x, target, weight, reduction, ignore_index):
    x = wide(x)
    index, w = _target_weight(b, x, target, weight, ignore_index)
    picked = take_class(b, x, index, _classes(x)) if x.numel else b.constant(0, x.dtype, w.shape)
    # An ignored sample counts 0 even where its input is infinite.
    losses = b.select(_kept(b, target, ignore_index), b.negate(picked * w), 0.0)
    if reduction == _NONE and x.ndim > 1:
        return [losses, b.constant(0, x.dtype)]
    dims = axes(losses, None)
    total, total_weight = sum_of(losses, dims), sum_of(w, dims)
    return [total / total_weight if reduction == _MEAN else total, total_weight]


@lowering("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(b, grad, x, target, weight, reduction, ignore_index, total_weight):
    dtype = wide(x).dtype
    dim = _classes(x)
    index, w = _target_weight(b, wide(x), target, weight, ignore_index)
    g = b.expand(grad.to(dtype), w.shape) * b.negate(w)
    if reduction == _MEAN:
        g = g / b.splat(total_weight.to(dtype), w.shape)
    source, d = unmerged(x, dim)
    kept, g = (
        b.unsqueeze(b.reshape(v, _without(source, d)), d)
        for v in (_kept(b, target, ignore_index), g)
    )
    hit = _hit(b, source, index, d) & kept
    return b.reshape(b.select(hit, b.expand(g, source.shape), 0.0), x.shape)


# ---- margin losses ------------------------------------------------------------------------------


def _rows(x: Value, ndim: int = 2) -> Value:
    """A single sample as a batch of one."""
    return x if x.ndim >= ndim else x.b.reshape(x, (1,) * (ndim - x.ndim) + x.shape)


def _multi_margin(b: Builder, x: Value, target: Value, margin: Operand, weight: Value | None):
    """For (N, C): (violated margins, weight of each sample (N, 1), is the class the target)."""
    target = b.reshape(target.to("i32"), (x.shape[0],))
    own = b.unsqueeze(take_class(b, x, target, 1), 1)
    hit = b.iota("i32", x.shape, 1).eq(b.unsqueeze(target, 1))
    z = b.lift(margin, x.dtype, x.shape) - own + x
    z = b.select(hit, 0.0, b.maximum(z, b.constant(0, x.dtype, x.shape)))
    w = None if weight is None else b.unsqueeze(take_rows(b, weight.to(x.dtype), target), 1)
    return z, w, hit


@lowering("multi_margin_loss", runtime=("margin",))
def _multi_margin_loss(b, x, target, p=1, margin=1, weight=None, reduction=_MEAN):
    single, x = x.ndim < 2, _rows(wide(x))
    z, w, _ = _multi_margin(b, x, target, margin, weight)
    each = sum_of(_weighted(z if p == 1 else z * z, w), [1]) / x.shape[1]
    out = reduced(each, reduction)
    return b.reshape(out, ()) if single and reduction == _NONE else out


@lowering("multi_margin_loss_backward", runtime=("margin",))
def _multi_margin_loss_backward(b, grad, x, target, p, margin, weight=None, reduction=_MEAN):
    shape, x = x.shape, _rows(wide(x))
    z, w, hit = _multi_margin(b, x, target, margin, weight)
    slope = (z > 0.0).to(x.dtype) if p == 1 else 2.0 * z
    slope = _weighted(slope, w) / x.shape[1]
    slope = b.select(hit, b.negate(sum_of(slope, [1], True)), slope)
    g = grad.to(x.dtype)
    if reduction == _MEAN:
        g = g / x.shape[0]
    return b.reshape(slope * (b.reshape(g, (x.shape[0], 1)) if reduction == _NONE else g), shape)


def _label_set(b: Builder, x: Value, target: Value) -> tuple[Value, Value]:
    """(N, C): which entries come before the first -1 of a row; (N, C, C): the class each names."""
    n, c = x.shape
    listed = scan(b, target >= 0, 1, b.and_, True)
    names = b.iota("i32", (n, c, c), 2).eq(b.unsqueeze(target.to("i32"), 2))
    return listed, names & b.expand(b.unsqueeze(listed, 2), (n, c, c))


def _violations(b: Builder, x: Value, listed: Value, names: Value, is_target: Value) -> Value:
    """(N, listed target, class): how much each class outside the targets violates the margin."""
    own = sum_of(b.select(names, b.expand(b.unsqueeze(x, 1), names.shape), 0.0), [2], True)
    z = 1.0 - own + b.unsqueeze(x, 1)
    counted = b.unsqueeze(listed, 2) & ~b.unsqueeze(is_target, 1)
    return b.select(counted, b.maximum(z, b.constant(0, x.dtype, z.shape)), 0.0)


@lowering("multilabel_margin_loss_forward")
def _multilabel_margin(b, x, target, reduction):
    shape, single = target.shape, x.ndim < 2
    x, target = _rows(_rows(wide(x), 1)), _rows(_rows(target, 1))
    if x.numel == 0:
        each = b.constant(0, x.dtype, (x.shape[0],))
        return [reduced(each, reduction), b.constant(0, x.dtype, shape)]
    listed, names = _label_set(b, x, target)
    is_target = b.reduce_op("or", names, [1])
    each = sum_of(_violations(b, x, listed, names, is_target), [1, 2]) / x.shape[1]
    loss = b.reshape(each, ()) if single and reduction == _NONE else reduced(each, reduction)
    return [loss, b.reshape(is_target.to(x.dtype), shape)]


@lowering("multilabel_margin_loss_backward")
def _multilabel_margin_backward(b, grad, x, target, reduction, is_target):
    shape = x.shape
    x, target, is_target = (_rows(_rows(v, 1)) for v in (wide(x), target, is_target))
    if x.numel == 0:
        return b.reshape(x, shape)
    listed, names = _label_set(b, x, target)
    z = _violations(b, x, listed, names, is_target.to("i1"))
    n, c = x.shape
    slope = (z > 0.0).to(x.dtype) / c
    per_target = b.expand(sum_of(slope, [2], True), names.shape)
    to_targets = sum_of(b.select(names, per_target, 0.0), [1])
    out = sum_of(slope, [1]) - to_targets
    g = grad.to(x.dtype)
    if reduction == _MEAN:
        g = g / n
    return b.reshape(out * (b.reshape(g, (n, 1)) if reduction == _NONE else g), shape)
