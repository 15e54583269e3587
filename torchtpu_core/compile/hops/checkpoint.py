"""Activation checkpointing in the graphs that the partitioner makes: the forward saves the random
state before each draw that the backward repeats.

A saved state is ui64[2], as in lowering/random_bits.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile.hops import handles
from torchtpu_core.lowering import graph
from torchtpu_core.lowering.random_bits import current_state, drawing_from
from torchtpu_core.stablehlo import Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


@handles("run_and_save_rng_state")
def _run_and_save(
    walk: Interpreter, node: torch.fx.Node, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """(the random state before, the results of `op`)."""
    state = current_state(walk.b)
    return state, graph.lower_op(walk.b, op, args, kwargs, None)


@handles("run_with_rng_state")
def _run_with(
    walk: Interpreter, node: torch.fx.Node, state: Value, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """`op` drawing what it drew from a saved state."""
    with drawing_from(walk.b, state):
        return graph.lower_op(walk.b, op, args, kwargs, None)
