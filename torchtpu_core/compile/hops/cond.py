"""torch.cond as stablehlo.if: both branches are emitted, one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile.hops import handles
from torchtpu_core.compile.hops.common import as_type, result_types
from torchtpu_core.lowering.random_bits import random_blocks, skip
from torchtpu_core.stablehlo import Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


@handles("cond")
def _cond(
    walk: Interpreter, node: torch.fx.Node, pred: Any, then: Any, other: Any, operands: Any = ()
) -> Any:
    """Both branches draw from where the random state stands, as eager's one branch does; the
    program then counts the larger number of draws.
    """
    if not isinstance(pred, Value):
        return walk.inline(then if pred else other, operands)
    b, types = walk.b, result_types(walk, then)
    start = most = random_blocks(b)

    def branch(gm: torch.fx.GraphModule) -> Callable[[], list[Value]]:
        def emit() -> list[Value]:
            nonlocal most
            out = walk.inline(gm, operands)
            most = max(most, random_blocks(b))
            skip(b, start - random_blocks(b))
            return [as_type(b, v, t) for v, t in zip(out, types, strict=True) if t is not None]

        return emit

    present = [t for t in types if t is not None]
    values = iter(b.if_(b.reshape(pred, ()), branch(then), branch(other), present))
    skip(b, most - start)
    return [None if t is None else next(values) for t in types]
