"""Factories equal CPU: fills, ranges, spacings, identity matrices, windows."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness

aten = torch.ops.aten
f64, f32, bf16, i64, i32, u8 = (
    torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
)  # fmt: skip
X = torch.zeros(2, 3)

_CALLS = [
    (aten.full.default, ([2, 3], 1.5), {}),
    (aten.full.default, ([2, 0], 7), {}),
    (aten.full.default, ([2], True), {}),
    (aten.full.default, ([2], 2.5 + 1j), {}),
    (aten.full.default, ([2], -1), {"dtype": u8}),
    (aten.full_like.default, (X, float("nan")), {}),
    (aten.full_like.default, (X, 3.7), {"dtype": i32}),
    (aten.new_full.default, (X, [4], float("-inf")), {"dtype": bf16}),
    (aten.zeros.default, ([2, 3],), {"dtype": torch.bool}),
    (aten.ones.default, ([],), {"dtype": torch.complex64}),
    (aten.zeros_like.default, (X,), {"dtype": i64}),
    (aten.ones_like.default, (X,), {}),
    (aten.new_zeros.default, (X, [3]), {}),
    (aten.new_ones.default, (X, [3]), {"dtype": torch.float16}),
    (aten.scalar_tensor.default, (2.5,), {"dtype": f64}),
    (aten.scalar_tensor.default, (7,), {}),
    (aten.eye.default, (3,), {}),
    (aten.eye.m, (2, 4), {"dtype": torch.bool}),
    (aten.eye.m, (3, 0), {"dtype": i64}),
    (aten.arange.default, (5,), {}),
    (aten.arange.default, (5,), {"dtype": bf16}),
    (aten.arange.start, (2, 7.5), {}),
    (aten.arange.start_step, (10, -3, -4), {}),
    (aten.arange.start_step, (0, 1, 0.1), {}),
    (aten.arange.start_step, (0.5, 4.5, 1.5), {"dtype": i64}),
    (aten.arange.start_step, (0.5, 4.5, 1.5), {"dtype": i32}),
    (aten.arange.start_step, (2**40, 2**40 + 3, 1), {}),
    (aten.arange.start_step, (3, 3, 1), {"dtype": f64}),
    (aten.range.step, (1, 2, 0.5), {}),
    (aten.linspace.default, (0, 1, 5), {}),
    (aten.linspace.default, (-3.7, 4.2, 9), {"dtype": i64}),
    (aten.linspace.default, (0, 10, 7), {"dtype": i32}),
    (aten.linspace.default, (50, 1, 50), {"dtype": i64}),  # a step that is whole
    (aten.linspace.default, (3, 9, 1), {}),
    (aten.linspace.default, (3, 9, 0), {}),
    (aten.linspace.default, (5, 5, 2), {"dtype": bf16}),
    (aten.linspace.default, (1 + 2j, 3 - 1j, 4), {}),
    (aten.linspace.Tensor_Scalar, (torch.tensor(2.0), 5, 4), {}),
    (aten.linspace.Tensor_Tensor, (torch.tensor(2), torch.tensor(7.9), 4), {"dtype": i64}),
    (aten.logspace.default, (-2, 3, 6), {}),
    (aten.logspace.default, (0, 3, 4), {"dtype": i64}),
    (aten.logspace.default, (-3.7, 2.2, 9), {"dtype": i64}),
    (aten.logspace.default, (0, 4, 5, 2.0), {"dtype": f64}),
    (aten.hann_window.default, (7,), {}),
    (aten.hann_window.periodic, (7, False), {"dtype": f64}),
    (aten.hann_window.default, (1,), {}),
    (aten.hann_window.default, (0,), {}),
    (aten.hamming_window.periodic_alpha_beta, (8, True, 0.6, 0.3), {}),
    (aten.blackman_window.periodic, (9, False), {}),
    (aten.bartlett_window.default, (6,), {}),
    (aten.kaiser_window.default, (9,), {}),
    (aten.kaiser_window.beta, (8, False, 5.0), {"dtype": f64}),
]


@pytest.mark.parametrize("op,args,kwargs", _CALLS, ids=str)
def test_equals_cpu(op, args, kwargs):
    harness.check(op, *args, **kwargs)
