"""Fused LSTM and GRU cells, forward and backward. PyTorch's layers (lstm, gru, rnn_tanh) call them
step by step on this device.

The workspaces are ours alone: the LSTM's holds the activated gates (i, f, g, o), the GRU's the
reset, update and new gates, the previous state and the hidden part of the new gate.
"""

from __future__ import annotations

from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value


def _split(b: Builder, x: Value, n: int) -> list[Value]:
    size = x.shape[1] // n
    return [b.slice_dim(x, 1, i * size, (i + 1) * size) for i in range(n)]


def _wide(x: Value | None) -> Value | None:
    return None if x is None else x.to(opmath(x.dtype))


def _sum(*xs: Value | None) -> Value:
    total = None
    for x in map(_wide, xs):
        if x is not None:
            total = x if total is None else total + x
    return total


@lowering("_thnn_fused_lstm_cell")
def _lstm_cell(b, input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    dtype = cx.dtype
    i, f, g, o = _split(b, _sum(input_gates, hidden_gates, input_bias, hidden_bias), 4)
    i, f, g, o = b.logistic(i), b.logistic(f), b.tanh(g), b.logistic(o)
    cy = f * _wide(cx) + i * g
    hy = o * b.tanh(cy)
    return hy.to(dtype), cy.to(dtype), b.concatenate([i, f, g, o], 1).to(dtype)


@lowering("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(b, grad_hy, grad_cy, cx, cy, workspace, has_bias):
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = _split(b, _wide(workspace), 4)
    gh, gc, cx, cy = map(_wide, (grad_hy, grad_cy, cx, cy))
    t = b.tanh(cy)
    if gh is None:
        go = b.constant(0, o.dtype, o.shape)
    else:
        go = gh * t * o * (1 - o)
        through = gh * o * (1 - t * t)
        gc = through if gc is None else gc + through
    gates = [gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), go]
    grad_gates = b.concatenate(gates, 1)
    bias = b.reduce_op("add", grad_gates, [0]) if has_bias else None
    return _rounded(workspace.dtype, grad_gates, gc * f, bias)


def _rounded(dtype: str, *xs: Value | None) -> tuple:
    return tuple(None if x is None else x.to(dtype) for x in xs)


@lowering("_thnn_fused_gru_cell")
def _gru_cell(b, input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    ir, iz, i_n = _split(b, _sum(input_gates, input_bias), 3)
    hr, hz, hn = _split(b, _sum(hidden_gates, hidden_bias), 3)
    r, z = b.logistic(ir + hr), b.logistic(iz + hz)
    n, h = b.tanh(i_n + r * hn), _wide(hx)
    hy = n + z * (h - n)
    return _rounded(hx.dtype, hy, b.concatenate([r, z, n, h, hn], 1))


@lowering("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(b, grad_hy, workspace, has_bias):
    r, z, n, h, hn = _split(b, _wide(workspace), 5)
    grad = _wide(grad_hy)
    gz = grad * (h - n) * z * (1 - z)
    gn = grad * (1 - z) * (1 - n * n)
    gr = gn * hn * r * (1 - r)
    gi, gh = b.concatenate([gr, gz, gn], 1), b.concatenate([gr, gz, gn * r], 1)
    bi = bh = None
    if has_bias:
        bi, bh = b.reduce_op("add", gi, [0]), b.reduce_op("add", gh, [0])
    return _rounded(workspace.dtype, gi, gh, grad * z, bi, bh)
