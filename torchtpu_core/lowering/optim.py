"""Fused optimizer steps and gradient scaling: one program updates every parameter of a list.

Decay rates of averages are compile-time numbers, so that bias corrections are exact; learning
rates, weight decay and eps are
run-time inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torchtpu_core.lowering.pointwise import is_finite, like
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value, host_kernels
from torchtpu_core.stablehlo.value import Operand

_RUNTIME = ("lr", "weight_decay", "eps")


def _steps(
    b: Builder,
    columns: Sequence[Sequence[Value]],
    update: Callable[..., Sequence[Value]],
    maximize: bool,
    grad_scale: Value | None,
    found_inf: Value | None,
    extra: Sequence[Value] = (),
) -> list[list[Value]]:
    """Updates each row (parameter, gradient, state..) of `columns`.

    `update(p, g, *state)`, with one value of `extra` appended, gives the new (p, *state), all in
    the opmath type. Gradients are returned unscaled. Nothing changes when `found_inf` is set.
    """
    out: list[list[Value]] = [[] for _ in columns]
    skip = None if found_inf is None else b.reshape(found_inf, ()).ne(0)
    for i, row in enumerate(zip(*columns)):
        wide = [v.to(opmath(v.dtype)) for v in row]
        p, g, *state = wide
        if grad_scale is not None:
            g = g / like(b, b.reshape(grad_scale, ()), g)
        new = update(p, -g if maximize else g, *state, *extra[i : i + 1])
        results = [new[0], row[1] if grad_scale is None else g, *new[1:]]
        for column, old, value in zip(out, row, results):
            value = value.to(old.dtype)
            column.append(value if skip is None else b.select(skip, old, value))
    return out


def _bias_correction(b: Builder, beta: float, step: Value) -> Value:
    """1 - beta ** step, without cancellation."""
    if beta == 0:
        return like(b, 1, step)
    return -b.expm1(step * math.log(beta))


def _adam(decoupled: bool) -> Callable[..., Any]:
    def lower(
        b, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps,
        *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf,
    ):  # fmt: skip
        def update(p, g, m, v, *rest):
            step = b.reshape(rest[-1], ()).to(p.dtype)
            rate, decay = b.lift(lr, p.dtype), b.lift(weight_decay, p.dtype)
            if decoupled:
                p = p - rate * decay * p
            else:
                g = g + decay * p
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            top = b.maximum(rest[0], v) if amsgrad else v
            denom = b.sqrt(top) / b.sqrt(_bias_correction(b, beta2, step)) + b.lift(eps, p.dtype)
            p = p - (rate / _bias_correction(b, beta1, step)) * m / denom
            return (p, m, v, top) if amsgrad else (p, m, v)

        columns = [params, grads, exp_avgs, exp_avg_sqs] + ([max_exp_avg_sqs] if amsgrad else [])
        scaled = grad_scale is not None or found_inf is not None
        if not scaled and host_kernels.takes_adam(b, columns, state_steps):
            ps, *states = host_kernels.adam(
                b,
                columns,
                state_steps,
                [b.lift(s, "f64") for s in (lr, weight_decay, eps)],
                (beta1, beta2),
                amsgrad=amsgrad,
                maximize=maximize,
                decoupled=decoupled,
            )
            return ps, grads, *states, *([] if amsgrad else [list(max_exp_avg_sqs)])
        out = _steps(b, columns, update, maximize, grad_scale, found_inf, state_steps)
        return (*out,) if amsgrad else (*out, list(max_exp_avg_sqs))

    return lower


lowering("_fused_adam", "_fused_adam.tensor_lr", runtime=_RUNTIME)(_adam(decoupled=False))
lowering("_fused_adamw", "_fused_adamw.tensor_lr", runtime=_RUNTIME)(_adam(decoupled=True))


@lowering(
    "_fused_sgd", "_fused_sgd.tensor_lr", runtime=("lr", "weight_decay", "momentum", "dampening")
)
def _sgd(
    b, params, grads, momentum_buffers,
    *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale,
    found_inf,
):  # fmt: skip
    def update(p, g, *buffers):
        rate, decay, mu, damp = (
            b.lift(s, p.dtype) for s in (lr, weight_decay, momentum, dampening)
        )
        g = g + decay * p
        if not buffers:
            return (p - rate * g,)
        buf = g if is_first_step else mu * buffers[0] + (1 - damp) * g
        return p - rate * (g + mu * buf if nesterov else buf), buf

    columns = [params, grads] + ([momentum_buffers] if momentum_buffers else [])
    out = _steps(b, columns, update, maximize, grad_scale, found_inf)
    return (*out,) if momentum_buffers else (*out, [])


def _adagrad(
    b, params, grads, state_sums, state_steps,
    *, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf,
):  # fmt: skip
    def update(p, g, total, step):
        step = b.reshape(step, ()).to(p.dtype)
        rate = b.lift(lr, p.dtype) / (1 + (step - 1) * b.lift(lr_decay, p.dtype))
        g = g + b.lift(weight_decay, p.dtype) * p
        total = total + g * g
        return p - rate * g / (b.sqrt(total) + b.lift(eps, p.dtype)), total

    return _steps(
        b, [params, grads, state_sums], update, maximize, grad_scale, found_inf, state_steps
    )


_ADAGRAD_RUNTIME = (*_RUNTIME, "lr_decay")
lowering("_fused_adagrad.tensor_lr", runtime=_ADAGRAD_RUNTIME)(_adagrad)


@lowering("_fused_adagrad", runtime=_ADAGRAD_RUNTIME)
def _adagrad_with_steps(b, params, grads, state_sums, state_steps, **options):
    return *_adagrad(b, params, grads, state_sums, state_steps, **options), list(state_steps)


# ---- gradient scaling ---------------------------------------------------------------------------


@lowering("_amp_foreach_non_finite_check_and_unscale")
def _unscale(b, grads, found_inf, inv_scale):
    bad = found_inf.ne(0)
    out = []
    for g in grads:
        finite = b.reduce_op("and", is_finite(b, g), range(g.ndim))
        bad = b.or_(bad, b.reshape(~finite, bad.shape))
        wide = g.to(opmath(g.dtype))
        out.append((wide * like(b, b.reshape(inv_scale, ()), wide)).to(g.dtype))
    return out, b.select(bad, 1, found_inf)


@lowering(
    "_amp_update_scale", runtime=("scale_growth_factor", "scale_backoff_factor", "growth_interval")
)
def _update_scale(
    b, scale, tracker, found_inf, growth: Operand, backoff: Operand, interval: Operand
):
    bad = b.reshape(found_inf, scale.shape).ne(0)
    count = tracker + 1
    due = count.eq(like(b, interval, count))
    grown = scale * like(b, growth, scale)
    good = b.select(b.and_(due, is_finite(b, grown)), grown, scale)
    return (
        b.select(bad, scale * like(b, backoff, scale), good),
        b.select(b.or_(bad, due), 0, count),
    )
