"""How the dispatcher describes the arguments of a call: tensors and run-time numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument as the dispatcher describes it.

    index: its place among the call's tensors; slot: the first index of a tensor with the same
    storage.
    host: a 0-d CPU tensor, given by `value`; weak: it is a wrapped Python number.
    conj, neg: the lazy conjugation and negation of PyTorch, not yet applied to the storage.
    room: the dims of a buffer that is larger than its base, which is its leading corner.
    """

    index: int
    slot: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    base_dtype: torch.dtype
    base_dims: tuple[int, ...]
    initialised: bool
    host: bool
    weak: bool
    value: Any
    conj: bool = False
    neg: bool = False
    room: tuple[int, ...] | None = None

    def meta(self) -> Any:
        if self.weak:
            return self.value
        if self.host:
            return torch.empty((), dtype=self.dtype, device="meta")
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class ScalarSpec:
    """A number that is fed at run time; `index`: its place among the call's run-time numbers."""

    index: int
    value: Any


def map_specs(fn: Any, x: Any) -> Any:
    """`x` with `fn` applied to each description inside its lists."""
    if isinstance(x, (list, tuple)):
        return [map_specs(fn, v) for v in x]
    return fn(x) if isinstance(x, (TensorSpec, ScalarSpec)) else x


def tensor_specs(x: Any) -> list[TensorSpec]:
    """The descriptions of tensors inside `x`, in order."""
    return [t for t in pytree.tree_leaves(x) if isinstance(t, TensorSpec)]
