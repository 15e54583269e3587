"""Connectionist temporal classification: the alpha and beta recursions as loops over time.

States of a sample are its labels with blanks between and around them: state 2k + 1 is label k, even
states are blank. The gradient follows from both recursions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchtpu_core.lowering.cumulative import cumulative_sum
from torchtpu_core.lowering.loss import take_rows
from torchtpu_core.lowering.reduction import max_of
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value

_NEG_INF = -math.inf


def _lengths(b: Builder, lengths: Value | Sequence[int]) -> Value:
    if isinstance(lengths, Value):
        return lengths.to("i32")
    return b.array(np.array(lengths, dtype=np.int32))


def _longest(targets: Value, lengths: Value | Sequence[int]) -> int:
    """The number of labels to make room for."""
    if isinstance(lengths, Value):
        return targets.shape[-1]
    return max(lengths, default=0)


def _labels(b: Builder, targets: Value, lengths: Value, longest: int, blank: int) -> Value:
    """(N, states) i32: the class of each state; blank past a sample's end."""
    n = lengths.shape[0]
    k = b.iota("i32", (n, longest), 1)
    inside = k < b.expand(b.unsqueeze(lengths, 1), (n, longest))
    targets = targets.to("i32")
    if longest == 0 or targets.numel == 0:
        labels = b.constant(blank, "i32", (n, longest))
    elif targets.ndim == 2:
        labels = b.slice_dim(targets, 1, 0, min(longest, targets.shape[1]))
    else:  # concatenated, one sample after the other
        start = b.unsqueeze(cumulative_sum(b, lengths, 0) - lengths, 1)
        labels = take_rows(b, targets, b.select(inside, start + k, 0))
    labels = b.select(inside, labels, blank)
    return (
        b.pad(labels, blank, [0, 1], [0, 1], [0, 1])
        if longest
        else b.constant(blank, "i32", (n, 1))
    )


def _shift(b: Builder, x: Value, by: int, fill) -> Value:
    """x[:, s - by], `fill` outside."""
    n = x.shape[1]
    by = max(-n, min(n, by))
    return b.pad(x, fill, [0, by], [0, -by])


def _log_sum(b: Builder, xs: Sequence[Value]) -> Value:
    top = xs[0]
    for x in xs[1:]:
        top = b.maximum(top, x)
    safe = b.select(top.eq(_NEG_INF), 0.0, top)
    total = b.exp(xs[0] - safe)
    for x in xs[1:]:
        total = total + b.exp(x - safe)
    return b.log(total) + safe


class _Trellis:
    """What both recursions share for one call."""

    def __init__(self, b, log_probs, targets, input_lengths, target_lengths, blank, longest=None):
        self.b = b
        self.steps, self.n, _ = log_probs.shape
        self.inputs = _lengths(b, input_lengths)
        self.targets = _lengths(b, target_lengths)
        longest = _longest(targets, target_lengths) if longest is None else longest
        labels = _labels(b, targets, self.targets, longest, blank)
        self.labels, self.states = labels, labels.shape[1]
        shape = (self.steps, self.n, self.states)
        index = b.unsqueeze(labels, 2)
        self.emit = b.gather(
            log_probs, index, shape, [0], [2], [2], [self.steps, 1, 1], 2, [1], [0]
        )  # log probability of each state's class at each step
        state = b.iota("i32", labels.shape, 1)
        self.state = state
        differs = b.compare(labels, _shift(b, labels, 2, blank), "NE")
        self.skips = differs & (state > 1)  # may be entered from two states before
        end = b.expand(b.unsqueeze(self.targets * 2, 1), labels.shape)
        #: the two states in which a sample may end
        self.final = state.eq(end) | (state.eq(end - 1))

    def scan(self, first: Value, step, forward: bool) -> Value:
        """(steps, N, states): step(t, previous row, emission of t) -> row t, from `first` on."""
        b = self.b
        zero = b.constant(0, "i32")
        begin = b.constant(1 if forward else self.steps - 2, "i32")
        rows = b.constant(_NEG_INF, first.dtype, self.emit.shape)
        edge = zero if forward else b.constant(self.steps - 1, "i32")
        rows = b.dynamic_update_slice(rows, b.unsqueeze(first, 0), [edge, zero, zero])
        size = (1, self.n, self.states)

        def body(t, rows, previous, emit):
            at = [t, b.constant(0, "i32"), b.constant(0, "i32")]
            now = b.reshape(b.dynamic_slice(emit, at, size), previous.shape)
            row = step(t, previous, now)
            return (
                t + (1 if forward else -1),
                b.dynamic_update_slice(rows, b.unsqueeze(row, 0), at),
                row,
                emit,
            )

        def more(t, rows, previous, emit):
            return t < self.steps if forward else t >= 0

        return b.while_([begin, rows, first, self.emit], more, body)[1]

    def row(self, t: int) -> Value:
        b = self.b
        return b.reshape(b.slice_dim(self.emit, 0, t, t + 1), (self.n, self.states))

    def alpha(self) -> Value:
        b = self.b
        started = self.state <= b.unsqueeze((self.targets > 0).to("i32"), 1)
        first = b.select(started, self.row(0), _NEG_INF)

        def step(t, previous, emit):
            skip = b.select(self.skips, _shift(b, previous, 2, _NEG_INF), _NEG_INF)
            return _log_sum(b, [previous, _shift(b, previous, 1, _NEG_INF), skip]) + emit

        return self.scan(first, step, True)

    def beta(self) -> Value:
        b = self.b
        last = b.expand(b.unsqueeze(self.inputs - 1, 1), self.labels.shape)
        leaves = _shift(b, self.skips, -2, False)  # may skip a state

        def ending(t, row, emit):
            return b.select(
                b.splat(t, last.shape).eq(last), b.select(self.final, emit, _NEG_INF), row
            )

        def step(t, previous, emit):
            skip = b.select(leaves, _shift(b, previous, -2, _NEG_INF), _NEG_INF)
            row = _log_sum(b, [previous, _shift(b, previous, -1, _NEG_INF), skip]) + emit
            return ending(t, row, emit)

        emit = self.row(self.steps - 1)
        nothing = b.constant(_NEG_INF, emit.dtype, emit.shape)
        return self.scan(ending(b.constant(self.steps - 1, "i32"), nothing, emit), step, False)

    def log_likelihood(self, alpha: Value) -> Value:
        b = self.b
        time = b.iota("i32", alpha.shape, 0)
        last = b.expand(b.reshape(self.inputs - 1, (1, self.n, 1)), alpha.shape)
        end = max_of(b.select(time.eq(last), alpha, _NEG_INF), [0])
        end = b.select(self.final, end, _NEG_INF)
        top = max_of(end, [1], True)
        safe = b.select(top.eq(_NEG_INF), 0.0, top)
        total = b.reduce_op("add", b.exp(end - safe), [1])
        out = b.log(total) + b.reshape(safe, (self.n,))
        no_input = b.select(self.targets.eq(0), b.constant(0.0, out.dtype, out.shape), _NEG_INF)
        return b.select(self.inputs.eq(0), no_input, out)


@lowering("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(b, log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    trellis = _Trellis(b, log_probs, targets, input_lengths, target_lengths, blank)
    alpha = trellis.alpha()
    return [b.negate(trellis.log_likelihood(alpha)), b.transpose(alpha, (1, 0, 2))]


@lowering("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(
    b,
    grad,
    log_probs,
    targets,
    input_lengths,
    target_lengths,
    nll,
    log_alpha,
    blank,
    zero_infinity=False,
):
    longest = log_alpha.shape[2] // 2
    trellis = _Trellis(b, log_probs, targets, input_lengths, target_lengths, blank, longest)
    _, n, classes = log_probs.shape
    alpha, beta = b.transpose(log_alpha, (1, 0, 2)), trellis.beta()
    loss = b.reshape(nll, (1, n, 1))
    gone = alpha.eq(_NEG_INF) | beta.eq(_NEG_INF)
    posterior = b.select(gone, 0.0, b.exp(alpha + beta + loss - trellis.emit))
    hot = b.iota("i32", (n, trellis.states, classes), 2).eq(b.unsqueeze(trellis.labels, 2))
    with b.products("HIGHEST"):  # probabilities, not activations
        counts = b.dot_general(posterior, hot.to(posterior.dtype), ([2], [1]), ([1], [0]))
    out = b.exp(log_probs) - b.transpose(counts, (1, 0, 2))
    out = out * b.reshape(grad, (1, n, 1))
    infinite = loss.eq(math.inf)
    out = b.select(infinite, 0.0 if zero_infinity else math.nan, out)
    seen = b.iota("i32", out.shape, 0) < b.reshape(trellis.inputs, (1, n, 1))
    return b.select(seen, out, 0.0)
