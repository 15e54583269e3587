"""Private functions: a subgraph that occurs several times is lowered once, and called.

A function is found again by its graph and by everything that shapes what is emitted: the types of
the tensors it is given, and the numbers. Random numbers inside: the function takes the random state
as its last argument, and the caller moves on by what one call draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core.compile import layers
from torchtpu_core.lowering.random_bits import current_state, random_blocks, random_input, skip
from torchtpu_core.stablehlo import TensorType, Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter


@dataclass
class _Function:
    """name: in the module; results: for each result its type, or what it is if no tensor;
    row_major: as the Values' own; structure: of the results, which may hold lists; blocks: of
    random bits that a call draws; random: whether the random state is the last argument.
    """

    name: str
    results: list[Any]
    row_major: list[bool]
    structure: pytree.TreeSpec
    blocks: int
    random: bool


def call(walk: Interpreter, gm: torch.fx.GraphModule, name: str, args: Sequence[Any]) -> list[Any]:
    """The results of `gm` for `args`, by a call of the function that holds it."""
    b = walk.b
    leaves, _ = pytree.tree_flatten(list(args))
    values = [v for v in leaves if isinstance(v, Value)]
    key = (id(gm), tuple(_signature(v) for v in leaves))
    function = walk.functions.get(key)
    if function is None:
        function = walk.functions[key] = _emit(walk, gm, name, args)
    operands = [*values, current_state(b)] if function.random else values
    types = [t for t in function.results if isinstance(t, TensorType)]
    feed = iter(b.call(function.name, operands, types))
    skip(b, function.blocks)
    out = []
    for r, row_major in zip(function.results, function.row_major):
        v = next(feed) if isinstance(r, TensorType) else r
        if isinstance(v, Value):
            v.row_major = row_major
        out.append(v)
    return pytree.tree_unflatten(out, function.structure)


def _signature(x: Any) -> Any:
    if isinstance(x, torch.fx.GraphModule):
        return layers.structure(x)
    return (x.type, x.weak, x.row_major) if isinstance(x, Value) else (type(x), repr(x))


def _emit(walk: Interpreter, gm: torch.fx.GraphModule, name: str, args: Sequence[Any]) -> _Function:
    module = walk.b.module
    leaves, spec = pytree.tree_flatten(list(args))
    values = [v for v in leaves if isinstance(v, Value)]
    b = module.function(module.unique(name), [v.type for v in values])
    b.precision = walk.b.precision
    feed = iter(b.args)
    inner: list[Any] = []
    for x in leaves:
        if not isinstance(x, Value):
            inner.append(x)
            continue
        arg = next(feed)
        arg.weak, arg.row_major = x.weak, x.row_major
        inner.append(arg)
    out = walk.inside(b, gm).run(pytree.tree_unflatten(inner, spec))
    results, structure = pytree.tree_flatten(list(out) if isinstance(out, tuple) else out)
    random = random_input(b) is not None
    b.finish([v for v in results if isinstance(v, Value)])
    return _Function(
        b.name,
        [v.type if isinstance(v, Value) else v for v in results],
        [isinstance(v, Value) and v.row_major for v in results],
        structure,
        random_blocks(b),
        random,
    )
