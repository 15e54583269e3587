"""Every symbol of PyTorch that is replaced, and why; `tests/device/test_patches.py` checks that
they still exist.

torch._tensor_str._tensor_str (2.13): formatting a tensor takes dozens of small ops on it, and only
    a fixed list of device types is copied to the host first. Without this, printing one tensor
    would compile about thirty programs.
torch._TorchCompileInductorWrapper.__init__, .__call__, .get_compiler_config (2.13): what
    `torch.compile` makes when no backend is named. PyTorch's default backend is one for all
    devices; with this, a graph with tensors on the device gets the backend `tpu`, and any other
    graph Inductor, as before, which is imported only then.
torch.set_float32_matmul_precision (2.13): PyTorch keeps the setting where it is slow to read, and
    the device's programs have to depend on it. With this, a change of it is also one of the word
    that every program's key has (flags.py), and waits for programs in flight, whose calls of
    PyTorch's kernels would follow it.
torch.nn.attention.flex_attention._validate_device (2.13): refuses devices that it does not know.
torch._higher_order_ops.associative_scan.associative_scan (2.13): its `combine_mode="pointwise"`
    refuses devices that it does not know, by a constant in its code, which gets one name more (a
    wrapper would be no function that Dynamo sees through).
torch._higher_order_ops.flex_attention.flex_attention (2.13): gains a rule for autocast on the
    device, which higher-order operators have for a fixed list of devices.
"""

from __future__ import annotations

import functools
import types
from typing import Any

#: above this many bytes a tensor is summarised on the device, and only what is shown is copied
_PRINT_ON_HOST = 64 << 20


def apply() -> None:
    """Puts the replacements in place; called once, when the device is registered."""
    import torch._tensor_str as module

    original = module._tensor_str

    def _tensor_str(self: Any, indent: int) -> str:
        if self.device.type == "tpu" and self.untyped_storage().nbytes() <= _PRINT_ON_HOST:
            self = self.cpu()
        return original(self, indent)

    module._tensor_str = _tensor_str
    _apply_to_compile()
    _apply_to_precision()
    _apply_to_flex_attention()
    _apply_to_associative_scan()


def _apply_to_compile() -> None:
    import torch

    wrapper = torch._TorchCompileInductorWrapper
    init, call = wrapper.__init__, wrapper.__call__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        from torchtpu_core import compile

        init(self, *args, **kwargs)
        compile.prepare()  # torch.compile is about to import Dynamo anyway

    def __call__(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:
        from torchtpu_core import compile

        if compile.on_tpu(model_, inputs_):
            return compile.backend(model_, inputs_)
        return call(self, model_, inputs_, **kwargs)

    def get_compiler_config(self: Any) -> dict[str, Any]:
        from torch._inductor import config

        with config.patch(self.config):
            return config.get_config_copy()

    wrapper.__init__, wrapper.__call__ = __init__, __call__
    wrapper.get_compiler_config = get_compiler_config


def _apply_to_precision() -> None:
    import torch

    import torchtpu_core._C as _C
    from torchtpu_core.precision import follow_torch

    original = torch.set_float32_matmul_precision

    @functools.wraps(original)
    def set_float32_matmul_precision(precision: str) -> None:
        if _C.is_initialized():
            for device in range(_C.device_count()):
                _C.synchronize(device)
        original(precision)
        follow_torch()

    torch.set_float32_matmul_precision = set_float32_matmul_precision
    follow_torch()


def _apply_to_flex_attention() -> None:
    import torch
    import torch.nn.attention.flex_attention as module
    from torch._higher_order_ops.flex_attention import flex_attention

    validate = module._validate_device

    def _validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "tpu":
            validate(query, key, value)

    module._validate_device = _validate_device

    def autocast(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype("tpu")
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return flex_attention(*(x.to(dtype) for x in (query, key, value)), *rest)

    flex_attention.py_impl(torch._C.DispatchKey.AutocastPrivateUse1)(autocast)


def _apply_to_associative_scan() -> None:
    # the package gives the function the module's name
    from torch._higher_order_ops import associative_scan

    known = ("cuda", "xpu")

    def extended(constant: Any) -> Any:
        if isinstance(constant, types.CodeType):
            return constant.replace(co_consts=tuple(extended(c) for c in constant.co_consts))
        return (*known, "tpu") if constant == known else constant

    associative_scan.__code__ = extended(associative_scan.__code__)
