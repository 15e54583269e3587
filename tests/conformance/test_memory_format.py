"""Strides of results as on the CPU, for channels-last and permuted inputs: elementwise operators,
convolution, pooling, normalisation, upsampling, copies and factories - what PyTorch's
test_memory_format_propagation asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conformance.outcome import outcome_differs

_C = torch.channels_last
_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=_C),
    "channels_last_by_permute": lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda t: torch.cat([t, t], 3)[..., ::2],
    "expanded": lambda t: t[:, :1].expand_as(t),
}
_each_layout = pytest.mark.parametrize("layout", _LAYOUTS)

_Call = Callable[[torch.Tensor], Any]
_ELEMENTWISE: dict[str, _Call] = {
    "neg": lambda x: -x,
    "add scalar": lambda x: x + 1,
    "add tensor": lambda x: x + torch.ones_like(x),
    "add channel": lambda x: x + torch.ones(4, 1, 1, device=x.device),
    "add contiguous": lambda x: x + x.contiguous(),
    "add to contiguous": lambda x: x.contiguous() + x,
    "mul 0-d": lambda x: torch.tensor(2.0, device=x.device) * x,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(0, 1),
    "where": lambda x: torch.where(x > 0, x, -x),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "eq": lambda x: x == 1,
    "to bfloat16": lambda x: x.bfloat16(),
    "to double": lambda x: x.double(),
    "frexp": lambda x: list(torch.frexp(x)),
    "complex": lambda x: torch.complex(x, x),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "nan_to_num": torch.nan_to_num,
    "isnan": torch.isnan,
    "in place": lambda x: x.contiguous(memory_format=_C).add_(1).mul_(x),
}
_COPIES: dict[str, _Call] = {
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=_C),
    "to channels last": lambda x: x.to(memory_format=_C),
    "to channels last, half": lambda x: x.to(torch.float16, memory_format=_C),
    "clone contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
    "empty_like": lambda x: torch.empty_like(x).zero_(),
    "zeros_like": torch.zeros_like,
    "ones_like channels last": lambda x: torch.ones_like(x, memory_format=_C),
    "full_like": lambda x: torch.full_like(x, 3),
    "empty channels last": lambda x: torch.empty(
        x.shape, device=x.device, memory_format=_C
    ).zero_(),
    "cat": lambda x: torch.cat([x, x], 1),
    "cat with contiguous": lambda x: torch.cat([x, x.contiguous()], 1),
    "stack": lambda x: torch.stack([x, x]),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: x.roll(1, 2),
    "pad": lambda x: F.pad(x, (1, 1, 0, 1)),
    "pad reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "sum": lambda x: x.sum(1, keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(1),
}


def _weight(x: torch.Tensor, *shape: int) -> torch.Tensor:
    count = torch.arange(float(torch.Size(shape).numel()), device=x.device)
    return ((count % 7) - 3).reshape(shape) / 4


_NETWORK: dict[str, _Call] = {
    "conv2d": lambda x: F.conv2d(x, _weight(x, 6, 4, 3, 3), padding=1),
    "conv2d, bias": lambda x: F.conv2d(x, _weight(x, 6, 4, 1, 1), _weight(x, 6)),
    "conv2d, stride": lambda x: F.conv2d(x, _weight(x, 4, 4, 3, 3), stride=2),
    "conv2d, channels-last weight": lambda x: F.conv2d(
        x, _weight(x, 6, 4, 3, 3).contiguous(memory_format=_C)
    ),
    "conv2d, depthwise": lambda x: F.conv2d(x, _weight(x, 4, 1, 3, 3), groups=4),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, _weight(x, 4, 2, 3, 3)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d with indices": lambda x: list(F.max_pool2d(x, 2, return_indices=True)),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_avg_pool2d to 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "batch_norm, training": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm, eval": lambda x: F.batch_norm(x, _weight(x, 4), _weight(x, 4).abs() + 1),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "upsample nearest": lambda x: F.interpolate(x, scale_factor=2),
    "upsample bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "upsample bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "grid_sample": lambda x: F.grid_sample(
        x, torch.zeros(2, 3, 3, 2, device=x.device), align_corners=False
    ),
}


def _input() -> torch.Tensor:
    return (torch.arange(2 * 4 * 6 * 6.0) * 1.7).sin().reshape(2, 4, 6, 6) * 3


def _check(call: _Call, layout: str, device: str) -> None:
    # The layout is made on the CPU; the copy on the device has the same strides.
    found = outcome_differs(call, [_LAYOUTS[layout](_input())], device, strides=True)
    assert found is None, found


@_each_layout
@pytest.mark.parametrize("name", _ELEMENTWISE)
def test_elementwise(name: str, layout: str, device: str) -> None:
    _check(_ELEMENTWISE[name], layout, device)


@_each_layout
@pytest.mark.parametrize("name", _COPIES)
def test_copies(name: str, layout: str, device: str) -> None:
    _check(_COPIES[name], layout, device)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", _NETWORK)
def test_network_operators(name: str, layout: str, device: str) -> None:
    _check(_NETWORK[name], layout, device)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", _NETWORK)
def test_gradients(name: str, layout: str, device: str) -> None:
    """The gradient of the input has the values of the CPU's; accumulated, the strides of the
    input.
    """

    def call(x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        out = _NETWORK[name](x)
        out = out[0] if isinstance(out, list) else out
        (out * _weight(out, *out.shape)).sum().backward()
        return x.grad

    _check(call, layout, device)


def test_a_model_in_channels_last(device: str) -> None:
    def call(x: torch.Tensor) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 4, 1),
        ).to(x.device, memory_format=_C)  # fmt: skip
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(_weight(x, *p.shape))
        out = model(x)
        out.mean().backward()
        weights = [m.weight for m in model if hasattr(m, "weight")]
        return [out.detach(), [w.detach() for w in weights], [w.grad.clone() for w in weights]]

    _check(call, "channels_last", device)
