"""Every symbol of PyTorch that is replaced, and why; `tests/device/test_patches.py` checks that they still exist.

torch._tensor_str._tensor_str (2.13): formatting a tensor takes dozens of small ops on it, and only a fixed list of device types
    is copied to the host first. Without this, printing one tensor would compile about thirty programs.
"""

from __future__ import annotations

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
