"""The route through PyTorch's decompositions.

An operator with no lowering of its own is traced, with PyTorch's decomposition of it, on meta
tensors; the nodes of that graph are
lowered as any graph is, so a decomposition may end in ops that decompose further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from torchtpu_core.lowering.dtypes import torch_dtype
from torchtpu_core.stablehlo import Builder, Value


@lru_cache(maxsize=1)
def _table() -> dict[OpOverload, Callable[..., Any]]:
    import torch._decomp
    import torch._refs  # registers the reference implementations
    import torch._refs.linalg
    import torch._refs.nn.functional
    import torch._refs.special

    return torch._decomp.global_decomposition_table["post_autograd"]


def find(op: OpOverload) -> Callable[..., Any] | None:
    """A Python function that computes `op` by simpler ones, or None."""
    fn = _table().get(op)
    if fn is not None:
        return fn
    if op.namespace == "prims" and getattr(op, "impl_aten", None) is not None:
        return op.impl_aten
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite):
        return lambda *args, **kwargs: op._op_dk(composite, *args, **kwargs)
    return None


def lower(b: Builder, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Emits `op` through its decomposition; NotImplementedError names an op that has none."""
    fn = find(op)
    # PyTorch's references end in prims whose ATen implementation is the op itself: such a circle
    # means "not lowered".
    if fn is None or op in _under_way:
        raise NotImplementedError(
            f"{op.name()} is not lowered to StableHLO and has no decomposition"
        )
    _under_way.append(op)
    try:
        return trace(b, fn, args, kwargs)
    finally:
        _under_way.pop()


# The ops being decomposed, outermost first. Guarded by the GIL: programs are built one at a time.
_under_way: list[OpOverload] = []


def trace(
    b: Builder,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device | None = None,
) -> Any:
    """Emits what a Python function of tensors computes, found by tracing it on meta tensors; with
    `device` on fake ones of that device, for functions that name it.
    """
    from torchtpu_core.lowering import graph

    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    where = [i for i, x in enumerate(leaves) if isinstance(x, Value)]
    statics = leaves if device is not None else [_meta_device(x) for x in leaves]

    def call(*tensors: torch.Tensor) -> Any:
        full = list(statics)
        for i, t in zip(where, tensors):
            full[i] = t
        call_args, call_kwargs = pytree.tree_unflatten(full, spec)
        return fn(*call_args, **call_kwargs)

    mode = nullcontext() if device is None else FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        metas = [
            torch.empty(
                leaves[i].shape, dtype=torch_dtype(leaves[i].dtype), device=device or "meta"
            )
            for i in where
        ]
    with torch.no_grad():
        gm = make_fx(call)(*metas)
        if any(
            isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes
        ):
            gm = make_fx(torch.func.functionalize(call, remove="mutations"))(*metas)
    return graph.lower_graph(b, gm, [leaves[i] for i in where])


def _meta_device(x: Any) -> Any:
    return torch.device("meta") if isinstance(x, torch.device) else x
