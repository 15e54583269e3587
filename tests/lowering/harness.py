"""Runs one lowering without the device: op -> StableHLO -> compiled program -> result, compared
with CPU.

The program is built exactly as for the device (`graph.lower_op`), from tensors whose base is the
tensor itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core import _C, plugin
from torchtpu_core.lowering import graph, registry
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.random_bits import random_input
from torchtpu_core.stablehlo import Module, TensorType, Value

#: the generator's seed for lowerings that draw random numbers
SEED = 1234

TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-9),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-7, 1e-9),
}


@lru_cache(maxsize=1)
def _client() -> Any:
    """A client of XLA's CPU plugin, apart from the device's."""
    path = plugin.cpu_plugin_path()
    assert path is not None, "the tests need the package xla-cpu-pjrt"
    return _C.pjrt.load_plugin(str(path)).create_client({"cpu_device_count": 1})


def run(text: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compiles and runs a module; `outputs` are meta tensors giving result shapes and dtypes."""
    client = _client()
    program = client.compile(text, _C.compile_options(client))
    given = []
    for t in inputs:
        t = t.new_empty(t.shape).copy_(t)
        raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        given.append(client.buffer(raw, mlir(t.dtype), dims=list(t.shape)))
    out = []
    for result, like in zip(program.execute(given, device=0), outputs):
        raw = bytearray(result.to_bytes())
        flat = torch.frombuffer(raw, dtype=like.dtype) if raw else like.new_empty(0, device="cpu")
        out.append(flat.reshape(like.shape))
    return out


def build(
    op: Any, args: Any, kwargs: Any, runtime_scalars: bool = True, target: str = "tpu"
) -> tuple[str, list, list, Any]:
    """(module text, input tensors, meta results, result spec) for one functional op; `target`: the
    platform whose program it is, of which the CPU plugin runs both.
    """
    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    inputs = [x for x in leaves if isinstance(x, torch.Tensor)]
    metas = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in leaves]
    m_args, m_kwargs = pytree.tree_unflatten(metas, spec)
    try:
        expected = op(*m_args, **m_kwargs)
    except NotImplementedError:
        expected = op(*args, **kwargs)
        expected = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), expected)
    module = Module(target=target)
    b = module.function(
        "main", [TensorType(mlir(t.dtype), tuple(t.shape)) for t in inputs], public=True
    )
    for v, t in zip(b.args, inputs):
        v.row_major = t.is_contiguous()
    feed = iter(b.args)
    values = [next(feed) if isinstance(x, torch.Tensor) else x for x in leaves]
    v_args, v_kwargs = pytree.tree_unflatten(values, spec)
    out = graph.lower_op(b, op, v_args, v_kwargs, expected)
    out_leaves = pytree.tree_leaves(out, is_leaf=lambda x: isinstance(x, Value))
    if random_input(b) is not None:
        inputs = [*inputs, torch.tensor([SEED, 0], dtype=torch.uint64)]
    b.finish([v for v in out_leaves if isinstance(v, Value)])
    flat, out_spec = pytree.tree_flatten(expected)
    flat = [t for t in flat if isinstance(t, torch.Tensor)]
    return str(module), inputs, flat, out_spec


def check(
    op: Any,
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    target: str = "tpu",
    **kwargs: Any,
) -> None:
    """Asserts that the lowering of `op` (an OpOverload) for `target` equals CPU on these arguments
    (dtype, shape, values).
    """
    want = op(*args, **kwargs)
    want_flat = [t for t in pytree.tree_leaves(want) if isinstance(t, torch.Tensor)]
    text, inputs, metas, _ = build(op, args, kwargs, target=target)
    try:
        got = run(text, inputs, metas)
    except Exception as e:
        raise AssertionError(f"{op} does not compile or run: {e}\n{text}") from e
    assert len(got) == len(want_flat)
    shown = [(tuple(t.shape), t.dtype) for t in inputs]
    for g, w in zip(got, want_flat):
        r, a = TOLERANCE.get(w.dtype, (0, 0))
        torch.testing.assert_close(
            g,
            w.contiguous(),
            rtol=rtol if rtol is not None else r,
            atol=atol if atol is not None else a,
            equal_nan=True,
            msg=lambda m: f"{registry.name_of(op)} {shown}: {m}\n{text}",
        )
