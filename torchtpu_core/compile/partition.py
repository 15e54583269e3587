"""How a joint graph is split into forward and backward: by PyTorch's min-cut partitioner, which
also decides what checkpointed regions recompute, with what its result lacks for the device.

Two things are added. A random state that the forward saves for a recomputed draw is described as
what it is here, ui64[2] on the device (PyTorch describes a CPU generator's state, which would be
copied to the host and back). And each recomputed region of the backward waits for the gradient that
needs it: without that, XLA may recompute every region at the start, or find that a recomputed value
equals one at hand, and the memory that checkpointing saves is taken after all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch


def split(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """(forward, backward) of a joint graph."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    _describe_states(forward, backward)
    _order_recomputation(backward)
    return forward, backward


def _describe_states(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    prims = torch._prims.rng_prims
    for node in forward.graph.nodes:
        if node.target is prims.run_and_save_rng_state:
            for user in node.users:
                if user.target is operator.getitem and user.args[1] == 0:
                    user.meta["val"] = _state(_device(_getitem(node, 1)), user)
    for node in backward.graph.nodes:
        if node.target is prims.run_with_rng_state:
            state = node.args[0]
            state.meta["val"] = _state(_device(node), state)


def _getitem(node: torch.fx.Node, i: int) -> torch.fx.Node:
    return next(u for u in node.users if u.target is operator.getitem and u.args[1] == i)


def _device(node: torch.fx.Node) -> torch.device:
    val = node.meta.get("val")
    if val is None:  # the partitioner copies the description to whoever takes the results
        val = [u.meta.get("val") for u in node.users]
    for x in val if isinstance(val, (list, tuple)) else [val]:
        if isinstance(x, torch.Tensor):
            return x.device
    return torch.device("tpu")


def _state(device: torch.device, node: torch.fx.Node) -> torch.Tensor:
    val = node.meta["val"]
    if device.type != "tpu":
        return val
    with val.fake_mode:  # what it is, lowering/random_bits.py says
        return torch.empty(2, dtype=torch.uint64, device=device)


def barrier(*values: torch.Tensor) -> list[torch.Tensor]:
    """The same values, none of which exists before all do; a node of the graphs that `split` makes,
    emitted as stablehlo.optimization_barrier.
    """
    return list(values)


def _recomputed(node: torch.fx.Node) -> bool:
    from torch.utils.checkpoint import CheckpointPolicy

    policy = node.meta.get("recompute")
    return node.op == "call_function" and policy in (
        CheckpointPolicy.MUST_RECOMPUTE,
        CheckpointPolicy.PREFER_RECOMPUTE,
    )


def _order_recomputation(backward: torch.fx.GraphModule) -> None:
    """Inserts a barrier before each recomputed region, between what it reads and the latest
    gradient that was computed before it.
    """
    graph = backward.graph
    gradients = _gradients(graph)
    latest: torch.fx.Node | None = None
    regions: dict[Any, list[torch.fx.Node]] = {}
    gates: dict[Any, torch.fx.Node | None] = {}
    for node in graph.nodes:
        if node in gradients and _is_tensor(node):
            latest = node
        if _recomputed(node) and node not in gradients:
            region = node.meta.get("ac_graph_id")
            if region not in regions:
                regions[region], gates[region] = [], latest
            regions[region].append(node)
    for region, nodes in regions.items():
        gate = gates[region]
        if gate is not None:
            _gate(graph, nodes, gate)
    backward.recompile()


def _gradients(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that depend on a tangent."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if "tangents" in node.name:
                found.add(node)
        elif any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _gate(graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node], gate: torch.fx.Node) -> None:
    inside = set(nodes)
    order = {n: i for i, n in enumerate(graph.nodes)}
    outside = dict.fromkeys(
        n
        for node in nodes
        for n in node.all_input_nodes
        if n not in inside and _is_tensor(n) and order[n] < order[nodes[0]]
    )
    if not outside:
        return
    with graph.inserting_before(nodes[0]):
        gated = graph.call_function(barrier, (*outside, gate))
        gated.meta["val"] = [n.meta["val"] for n in (*outside, gate)]
        taken = {}
        for i, n in enumerate(outside):
            taken[n] = graph.call_function(operator.getitem, (gated, i))
            taken[n].meta["val"] = n.meta["val"]
    for node in nodes:
        for n, held in taken.items():
            node.replace_input_with(n, held)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and node.op != "get_attr"
