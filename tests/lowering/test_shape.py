"""Shape ops equal CPU: tables of calls, each run through its lowering."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness

aten = torch.ops.aten


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    n = torch.Size(shape).numel()
    return (torch.arange(n) % 90 + 1).to(dtype).reshape(shape)


BOOL = torch.tensor([[True, False, True], [False, False, True]])
CPX = torch.complex(t(2, 3, 4), -t(2, 3, 4))
NAN = torch.tensor([1.0, float("nan"), float("inf")])

_CALLS = {
    "view": (aten.view_copy.default, t(2, 6), [3, -1]),
    "view of nothing": (aten.view_copy.default, t(0, 6), [3, 0]),
    "view as ints": (aten.view_copy.dtype, t(2, 6), torch.int32),
    "view as bytes": (aten.view_copy.dtype, t(2, 6), torch.uint8),
    "view as wider": (aten.view_copy.dtype, t(2, 6, dtype=torch.int16), torch.int32),
    "permute": (aten.permute_copy.default, t(2, 3, 4), [-1, 0, 1]),
    "transpose scalar": (aten.transpose_copy.int, t(), 0, -1),
    "t of a vector": (aten.t_copy.default, t(4)),
    "expand": (aten.expand_copy.default, t(3, 1), [2, -1, 4]),
    "squeeze": (aten.squeeze_copy.default, t(1, 3, 1)),
    "squeeze dim": (aten.squeeze_copy.dim, t(1, 3, 1), -1),
    "squeeze dim of 3": (aten.squeeze_copy.dim, t(1, 3, 1), 1),
    "squeeze dims": (aten.squeeze_copy.dims, t(1, 3, 1), [0, -1]),
    "squeeze scalar": (aten.squeeze_copy.dim, t(), 0),
    "unsqueeze": (aten.unsqueeze_copy.default, t(3), -1),
    "select": (aten.select_copy.int, t(2, 3, 4), -1, -2),
    "slice": (aten.slice_copy.Tensor, t(7, 3), 0, -6, 100, 2),
    "empty slice": (aten.slice_copy.Tensor, t(7, 3), 0, 5, 2),
    "split": (aten.split_copy.Tensor, t(7, 3), 3, 0),
    "split with sizes": (aten.split_with_sizes_copy.default, t(2, 7), [3, 0, 4], -1),
    "unbind": (aten.unbind_copy.int, t(2, 3), 1),
    "diagonal": (aten.diagonal_copy.default, t(3, 4, 5), -1, 1, -1),
    "diagonal out of range": (aten.diagonal_copy.default, t(3, 4), 9),
    "diagonal scatter": (aten.diagonal_scatter.default, t(3, 4), -t(3), 1),
    "diagonal backward": (aten.diagonal_backward.default, t(2, 3), [3, 2, 4], 1, 0, 2),
    "diag embed": (aten.diag_embed.default, t(2, 3), -1, 0, 2),
    "unfold": (aten.unfold_copy.default, t(9, 2), 0, 4, 2),
    "unfold apart": (aten.unfold_copy.default, t(2, 9), -1, 2, 3),
    "unfold wide": (aten.unfold_copy.default, t(2, 90, 2), 1, 40, 1),
    "unfold scalar": (aten.unfold_copy.default, t(), 0, 1, 1),
    "unfold backward": (aten.unfold_backward.default, t(3, 2, 4), [9, 2], 0, 4, 2),
    "unfold backward apart": (aten.unfold_backward.default, t(2, 3, 2), [2, 9], 1, 2, 3),
    "unfold backward few": (aten.unfold_backward.default, t(2, 40), [41], 0, 40, 1),
    "unfold backward wide": (aten.unfold_backward.default, t(2, 51, 40), [2, 90], 1, 40, 1),
    "as strided": (aten.as_strided_copy.default, t(20), [3, 4], [5, 1], 2),
    "as strided scatter": (aten.as_strided_scatter.default, t(20), -t(3, 4), [3, 4], [5, 1], 2),
    "view as real": (aten.view_as_real_copy.default, CPX),
    "view as complex": (aten.view_as_complex_copy.default, t(3, 2)),
    "cat": (aten.cat.default, [t(2, 3), t(0), t(1, 3, dtype=torch.int64)], 0),
    "cat of nothing": (aten.cat.default, [t(0), t(0)], 0),
    "cat bool and int": (aten.cat.default, [BOOL, t(2, 1, dtype=torch.int32)], -1),
    "stack": (aten.stack.default, [t(2, 3), -t(2, 3)], -1),
    "pad": (aten.constant_pad_nd.default, t(2, 3), [1, 2, 0, 1], -1.5),
    "crop": (aten.constant_pad_nd.default, t(2, 5), [-1, -2], 0),
    "pad bool": (aten.constant_pad_nd.default, BOOL, [1, 1], 1),
    "pad nothing": (aten.constant_pad_nd.default, t(0, 3), [1, 1, 2, 0], 2.0),
    "flip": (aten.flip.default, t(2, 3, 4), [0, -1]),
    "roll": (aten.roll.default, t(3, 4), [1, -2], [0, 1]),
    "roll flat": (aten.roll.default, t(3, 4), [5], []),
    "rot90": (aten.rot90.default, t(3, 4), 3, [0, 1]),
    "repeat": (aten.repeat.default, t(2, 3), [2, 1, 3]),
    "repeat none": (aten.repeat.default, t(2, 3), [0, 3]),
    "repeat scalar": (aten.repeat.default, t(), [3]),
    "channel shuffle": (aten.channel_shuffle.default, t(2, 6, 2, 2), 3),
    "pixel shuffle": (aten.pixel_shuffle.default, t(2, 8, 3, 2), 2),
    "pixel unshuffle": (aten.pixel_unshuffle.default, t(2, 4, 6), 2),
    "tril": (aten.tril.default, t(2, 3, 4), 1),
    "triu": (aten.triu.default, t(4, 3), -1),
    "triu of NaN": (aten.triu.default, NAN.repeat(3, 1), 0),
    "tril bool": (aten.tril.default, BOOL, -(2**40)),
    "tril indices": (aten.tril_indices.default, 4, 3, 1),
    "triu indices": (aten.triu_indices.default, 3, 4, -1),
    "select backward": (aten.select_backward.default, t(2, 3), [2, 4, 3], 1, -1),
    "slice backward": (aten.slice_backward.default, t(2, 3), [2, 9], 1, 1, 8, 3),
    "empty slice backward": (aten.slice_backward.default, t(2, 0), [2, 9], 1, 5, 5, 1),
    "slice scatter": (aten.slice_scatter.default, t(2, 9), -t(2, 3), 1, 1, 8, 3),
    "slice scatter plain": (aten.slice_scatter.default, t(9, 2), -t(3, 2), 0, -5, -2),
    "select scatter": (aten.select_scatter.default, t(2, 9), -t(2), 1, -3),
    "block diag": (aten.block_diag.default, [t(2, 3), t(), t(2)]),
    "conj": (aten._conj.default, CPX),
}


@pytest.mark.parametrize("name", _CALLS)
def test_equals_cpu(name):
    op, *args = _CALLS[name]
    harness.check(op, *args)


_OTHER = [
    "diagonal scatter",
    "unfold backward",
    "cat",
    "pad",
    "roll",
    "triu",
    "slice scatter",
    "repeat",
]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.int64, torch.complex64, torch.uint8], ids=str
)
@pytest.mark.parametrize("name", _OTHER)
def test_other_dtypes(name, dtype):
    op, *args = _CALLS[name]
    value = [2 if isinstance(a, float) else a for a in args]
    convert = lambda a: a.to(dtype) if isinstance(a, torch.Tensor) else a  # noqa: E731
    harness.check(
        op, *([convert(x) for x in a] if isinstance(a, list) else convert(a) for a in value)
    )


def test_narrow_sums_round_once():
    grad = torch.full((300, 3), 1 + 2**-7, dtype=torch.bfloat16)
    harness.check(aten.unfold_backward.default, grad, [302], 0, 3, 1)
