"""Parts of an FX graph as graphs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import GraphModule, Node


def outside(nodes: Sequence[Node]) -> list[Node]:
    """What some nodes read that is not among them, in order of use."""
    inside = set(nodes)
    return list(dict.fromkeys(n for x in nodes for n in x.all_input_nodes if n not in inside))


def extract(gm: GraphModule, nodes: Sequence[Node], results: Iterable[Node]) -> GraphModule:
    """The subgraph of `nodes`, whose placeholders are what they read from outside (`outside`) and
    whose output is the tuple of `results`. Attributes among the nodes come along.
    """
    graph = torch.fx.Graph()
    env: dict[Node, Node] = {}
    for n in outside(nodes):
        env[n] = graph.placeholder(n.name)
        env[n].meta = dict(n.meta)
    for n in nodes:
        env[n] = graph.node_copy(n, env.__getitem__)
    graph.output(tuple(env[n] for n in results))
    attributes = {str(n.target): getattr(gm, str(n.target)) for n in nodes if n.op == "get_attr"}
    return GraphModule(attributes, graph)
