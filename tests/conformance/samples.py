"""Inputs for an operator: drawn on the CPU from a fixed seed, spread over what the database has."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.common.compare import describe, tensors_in
from tests.common.transfer import Transfer


class Sample(NamedTuple):
    """Arguments of one call, and how to read its result where the database asks for it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    broadcasts: bool
    postprocess: Callable[[Any], Any]

    def mapped(self, f: Callable[[Any], Any]) -> Sample:
        """The sample with `f` (which walks containers itself) applied to its arguments."""
        return self._replace(args=f(self.args), kwargs=f(self.kwargs))

    def moved(self, transfer: Transfer) -> Sample:
        """The sample copied to the transfer's device."""
        return self.mapped(transfer)

    def describe(self) -> str:
        """The arguments as short text."""
        text = ", ".join(describe(a) for a in self.args)
        text += "".join(f", {k}={describe(v)}" for k, v in self.kwargs.items())
        return text if len(text) <= 160 else text[:157] + "..."


def seed_all(seed: int) -> None:
    """Seed every generator that samples and operators draw from."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def draw(
    op: OpInfo,
    dtype: torch.dtype,
    limit: int | None,
    *,
    requires_grad: bool = False,
    reference: bool = False,
) -> list[Sample]:
    """Up to `limit` samples of an operator, evenly spread over all of them; the same ones in every
    run. `reference`: from the extended inputs, where the database has them; of these, the small
    ones, and half of the limit for extreme values.
    """
    seed_all(zlib.crc32(f"{op.full_name} {dtype}".encode()))
    inputs = op.reference_inputs if reference else op.sample_inputs
    samples = [_sample(s) for s in inputs("cpu", dtype, requires_grad=requires_grad)]
    if reference:
        samples = [s for s in samples if tensors_in(s.args) and not (dtype.is_complex and _odd(s))]
    if limit is None or len(samples) <= limit:
        return samples
    if not reference:
        return _spread(samples, limit)
    small = [s for s in samples if all(t.numel() <= _SMALL for t in tensors_in(s.args))]
    extreme = [s for s in small if any(_is_extreme(t) for t in tensors_in(s.args))]
    plain = [s for s in small if not any(s is e for e in extreme)]
    extreme = _spread(extreme, limit // 2)
    return extreme + _spread(plain, limit - len(extreme))


_SMALL = 4096


def _odd(sample: Sample) -> bool:
    """Whether some complex value is not finite: each library's complex arithmetic has its own
    results then (C99 Annex G is optional), and PyTorch's own tests skip them.
    """
    return any(t.is_complex() and not t.isfinite().all() for t in tensors_in(sample.args))


def _spread(samples: list[Sample], limit: int) -> list[Sample]:
    limit = min(limit, len(samples))
    return [samples[i * len(samples) // limit] for i in range(limit)]


def _is_extreme(tensor: torch.Tensor) -> bool:
    """Whether some value is far out, or no number."""
    if tensor.numel() == 0 or tensor.layout is not torch.strided or tensor.dtype == torch.bool:
        return False
    magnitude = tensor.detach().abs().to(torch.float64)
    return not bool((magnitude < 100).all())


def _sample(sample: SampleInput) -> Sample:
    return Sample(
        (sample.input, *sample.args),
        dict(sample.kwargs),
        sample.broadcasts_input,
        sample.output_process_fn_grad,
    )


def map_tensors(value: Any, f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `f` applied to every tensor inside its containers."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return f(value)
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        mapped = [map_tensors(v, f) for v in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else tuple(mapped)
    if isinstance(value, list):
        return [map_tensors(v, f) for v in value]
    if isinstance(value, dict):
        return {k: map_tensors(v, f) for k, v in value.items()}
    return value


def noncontiguous(sample: Sample) -> Sample:
    """The same values, every dense tensor non-contiguous, and lazily conjugated where complex."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor
        if tensor.is_complex():
            return noncontiguous_like(tensor.conj_physical()).conj()
        return noncontiguous_like(tensor)

    return sample.mapped(lambda value: map_tensors(value, spread))


_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def widened(sample: Sample) -> Sample:
    """The same values in double precision."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        dtype = _WIDER.get(tensor.dtype)
        if dtype is None:
            return tensor.clone()
        return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)

    wide = sample.mapped(lambda value: map_tensors(value, widen))
    asked = wide.kwargs.get("dtype")
    return wide._replace(kwargs=wide.kwargs | {"dtype": _WIDER[asked]}) if asked in _WIDER else wide
