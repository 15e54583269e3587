"""Regions that the user marked: invoke_subgraph (torch.compiler.nested_compile_region), a private
function that is lowered once and called by every region that shares it; and what torch.export
leaves of `torch.no_grad` and `torch.autocast` blocks, whose effect is in the operators inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile import outline
from torchtpu_core.compile.hops import handles

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


@handles("invoke_subgraph")
def _invoke_subgraph(
    walk: Interpreter, node: torch.fx.Node, gm: Any, name: Any, *operands: Any
) -> Any:
    return outline.call(walk, gm, str(name), operands)


@handles("wrap_with_set_grad_enabled")
def _grad_enabled(
    walk: Interpreter, node: torch.fx.Node, enabled: bool, gm: Any, *operands: Any
) -> Any:
    return walk.inline(gm, operands)


@handles("wrap_with_autocast")
def _autocast(
    walk: Interpreter,
    node: torch.fx.Node,
    device: str,
    dtype: Any,
    enabled: bool,
    cache: Any,
    gm: Any,
    *operands: Any,
) -> Any:
    return walk.inline(gm, operands)
