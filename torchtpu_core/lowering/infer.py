"""What a call's results will be, before there is a program: PyTorch's meta kernels say shapes,
strides and dtypes; what they refuse, or let pass and should not, is judged by small CPU tensors of
zeros, so that the user sees PyTorch's own error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core.lowering import variants
from torchtpu_core.lowering.specs import ScalarSpec, TensorSpec, tensor_specs


def infer(op: OpOverload, variant: variants.Variant, args: Sequence[Any]) -> tuple[list, Any, list]:
    """(meta arguments, results of the functional overload if known, out tensors to resize)."""

    def to_meta(x: Any) -> Any:
        if isinstance(x, TensorSpec):
            return x.meta()
        if isinstance(x, ScalarSpec):
            return x.value
        return torch.device("meta") if isinstance(x, torch.device) else x

    metas = [_map_meta(to_meta, x) for x in args]
    outs = [i for i in variant.mutated if is_out(op, i)]
    resize: list[tuple[int, tuple[int, ...]]] = []
    # A backward gets what the forward saved, which may have other dtypes (f32) than the CPU's.
    suspect = _mixes_floats(args) or _is_rarely_supported(args)
    if suspect and not op._opname.endswith("_backward"):
        verdict(op, metas, only=_DTYPE_ERROR)
    if _writes_overlap(variant, args) and _is_small(metas):
        _try(op, _cpu_twins(args), only=_OVERLAP_ERROR)
    result = _in_format(op, metas, _meta_call(op, metas))
    if variant.functional is op:
        for i in outs:
            note_resized(resize, tensor_specs(args[i]), _tensors(metas[i]))
        return metas, result, resize
    if variant.returns_new == 0 and not outs and result is not None:
        # every result lands in a mutated argument: its shape and dtype are what to expect
        targets = [metas[i] for i in variant.mutated]
        return metas, targets[0] if len(targets) == 1 else targets, resize
    expected = _meta_call(
        variant.functional, [argument(variant, metas, i) for i in variant.arguments]
    )
    if expected is not None:
        given = [t for i in outs for t in tensor_specs(args[i])]
        if any(t.dtype != meta.dtype for t, meta in zip(given, _tensors(expected))):
            verdict(op, metas, only=_DTYPE_ERROR)
        note_resized(resize, given, _tensors(expected))
    return metas, expected, resize


#: operators whose real kernels keep channels-last, as their meta kernels do not
_KEEPS_FORMAT = frozenset(
    ("convolution", "convolution_overrideable", "roll", "reflection_pad2d", "channel_shuffle",
     "native_channel_shuffle")
)  # fmt: skip


def _in_format(op: OpOverload, metas: Sequence[Any], result: Any) -> Any:
    """The inferred result in the memory format of the input (or of a convolution's weight)."""
    if op._opname not in _KEEPS_FORMAT or not isinstance(result, torch.Tensor):
        return result
    sources = [m for m in metas[:2] if isinstance(m, torch.Tensor)]
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if result.dim() == rank and any(
            m.is_contiguous(memory_format=memory_format) and not m.is_contiguous()
            for m in sources
            if m.dim() == rank
        ):
            return result.contiguous(memory_format=memory_format)
    return result


def note_resized(resize: list, specs: Sequence[TensorSpec], metas: Sequence[Any]) -> None:
    """Adds to `resize` (index, shape) of the tensors whose sizes are not those of `metas`."""
    resize.extend(
        (spec.index, tuple(meta.shape))
        for spec, meta in zip(specs, metas)
        if tuple(meta.shape) != spec.sizes
    )


#: elements above which a failed inference on meta tensors is not repeated on CPU
_SMALL = 1 << 20


def _meta_call(op: OpOverload, metas: Sequence[Any]) -> Any:
    """The op's results on meta tensors; None where it has no such kernel.

    Meta kernels word some errors differently from the real ones, and a few are stricter than these:
    what they refuse is
    tried again on small CPU tensors of zeros, whose verdict is the user's.
    """
    if op.namespace == "aten" and op._opname.startswith("nansum") and metas[1] == []:
        # Its meta kernel takes an empty list of dimensions for none, its real ones for all.
        metas = [metas[0], None, *metas[2:]]
    if op is torch.ops.aten.randint_like.Tensor_generator:
        # Only its twin has a meta kernel, and the CPU's would refuse that the bound is zero.
        op, metas = torch.ops.aten.randint_like.Tensor, [*metas[:2], *metas[3:]]
    try:
        with torch.no_grad():
            return _call(op, metas)
    except NotImplementedError:
        return None
    except Exception as e:
        tensors = _tensors(list(metas))
        if not _is_small(metas):
            raise
        refusal = e
    cpus = pytree.tree_map(_as_cpu, list(metas))
    try:
        with torch.no_grad():
            result = _call(op, cpus)
    except NotImplementedError:
        # No CPU kernel to ask. PyTorch's meta kernels of some such ops stumble over a tensor that
        # is None.
        if isinstance(refusal, AttributeError):
            return None
        raise refusal from None
    for meta, cpu in zip(tensors, _tensors(cpus)):
        if meta.shape != cpu.shape:  # an out= tensor that was resized
            meta.resize_(cpu.shape)
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), result)


_DTYPE_ERROR = re.compile(
    r"dtype|scalar type|same type|expects \w+ tensor out|support|can't be cast"
)


def verdict(op: OpOverload, metas: Sequence[Any], only: re.Pattern[str] | None = None) -> None:
    """Raises what the CPU raises for these arguments (`only`: if the message matches), where it
    does and they are small.

    Meta kernels let through mixtures of dtypes that the real ones refuse, and a lowering is not the
    place to check them.
    """
    if _is_small(metas):
        _try(op, pytree.tree_map(_as_cpu, list(metas)), only)


def _try(op: OpOverload, cpus: Sequence[Any], only: re.Pattern[str] | None) -> None:
    """Runs the CPU's kernel for the error that it raises, if the message matches `only`."""
    # Its draws must not move the CPU's generator.
    draws = torch.Tag.nondeterministic_seeded in op.tags
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=draws):
            _call(op, cpus)
    except NotImplementedError as e:
        # The CPU lacks some kernels of low-precision floats and wide integers that a device has.
        if only is None or re.search("not implemented for '(Complex(Float|Double)|Bool)'", str(e)):
            raise
    except Exception as e:
        if only is None or only.search(str(e)):
            raise


def _is_small(metas: Sequence[Any]) -> bool:
    return sum(t.untyped_storage().nbytes() for t in _tensors(list(metas))) <= _SMALL


def _mixes_floats(args: Sequence[Any]) -> bool:
    dtypes = {t.dtype for t in tensor_specs(list(args)) if not t.host}
    kinds = [d for d in dtypes if d.is_floating_point or d.is_complex]
    # float8 comes with scales of another dtype, and meta kernels do refuse to promote it
    return len(kinds) > 1 and all(d.itemsize > 1 for d in kinds)


def _is_rarely_supported(args: Sequence[Any]) -> bool:
    """Whether there are dtypes that operators refuse: bool, complex, or integers only."""
    specs = tensor_specs(list(args))
    dtypes = {t.dtype for t in specs if not t.host}
    return any(t.dtype.is_complex or t.dtype == torch.bool for t in specs) or (
        bool(dtypes) and not any(d.is_floating_point for d in dtypes)
    )


_OVERLAP_ERROR = re.compile("unsupported operation")


def _writes_overlap(variant: variants.Variant, args: Sequence[Any]) -> bool:
    """Whether a written tensor shares its storage with another argument or overlaps itself: meta
    kernels, which see no storages, cannot refuse it.
    """
    slots = [t.slot for t in tensor_specs(list(args))]
    return any(
        slots.count(t.slot) > 1 or any(n > 1 and st == 0 for n, st in zip(t.sizes, t.strides))
        for i in variant.mutated
        for t in tensor_specs(args[i])
    )


def _cpu_twins(args: Sequence[Any]) -> list[Any]:
    """The arguments on the CPU, of zeros, sharing storages as they do on the device."""
    extents: dict[int, int] = {}
    for t in tensor_specs(list(args)):
        last = t.offset + sum((n - 1) * st for n, st in zip(t.sizes, t.strides))
        extents[t.slot] = max(extents.get(t.slot, 0), (last + 1) * t.dtype.itemsize)
    bases = {slot: torch.zeros(n + -n % 16, dtype=torch.uint8) for slot, n in extents.items()}
    twins: dict[tuple, torch.Tensor] = {}  # one for arguments that may be the same tensor

    def twin(x: Any) -> Any:
        if isinstance(x, ScalarSpec) or (isinstance(x, TensorSpec) and x.weak):
            return x.value
        if not isinstance(x, TensorSpec):
            return torch.device("cpu") if isinstance(x, torch.device) else x
        if x.host:
            return torch.tensor(x.value, dtype=x.dtype)
        key = (x.slot, x.dtype, x.sizes, x.strides, x.offset)
        if key not in twins:
            twins[key] = bases[x.slot].view(x.dtype).as_strided(*key[2:])
        return twins[key]

    return [_map_meta(twin, x) for x in args]


def _as_cpu(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if not isinstance(x, torch.Tensor):
        return x
    flat = torch.zeros(x.untyped_storage().nbytes() // x.itemsize, dtype=x.dtype)
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def _map_meta(fn: Any, x: Any) -> Any:
    return [fn(v) for v in x] if isinstance(x, (list, tuple)) else fn(x)


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def _call(op: OpOverload, values: Sequence[Any]) -> Any:
    args, kwargs = [], {}
    for a, v in zip(op._schema.arguments, values):
        if a.kwarg_only:
            kwargs[a.name] = v
        else:
            args.append(v)
    return op(*args, **kwargs)


def argument(variant: variants.Variant, args: Sequence[Any], i: int) -> Any:
    """What the functional overload gets for its argument `i` of the variant's own arguments."""
    if i == variants.NONE:
        return None
    return args[variant.mutated[0]].dtype if i == variants.OUT_DTYPE else args[i]


def is_out(op: OpOverload, i: int) -> bool:
    """Whether argument `i` is an `out=`."""
    return op._schema.arguments[i].is_out
