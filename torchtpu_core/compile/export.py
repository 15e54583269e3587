"""Programs of torch.export as StableHLO: one module whose arguments are the weights and the inputs,
by the lowering that everything else has. Nothing in it is particular to this package, so any
compiler of StableHLO takes it.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchtpu_core.lowering import registry
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.random_bits import random_input
from torchtpu_core.stablehlo import Module, TensorType, Value


@dataclass(frozen=True)
class Argument:
    """One argument or result of @main.

    name: the parameter's or buffer's full name ("layers.0.weight"), or that of the input or result;
    kind: parameter, buffer, constant, input or random for arguments; output, buffer or input (a new
    value of that one) for results; dtype and shape: the tensor's.
    """

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StableHLOProgram:
    """What `export_stablehlo` makes.

    text: the module, arguments in the order of `arguments`, each named after it; results in the
    order of `results`.
    """

    text: str
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    _state: dict[str, torch.Tensor] = field(repr=False)

    @property
    def bytecode(self) -> bytes:
        """`serialize` for the default version."""
        return self.serialize()

    def serialize(self, version: str | None = None) -> bytes:
        """The module as portable bytecode (VHLO), for readers of a StableHLO `version` ("1.0.0") or
        newer; None: what every reader of the last 12 weeks takes.

        No function of the PJRT C API writes it, so this needs the package jaxlib (not JAX), and
        raises ImportError without it. ValueError for a version that the installed one does not
        write, or that lacks what the program uses.
        """
        return serialize(self.text, version)

    def feed(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """The tensors to pass for `arguments`: the weights, and the leaves of a call's arguments. A
        program that draws random numbers takes a seed and an offset besides, two uint64, last.
        """
        leaves = iter(pytree.tree_leaves((args, kwargs)))
        return [
            next(leaves) if a.kind == "input" else self._state[a.name]
            for a in self.arguments
            if a.kind != "random"
        ]


def serialize(text: str, version: str | None = None) -> bytes:
    """A module's text as portable bytecode (`StableHLOProgram.serialize`)."""
    try:
        # The serializer behind jax.export, which also legalizes CHLO, of which VHLO has nothing.
        # It is nowhere public: the extra pins what it was seen to work with.
        mlir = importlib.import_module("jaxlib._jax").mlir
        stablehlo = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
    except (ImportError, AttributeError) as e:
        raise ImportError(
            "portable StableHLO bytecode is written by jaxlib, which is not installed (or is not a "
            "version that can): pip install 'torchtpu[export]'. Without it write `.text`, which "
            "PJRT plugins compile as it is; StableHLO's own tool converts it: "
            "stablehlo-translate --serialize --target=<version> program.mlir"
        ) from e
    if version is None:
        weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(weeks)
    known = [stablehlo.get_minimum_version(), stablehlo.get_current_version()]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not (
        _numbers(known[0]) <= _numbers(version) <= _numbers(known[1])
    ):
        raise ValueError(
            f"StableHLO version {version!r}: the installed jaxlib writes {known[0]} to {known[1]}"
        )
    try:
        return mlir.serialize_portable_artifact(text.encode(), version)
    except Exception as e:  # of the library's own kind
        raise ValueError(f"no StableHLO {version} can be made of the program: {e}") from e


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def export_stablehlo(
    program: ExportedProgram | torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> StableHLOProgram:
    """The StableHLO of an exported program; of a module, exported with `args` and `kwargs`.

    Raises NotImplementedError for open sizes, and for an operator that is not lowered with its
    line.
    """
    from torchtpu_core.compile import layers
    from torchtpu_core.compile.control_flow import Interpreter

    exported = (
        torch.export.export(program, args, kwargs)
        if isinstance(program, torch.nn.Module)
        else program
    ).run_decompositions(_composites())
    gm = layers.share(exported.graph_module)
    module = Module("exported")
    b = module.function("main", [], public=True)
    specs = exported.graph_signature.input_specs
    placeholders = gm.graph.find_nodes(op="placeholder")
    names: dict[str, Argument] = {}
    values: list[Any] = []
    taken: set[str] = set()
    for node, spec in zip(placeholders, specs, strict=True):
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            values.append(None if val is None else spec.arg.value)
            continue
        argument = _argument(spec, val)
        arg = b.add_arg(TensorType(mlir(val.dtype), argument.shape))
        arg.name = "%" + _identifier(argument.name, taken)
        arg.row_major = val.is_contiguous()
        names[node.name] = argument
        values.append(arg)
    out = Interpreter(b, gm).run(values)
    if random_input(b) is not None:
        names["random"] = Argument("random", "random", torch.uint64, (2,))
    results, described = [], []
    for value, spec in zip(out, exported.graph_signature.output_specs, strict=True):
        if not isinstance(value, Value):
            continue
        results.append(value)
        described.append(_result(spec, value, names))
    b.finish(results)
    state = {**exported.state_dict, **exported.constants}
    return StableHLOProgram(str(module), tuple(names.values()), tuple(described), state)


def _composites() -> dict[Any, Any]:
    """The operators that torch.export keeps whole though PyTorch only defines them by others."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return {
        op: fn
        for op, fn in torch.export.default_decompositions().items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
        and registry.find(op) is None
    }


_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


def _argument(spec: Any, val: torch.Tensor) -> Argument:
    if not all(isinstance(n, int) for n in val.shape):
        raise NotImplementedError(
            f"export_stablehlo: {spec.arg.name} has open sizes {tuple(val.shape)}; the program is "
            "written for fixed ones: export without dynamic_shapes, once for each set of sizes"
        )
    return Argument(
        spec.target or spec.arg.name,
        _KINDS.get(spec.kind.name, "input"),
        val.dtype,
        tuple(val.shape),
    )


def _result(spec: Any, value: Value, names: dict[str, Argument]) -> Argument:
    from torchtpu_core.lowering.dtypes import torch_dtype

    kind = {"BUFFER_MUTATION": "buffer", "USER_INPUT_MUTATION": "input"}
    target = spec.target if spec.kind.name == "BUFFER_MUTATION" else None
    if spec.kind.name == "USER_INPUT_MUTATION":
        target = names[spec.target].name
    return Argument(
        target or spec.arg.name,
        kind.get(spec.kind.name, "output"),
        torch_dtype(value.dtype),
        tuple(value.shape),
    )


def _identifier(name: str, taken: set[str]) -> str:
    """A name as MLIR may write it after a %, used once."""
    name = re.sub(r"[^A-Za-z0-9_.$-]", "_", name)
    name = name if name[:1].isalpha() else f"_{name}"
    unique, i = name, 0
    while unique in taken:
        i += 1
        unique = f"{name}_{i}"
    taken.add(unique)
    return unique
