"""How every ATen operator runs on the device, read off the registries that dispatch it."""

from __future__ import annotations

from typing import NamedTuple

import torch

import torchtpu_core._C as _C
from torchtpu_core.lowering import host, program, registry, unsupported, variants

#: what each status means
MEANINGS = {
    "lowered": "its own lowering to StableHLO",
    "decomposed": "PyTorch's decomposition, lowered as one program",
    "composite": "PyTorch's composite kernel: runs as the operators it calls",
    "view": "metadata alone; launches nothing",
    "native": "the device's own kernel: allocation, copies, sizes, reading a number",
    "sparse": "the device's kernel for sparse tensors",
    "host": "the CPU kernel, between counted transfers",
    "unsupported": "raises NotImplementedError with the reason",
}


class Status(NamedTuple):
    """How one overload runs. `reason`: of what is on the host or unsupported."""

    kind: str
    reason: str = ""


def operators() -> list[str]:
    """Every ATen operator of this PyTorch, with overloads: "aten::add.Tensor"."""
    return sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))


def status(name: str) -> Status:
    """The status of an operator ("aten::add.Tensor")."""
    if name in _NATIVE:
        return Status("native")
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return Status("composite")
    base, _, overload = name.partition(".")
    op = program.resolve(base, overload)
    if torch.Tag.inplace_view in op.tags or any(
        r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns
    ):
        return Status("view")
    kind = program.route(base, overload)[0]
    variant = variants.variant_of(op)
    if kind == program.LOWER and variant is not None:
        direct = registry.find(variant.functional) is not None
        return Status("lowered" if direct else "decomposed")
    if kind == program.COMPOSITE:
        return Status("composite")
    if kind == program.HOST:
        functional = registry.name_of(variant.functional) if variant else ""
        return Status("host", host.REASONS.get(registry.name_of(op)) or host.REASONS[functional])
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _SPARSE_KEYS):
        return Status("sparse")
    return Status("unsupported", unsupported.reason(name))


_NATIVE = frozenset(_C.native_operators())
_SPARSE_KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1")
