"""From Dynamo's graph to callables: AOTAutograd splits forward from backward and makes both
functional, and each half becomes a graph of the dispatcher, with what belongs on the CPU taken from
there and back around it.

What lowers graphs is imported where one is lowered: what is on disk does not wait for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core import plans
from torchtpu_core.compile import recompiles, stored
from torchtpu_core.plans import Plan

if TYPE_CHECKING:
    from torchtpu_core.compile.graph_program import GraphProgram


def compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The compiled form of a graph from Dynamo."""
    from torch._dynamo.backends.common import aot_autograd

    options: dict[str, Any] = {}
    if any(isinstance(x, torch.SymInt) for t in example_inputs for x in _numbers(t)):
        options["decompositions"] = _decompositions()
    with stored.compiling(_wants_one_graph(), gm):
        found = stored.find(gm, example_inputs)
        if found is not None:
            return found
        from torchtpu_core.compile import partition

        return aot_autograd(
            fw_compiler=stored.compiler("forward"),
            bw_compiler=stored.compiler("backward"),
            inference_compiler=stored.compiler("graph"),
            partition_fn=partition.split,
            keep_inference_input_mutations=True,
            **options,
        )(gm, example_inputs)


def _wants_one_graph() -> bool:
    """Whether Dynamo, if it is what calls, was told fullgraph=True."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:
        return False
    return bool(tx.one_graph or tx.error_on_graph_break)


def _numbers(x: Any) -> Sequence[Any]:
    return x.shape if isinstance(x, torch.Tensor) else (x,)


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own, for graphs with open sizes: of the ops that padding has no rule for, if they
    draw no random numbers (which would be others than eager's).
    """
    from torch._decomp import core_aten_decompositions, decomposition_table

    from torchtpu_core.compile import padded

    table = dict(core_aten_decompositions())
    for packet in _DECOMPOSED.split():
        for overload in getattr(torch.ops.aten, packet).overloads():
            op = getattr(getattr(torch.ops.aten, packet), overload)
            if op in decomposition_table:
                table[op] = decomposition_table[op]
    return {
        op: fn
        for op, fn in table.items()
        if isinstance(op, torch._ops.OpOverload)
        and not padded.has_rule(op)
        and torch.Tag.nondeterministic_seeded not in op.tags
    }


#: ops that are decomposed beyond PyTorch's core set, where sizes are open
_DECOMPOSED = """
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    native_layer_norm_backward native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update_functional native_batch_norm_backward batch_norm_backward
    native_group_norm native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward
"""


def runner(
    name: str, gm: torch.fx.GraphModule, whole: bool, key: str | None
) -> tuple[Callable[[list[Any]], Any], Outside | None]:
    """What runs a functional graph: takes the list of arguments, which it empties; returns the list
    of results. And what a call needs to know of the graph; None if it is more than one program.
    `whole`: an operator that nothing can run is an error now, not when it is reached; `key`: by
    which its plans are kept on disk, None for those that are not.
    """
    from torchtpu_core.compile import split
    from torchtpu_core.compile.graph_program import GraphProgram

    cut = split.check(gm, whole)
    if cut:
        parts = itertools.count()

        def run_of(part: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
            return runner(f"{name}, part {next(parts)}", part, False, None)[0]

        return split.runner(gm, cut, run_of), None
    program = GraphProgram(gm)
    outside = Outside.of(program)
    if program.has_open_sizes:
        return _open(name, program, outside), outside
    return stored_runner(name, outside, lambda: gm, key), outside


@dataclass
class Outside:
    """What a call of a graph needs to know of it. num_inputs, device and constants are those of
    GraphProgram; names: of the placeholders; host: what of it is on the CPU.
    """

    num_inputs: int
    names: list[str]
    device: torch.device
    constants: list[torch.Tensor]
    host: _HostTraffic | None

    @staticmethod
    def of(program: GraphProgram) -> Outside:
        """That of a graph."""
        names = [n.name for n in program.placeholders]
        host = _host_traffic(program.gm)
        return Outside(program.num_inputs, names, program.device, program.constants, host)


def stored_runner(
    name: str, outside: Outside, read: Callable[[], torch.fx.GraphModule], key: str | None
) -> Callable[[list[Any]], Any]:
    """What runs a graph, which `read` gives where one of its programs is not on disk."""
    from torchtpu_core import _C

    watch = recompiles.Watch(name, outside.names)

    @cache
    def program() -> GraphProgram:
        from torchtpu_core.compile import layers
        from torchtpu_core.compile.graph_program import GraphProgram

        return GraphProgram(layers.share(read()))

    def build(args: Sequence[Any]) -> Plan:
        call = None if key is None else plans.graph_key(key, args)
        plan = None if call is None else plans.find(call)
        if plan is None:
            recompiles.count("graphs_lowered")
            plan = program().build(args)
            if key is not None and call is not None:
                plans.keep(call, plan)
                plans.keep_latest(key, call)
        return plan

    count = outside.num_inputs + len(outside.constants)
    compiled = _C.Graph(name, count, watch.building(build))
    return _around(compiled, watch, program, outside)


def _open(name: str, program: GraphProgram, outside: Outside) -> Callable[[list[Any]], Any]:
    """What runs a graph with open sizes."""
    from torchtpu_core.compile.bucketed import BucketedGraph

    watch = recompiles.Watch(name, outside.names)
    return _around(BucketedGraph(name, program, watch), watch, lambda: program, outside)


def _around(
    compiled: Callable[[list[Any]], Any],
    watch: recompiles.Watch,
    program: Callable[[], GraphProgram],
    outside: Outside,
) -> Callable[[list[Any]], Any]:
    """A graph of the dispatcher with what a call of it takes besides."""

    def graph(args: list[Any]) -> Any:
        try:
            return compiled(args)
        except RuntimeError as error:
            if watch.fresh is not None:
                from torchtpu_core.compile import blame

                known = program()
                blame.explain(error, known.gm, known.placeholders, *watch.fresh)
            raise
        finally:
            watch.fresh = None

    constants, host = outside.constants, outside.host
    if not constants and host is None:
        graph._boxed_call = True  # type: ignore[attr-defined]
        return graph

    on_device: list[torch.Tensor] = []  # copied there by the first call, outside of tracing

    def run(args: list[Any]) -> Any:
        if constants and not on_device:
            on_device.extend(c.detach().to(outside.device) for c in constants)
        if host is None:
            args.extend(on_device)
            return graph(args)
        given = list(args)
        moved = {i: given[i].to(outside.device) for i in host.moved}
        for i, t in moved.items():
            args[i] = t
        args.extend(on_device)
        results = graph(args)
        for i in host.written:
            given[i].copy_(moved[i])
        for i in host.results:
            results[i] = results[i].cpu()
        for i, j in host.untouched.items():
            results[i] = given[j]
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class _HostTraffic:
    """What of a graph is on the CPU, by position.

    moved: arguments to copy to the device; written: those of them to copy back; results: results to
    copy to the CPU; untouched: results that are arguments on the CPU.
    """

    moved: tuple[int, ...]
    written: tuple[int, ...]
    results: tuple[int, ...]
    untouched: dict[int, int]


def _host_traffic(gm: torch.fx.GraphModule) -> _HostTraffic | None:
    """None for a graph all on the device. 0-d CPU tensors that are only read travel as numbers."""
    nodes = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    position = {n: i for i, n in enumerate(placeholders)}
    copies = {n: n.args[0] for n in nodes if n.target is torch.ops.aten.copy_.default}
    written = {position[p] for p in copies.values() if p in position and _on_cpu(p)}
    moved = {i for p, i in position.items() if _on_cpu(p) and p.meta["val"].dim() > 0} | written
    results, untouched = [], {}
    for i, node in enumerate(nodes[-1].args[0]):
        node = copies.get(node, node)
        if not isinstance(node, torch.fx.Node) or not _on_cpu(node):
            continue
        if node in position:
            untouched[i] = position[node]
        else:
            results.append(i)
    if not moved and not results:
        return None
    return _HostTraffic(tuple(sorted(moved)), tuple(sorted(written)), tuple(results), untouched)


def _on_cpu(node: torch.fx.Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and val.device.type == "cpu"
