"""Rules of random ops: an element gets the bits of its place among those that count, and a draw
takes as many as there are of them, so that numbers are those of the unpadded graph.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from torchtpu_core.compile.padded.layout import Padded
from torchtpu_core.compile.padded.sizes import Sizes
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.lowering.random_bits import RandomState
from torchtpu_core.stablehlo import Builder, Value


class OpenRandomState(RandomState):
    """A random state whose draws are of open size; `total` is what they take, in blocks."""

    def __init__(self, b: Builder, sizes: Sizes):
        super().__init__(b)
        self.sizes = sizes
        self.total: sympy.Basic = sympy.Integer(0)
        self.drawn: sympy.Basic | None = None  # elements of the draw under way, if open
        self.room = 0

    def take(self, b: Builder, blocks: int) -> Value:
        """A Philox state at the current offset, which moves on by what the elements that count
        need of `blocks`."""
        state = self.key
        if self.total != 0:
            step = b.reshape(self.sizes.count(self.total, "ui64"), (1,))
            state = state + b.pad(step, 0, [1], [0])
        self.blocks += blocks
        taken = sympy.Integer(blocks)
        if self.drawn is not None:
            width = 4 if blocks == -(-self.room * 4 // 16) else 8
            taken = FloorDiv(self.drawn * width + 15, 16)
        self.total = self.total + taken
        return state


@rule("native_dropout", "bernoulli", "bernoulli.p", "uniform", "normal_functional")
@rule("rand_like", "randn_like", "randint_like", "randint_like.low_dtype")
def _like(w: Walk, node, x, *args, **kwargs):
    x = w.layouts.of(x)
    n = sympy.Mul(*x.shape)
    flat = w.layouts.plain(w.layouts.of(w.layouts.reshaped(x, [n])))
    args = [w.sizes.number(a) for a in args]
    return _drawn(w, node, n, flat, lambda: w.lower(node.target, flat.value, *args, **kwargs))


@rule("rand", "randn")
def _sized(w: Walk, node, sizes, **kwargs):
    return _new(w, node, [], kwargs)


@rule("randint", "randint.low")
def _integers(w: Walk, node, *args, **kwargs):
    return _new(w, node, [w.sizes.number(a) for a in args[:-1]], kwargs)


def _new(w: Walk, node, bounds: list[Any], kwargs: dict[str, Any]) -> Any:
    n = sympy.Mul(*w.shape(node))
    room = w.sizes.room(n)
    flat = Padded(w.b.constant(0, "i1", (room,)), (w.layouts.prefix(n),))
    return _drawn(w, node, n, flat, lambda: w.lower(node.target, *bounds, [room], **kwargs))


def _drawn(w: Walk, node, n: sympy.Basic, flat: Padded, draw) -> Any:
    state: OpenRandomState = w.b.random
    state.drawn, state.room = n, flat.value.shape[0]
    try:
        out = draw()
    finally:
        state.drawn = None

    def shaped(v: Value, i: int | None) -> Any:
        line = Padded(v, flat.dims)
        again = w.layouts.of(w.layouts.reshaped(line, w.shape(node, i)))
        return w.result(node, again.value, again.dims, i)

    if isinstance(out, (list, tuple)):
        return [shaped(v, i) for i, v in enumerate(out)]
    return shaped(out, None)
