"""From a function, module or exported program to a functional ATen graph, with neither weights nor
a device: arguments become fake tensors on `tpu`, the function runs once on them, and what it did is
the graph. Backward passes and optimizer steps that it makes are part of it; tensors that it writes
in place are the graph's to write.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from torchtpu_core.aot import locate

_DEVICE = torch.device("tpu", 0)


@dataclass(frozen=True)
class Input:
    """An input of a graph. kind: parameter, buffer, state (of an optimizer) or argument."""

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class Captured:
    """A functional graph whose placeholders are `inputs`; writes to them are copy_ nodes."""

    gm: torch.fx.GraphModule
    inputs: list[Input]
    name: str


def capture(
    target: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> Captured:
    """The graph of one call.

    target: a function (modules among its arguments, in its closure and its globals become
    parameters and buffers), an nn.Module or a torch.export.ExportedProgram, whose own example
    inputs serve where no arguments are given. Tensors may be meta, fake or real; only shapes,
    strides and dtypes are looked at.
    """
    if isinstance(target, torch.export.ExportedProgram):
        return _exported(target)
    target = getattr(target, "_orig_mod", target)  # of a module that torch.compile was given
    kwargs = dict(kwargs or {})
    modules = _modules(target, args, kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    leaves, spec = pytree.tree_flatten((list(args), kwargs))
    named: list[tuple[str, str, torch.Tensor]] = []
    for prefix, module in modules.items():
        for kind, tensors in (
            ("parameter", module.named_parameters()),
            ("buffer", module.named_buffers()),
        ):
            named += [(f"{prefix}{name}", kind, t) for name, t in tensors]
    n_weights = len(named)
    paths = _paths(args, kwargs)
    where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    named += [(*_kind(paths[i]), leaves[i]) for i in where]
    fakes = [_fake(mode, t) for _, _, t in named]

    def run(*tensors: torch.Tensor) -> list[Any]:
        full = list(leaves)
        for i, t in zip(where, tensors[n_weights:]):
            full[i] = t
        call_args, call_kwargs = pytree.tree_unflatten(full, spec)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_weights(modules, tensors[:n_weights]))
            stack.enter_context(locate.recording(modules))
            # What torch.compile was given runs as it is: the whole becomes one program anyway.
            stack.enter_context(torch._dynamo.config.patch(error_on_nested_fx_trace=False))
            out = target(*call_args, **call_kwargs)
        return [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]

    # Backward in this thread, where the modes that trace are.
    with mode, torch.autograd.set_multithreading_enabled(False), locate.preserving():
        try:
            gm = make_fx(run)(*fakes)
        except (DataDependentOutputException, DynamicOutputShapeException) as e:
            raise NotImplementedError(
                f"{_title(target)} depends on a tensor's value ({e.func}), and ahead of time there "
                f"is none: a tensor operation such as torch.where takes its place\n"
                f"{locate.user_line(e)}"
            ) from e
        gm = _functional(gm, fakes)
    _warn_of_random_backward(gm)
    inputs = [
        Input(name, kind, t.dtype, tuple(t.shape), tuple(t.stride())) for name, kind, t in named
    ]
    return Captured(gm, inputs, _title(target))


def _warn_of_random_backward(gm: torch.fx.GraphModule) -> None:
    """A graph has one stream of random numbers, so a block that is computed again draws others."""
    for node in gm.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded not in tags or not locate.in_backward(node):
            continue
        arguments = node.target._schema.arguments
        given = {a.name: a.default_value for a in arguments}
        given.update(zip(given, node.args))
        given.update(node.kwargs)
        if given.get("dropout_p") != 0.0:  # attention without dropout has the tag as well
            warnings.warn(
                f"{node.target} draws its random numbers anew where a block is recomputed in "
                "backward: what the program costs is right, its gradients are not. Without dropout "
                f"they are\n{node.meta.get('stack_trace') or ''}".rstrip(),
                stacklevel=3,
            )
            return


def _title(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)


def _fake(mode: FakeTensorMode, t: torch.Tensor) -> torch.Tensor:
    meta = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
    return FakeTensor(mode, meta, _DEVICE).requires_grad_(t.requires_grad)


def _paths(args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """A name for each leaf of the arguments."""
    found, _ = pytree.tree_flatten_with_path((list(args), kwargs))
    names = []
    for (_, first, *rest), _leaf in found:
        if isinstance(first, pytree.SequenceKey):
            head = f"arg{first.idx}"
        else:
            head = str(first.key if isinstance(first, pytree.MappingKey) else first)
        names.append(head + "".join(str(k) for k in rest))
    return names


def _kind(path: str) -> tuple[str, str]:
    """(name, kind): arguments named like a train step's (models.train_step) are what they say."""
    for prefix, kind in (("arg0['parameters']", "parameter"), ("arg0['state']", "state")):
        if path.startswith(prefix):
            return path[len("arg0['") :].replace("']['", ".").replace("']", ""), kind
    return path, "argument"


def _modules(target: Any, args: Sequence[Any], kwargs: Any) -> dict[str, torch.nn.Module]:
    """The modules that a call may use, by a prefix for the names of their tensors."""
    if isinstance(target, torch.nn.Module):
        return {"": target}
    found: dict[str, torch.nn.Module] = {}
    leaves = zip(_paths(args, kwargs), pytree.tree_leaves((list(args), kwargs)))
    named = list(leaves)
    function = inspect.unwrap(target)
    if inspect.ismethod(function):
        named.append(("self", function.__self__))
        function = function.__func__
    if inspect.isfunction(function):
        outside = inspect.getclosurevars(function)
        named += [*outside.nonlocals.items(), *outside.globals.items()]
    elif not isinstance(function, type):
        named += getattr(function, "__dict__", {}).items()
    for name, value in named:
        known = any(value is m for m in found.values())
        if isinstance(value, torch.nn.Module) and not known:
            found[name] = value
    if len(found) == 1:
        return {"": next(iter(found.values()))}
    return {f"{name}.": m for name, m in found.items()}


@contextlib.contextmanager
def _weights(
    modules: dict[str, torch.nn.Module], tensors: Sequence[torch.Tensor]
) -> Iterator[None]:
    """`tensors` in place of the modules' parameters and buffers."""
    feed = iter(tensors)
    with contextlib.ExitStack() as stack:
        for module in modules.values():
            names = [n for n, _ in [*module.named_parameters(), *module.named_buffers()]]
            new = dict(zip(names, feed))
            stack.enter_context(
                torch.nn.utils.stateless._reparametrize_module(module, new, tie_weights=True)
            )
        yield


def _functional(gm: torch.fx.GraphModule, fakes: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph without writes, other than copy_ nodes to its placeholders at the end."""
    mutable = [
        n
        for n in gm.graph.nodes
        if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable
    ]
    if mutable:
        replay = torch.fx.Interpreter(gm).run
        call = torch.func.functionalize(lambda *ts: replay(*ts), remove="mutations")
        with torch.no_grad():
            gm = make_fx(call)(*[t.detach() for t in fakes])
    gm.graph.eliminate_dead_code(is_impure_node=_kept)
    gm.recompile()
    return gm


def _kept(node: torch.fx.Node) -> bool:
    return node.op in ("placeholder", "output") or node.target is torch.ops.aten.copy_.default


def _exported(program: torch.export.ExportedProgram) -> Captured:
    """An exported program's graph, its parameters as inputs and its mutations as writes."""
    program = program.run_decompositions({})
    gm, signature = program.graph_module, program.graph_signature
    kinds = {
        torch.export.graph_signature.InputKind.PARAMETER: "parameter",
        torch.export.graph_signature.InputKind.BUFFER: "buffer",
    }
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    inputs = []
    for node, spec in zip(placeholders, signature.input_specs):
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            raise NotImplementedError(
                f"the exported program's input {node.name} is {val!r}: only tensors are inputs of "
                "a program for a TPU; export it with that value fixed"
            )
        name = spec.target or node.name
        inputs.append(
            Input(
                name, kinds.get(spec.kind, "argument"), val.dtype, tuple(val.shape),
                tuple(val.stride()),
            )
        )  # fmt: skip
    by_name = {n.name: n for n in placeholders}
    by_target = {i.name: n for i, n in zip(inputs, placeholders)}
    output = next(n for n in gm.graph.nodes if n.op == "output")
    results = []
    for value, spec in zip(output.args[0], signature.output_specs):
        kind = spec.kind.name
        if kind.endswith("_MUTATION"):
            target = by_target.get(spec.target) or by_name[spec.target]
            with gm.graph.inserting_before(output):
                copy = gm.graph.call_function(torch.ops.aten.copy_.default, (target, value))
            copy.meta["val"] = target.meta["val"]
        else:
            results.append(value)
    output.args = (tuple(results),)
    gm.recompile()
    return Captured(gm, inputs, type(program).__name__)


#: for annotations elsewhere
Target = Callable[..., Any] | torch.nn.Module | torch.export.ExportedProgram
