"""Copies of nested arguments on another device, with everything a plain `.to()` would lose.

Strides, storage offsets, expanded dimensions, conjugate and negative bits survive, and tensors that
share a storage still share one afterwards.
"""

from __future__ import annotations

from typing import Any

import torch


class Transfer:
    """Copies nested arguments to `device`; tensors passed through one Transfer keep sharing their
    storages.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        #: original (kept alive for its id) and copy: one tensor passed twice stays one tensor
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """The copy of `value`: tensors, devices and generators move, containers are rebuilt, the
        rest stays.
        """
        if isinstance(value, torch.Tensor):
            if id(value) not in self._moved:
                self._moved[id(value)] = value, self._tensor(value)
            return self._moved[id(value)][1]
        if isinstance(value, torch.device):
            return self.device if value.type == "cpu" else value
        if isinstance(value, str):
            return str(self.device) if value == "cpu" else value
        if isinstance(value, torch.Generator):
            return torch.Generator(device=self.device).manual_seed(value.initial_seed())
        if isinstance(value, (torch.Size, range)):
            return value
        if isinstance(value, tuple):
            moved = [self(v) for v in value]
            return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
        if isinstance(value, list):
            return [self(v) for v in value]
        if isinstance(value, dict):
            return {k: self(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self(value.start), self(value.stop), self(value.step))
        return value

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        """The flat copy of the whole storage below `tensor`, an original on the CPU."""
        key = (tensor.untyped_storage().data_ptr(), tensor.dtype)
        if key[0] == 0 or key not in self._bases:
            flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self._bases[key] = flat.to(self.device, copy=True)
        return self._bases[key]

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            plain = tensor.detach()
            if plain.device.type == "meta":
                moved = plain
            elif plain.layout is not torch.strided:
                moved = plain.to(self.device, copy=True)
            elif plain.is_conj():
                moved = self._tensor(plain.conj()).conj()
            elif plain.is_neg():
                moved = self._tensor(torch._neg_view(plain))
                moved = torch._neg_view(moved)
            else:
                moved = self._strided(plain)
        moved = moved.detach()
        return moved.requires_grad_() if tensor.requires_grad else moved

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        base = self.base(tensor)
        # A tensor that is its whole storage needs no as_strided: a device that lacks it can still
        # be tested.
        if tensor.is_contiguous() and tensor.numel() == base.numel():
            return base.view(tensor.shape)
        return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
