"""A captured graph as StableHLO for the compiler, with source locations and shardings: the lowering
of compiled graphs (compile/graph_program.py), fed with the graph's inputs as fresh contiguous
storages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core import flags, precision
from torchtpu_core.aot import locate, sharding
from torchtpu_core.aot.capture import Captured, Input
from torchtpu_core.compile.graph_program import GraphProgram
from torchtpu_core.lowering import program, registry
from torchtpu_core.stablehlo import Builder, Module


@dataclass(frozen=True)
class Program:
    """What the compiler gets.

    stablehlo: text; inputs: in the program's order, without those that it does not read; options:
    keyword arguments of _C.pjrt.CompileOptions.
    """

    name: str
    stablehlo: str
    inputs: tuple[Input, ...]
    options: dict[str, Any]


def lower(
    captured: Captured,
    mesh: sharding.Mesh | None = None,
    shardings: sharding.Shardings | None = None,
    products: str | None = None,
) -> Program:
    """The program of a graph. `products`: their precision, as in torch.tpu.precision. Raises
    NotImplementedError naming the op and the user's line where an op is not lowered, ValueError for
    shardings that do not go with the mesh or the inputs.
    """
    graph = GraphProgram(captured.gm, torch.device("tpu", 0))
    specs = [_spec(i, x) for i, x in enumerate(captured.inputs)]
    constants = [
        Input(name, "constant", c.dtype, tuple(c.shape), tuple(c.stride()))
        for name, c in zip(graph.constant_index, graph.constants)
    ]
    specs += [_spec(len(specs) + i, c) for i, c in enumerate(constants)]
    every = [*captured.inputs, *constants]
    sharding.check(shardings, mesh, every)
    used: list[Input] = []

    def annotate(module: Module, b: Builder, plan: program.Plan) -> None:
        used.extend(_input(every, key) for key in plan.inputs)
        b.arg_locations.update((i, locate.named(x.name)) for i, x in enumerate(used))
        if mesh is not None:
            _shard(module, b, plan, used, mesh, shardings)

    with for_tpu(products):
        plan = graph.build(specs, annotate, locate.location)
    options: dict[str, Any] = {}
    if mesh is not None:
        options = {
            "num_partitions": mesh.size,
            "device_assignment": list(range(mesh.size)),
            "use_spmd_partitioning": True,
            "use_shardy_partitioner": True,
        }
    return Program(captured.name, plan.text, tuple(used), options)


def lower_operator(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Program:
    """The program that a TPU would run for one eager call, of which only the tensors' shapes,
    strides and dtypes matter. Raises what PyTorch raises for wrong arguments, and
    NotImplementedError for what is not lowered.
    """
    name, overload = op._schema.name, op._schema.overload_name
    tensors: list[Input] = []
    numbers: list[program.ScalarSpec] = []

    def described(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        tensors.append(Input("", "argument", x.dtype, tuple(x.shape), tuple(x.stride())))
        return _spec(len(tensors) - 1, tensors[-1])

    def number(x: Any) -> Any:
        if not isinstance(x, (bool, int, float, complex)):
            return x
        numbers.append(program.ScalarSpec(len(numbers), x))
        return numbers[-1]

    values = [pytree.tree_map(described, v) for _, v in registry.bind(op, args, kwargs)]
    for i in program.route(name, overload)[1]:
        values[i] = pytree.tree_map(number, values[i])
    with for_tpu():
        plan = program.build(name, overload, values)
    return Program(f"{name}.{overload}".rstrip("."), plan.text, (), {})


def _spec(index: int, x: Input) -> program.TensorSpec:
    """An input as a storage of its own, laid out by its strides where they are dense."""
    order = program.strided.dense_order(x.shape, x.strides)
    dims = x.shape if order is None else tuple(x.shape[d] for d in order)
    strides = x.strides if order is not None else program.strided.contiguous_strides(x.shape)
    return program.TensorSpec(
        index=index, slot=index, dtype=x.dtype, sizes=x.shape, strides=tuple(strides), offset=0,
        base_dtype=x.dtype, base_dims=dims, initialised=True, host=False, weak=False, value=None,
    )  # fmt: skip


def _input(inputs: list[Input], key: tuple) -> Input:
    if key[0] == "slot":
        return inputs[key[1]]
    return Input("random state", "argument", torch.uint64, (2,), (1,))


def _shard(
    module: Module,
    b: Builder,
    plan: program.Plan,
    inputs: list[Input],
    mesh: sharding.Mesh,
    shardings: sharding.Shardings | None,
) -> None:
    module.attributes = f"mhlo.num_partitions = {mesh.size} : i32, mhlo.num_replicas = 1 : i32"
    module.header.append(mesh.text())
    for i, x in enumerate(inputs):
        spec = sharding.spec_of(shardings, mesh, x)
        if spec is None:
            continue
        spec = _physical(spec, x)
        text = f"sdy.sharding = {mesh.sharding(spec, 0 if x.kind == 'argument' else 1)}"
        b.arg_attrs[i] = ", ".join(a for a in (b.arg_attrs[i], text) if a)
        if i in plan.donate:  # what takes the input's place is split as it was
            n = next(j for j, o in enumerate(plan.outputs) if o[4] == plan.inputs[i][1])
            b.result_attrs[n] = text


def _physical(spec: sharding.Spec, x: Input) -> sharding.Spec:
    """Entries in the order of the storage's dimensions."""
    order = program.strided.dense_order(x.shape, x.strides)
    return spec if order is None else [spec[d] for d in order]


@contextlib.contextmanager
def for_tpu(products: str | None = None) -> Iterator[None]:
    """Programs for a TPU in what is lowered meanwhile, and products of that precision, None leaving
    it as it is.
    """
    before = flags.put(flags.FOR_TPU, flags.FOR_TPU)
    try:
        with contextlib.nullcontext() if products is None else precision.precision(products):
            yield
    finally:
        flags.put(flags.FOR_TPU, before)
