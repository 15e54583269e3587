"""while_loop, scan and map as stablehlo.while: the body is emitted once, whatever the number of
rounds.

Random numbers inside: the loop carries a random state, so that rounds differ. scan and map know
their length, and draw exactly what the unrolled rounds would; while_loop forks a state of its own,
since the host could not tell how far a data-dependent number of rounds has advanced the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_core.compile.hops import handles
from torchtpu_core.compile.hops.common import (
    as_type,
    as_value,
    draws,
    first_slice,
    result_types,
)
from torchtpu_core.lowering.random_bits import current_state, drawing_from, fork, skip
from torchtpu_core.stablehlo import Builder, TensorType, Value

if TYPE_CHECKING:
    from torchtpu_core.compile.control_flow import Interpreter

Body = Callable[[Sequence[Value]], list[Value]]


def _loop(
    b: Builder,
    state: Sequence[Value],
    cond: Callable[[Sequence[Value]], Value],
    body: Body,
    key: Value | None,
) -> tuple[list[Value], int]:
    """The final state of a loop, and how many blocks of random bits one round draws. `key`: the
    random state that the first round draws from, None for a body that draws nothing.
    """
    blocks = 0

    def step(*s: Value) -> list[Value]:
        nonlocal blocks
        if key is None:
            return body(s)
        with drawing_from(b, s[-1]) as random:
            out = body(s[:-1])
            blocks = random.blocks
            return [*out, current_state(b)]

    carried = list(state) if key is None else [*state, key]
    out = b.while_(carried, lambda *s: cond(s), step)
    return out[: len(state)], blocks


@handles("while_loop")
def _while_loop(
    walk: Interpreter, node: torch.fx.Node, cond: Any, body: Any, carried: Any, extra: Any = ()
) -> Any:
    b = walk.b
    state = [as_value(b, v) for v in carried]
    if draws(cond):
        raise NotImplementedError("the condition of while_loop draws random numbers")
    key = fork(b) if draws(body) else None
    out, _ = _loop(
        b,
        state,
        lambda s: b.reshape(as_value(b, walk.inline(cond, [*s[: len(state)], *extra])[0]), ()),
        lambda s: [as_type(b, v, i.type) for v, i in zip(walk.inline(body, [*s, *extra]), state)],
        key,
    )
    return out


@handles("scan")
def _scan(
    walk: Interpreter, node: torch.fx.Node, combine: Any, init: Any, xs: Any, extra: Any = ()
) -> Any:
    """(final carries.., outputs stacked along dimension 0..)."""
    b = walk.b
    init = [as_value(b, v) for v in init]
    types = result_types(walk, combine)[len(init) :]
    length = xs[0].shape[0]

    def body(carry: Sequence[Value], slices: Sequence[Value]) -> tuple[list[Value], list[Any]]:
        out = walk.inline(combine, [*carry, *slices, *extra])
        return [as_type(b, v, i.type) for v, i in zip(out, init)], out[len(init) :]

    carry, stacked = _counted(walk, length, init, xs, types, body, draws(combine))
    return [*carry, *stacked]


@handles("map_impl")
def _map(walk: Interpreter, node: torch.fx.Node, fn: Any, xs: Any, extra: Any = ()) -> Any:
    def body(carry: Sequence[Value], slices: Sequence[Value]) -> tuple[list[Value], list[Any]]:
        return [], walk.inline(fn, [*slices, *extra])

    types = result_types(walk, fn)
    return _counted(walk, xs[0].shape[0], [], xs, types, body, draws(fn))[1]


def _counted(
    walk: Interpreter,
    length: int,
    init: Sequence[Value],
    xs: Sequence[Value],
    types: Sequence[TensorType | None],
    body: Callable[[Sequence[Value], Sequence[Value]], tuple[list[Value], list[Any]]],
    random: bool,
) -> tuple[list[Value], list[Any]]:
    """(final carries, stacked outputs) of `length` rounds of body(carries, slices of `xs` along
    dimension 0) -> (carries, outputs of `types`).
    """
    b = walk.b
    present = [t for t in types if t is not None]
    stacks = [b.constant(0, t.dtype, (length, *t.shape)) for t in present]
    n = len(init)

    def step(s: Sequence[Value]) -> list[Value]:
        at, carry, stacks = s[0], s[1 : 1 + n], s[1 + n :]
        carry, outs = body(carry, [first_slice(b, x, at) for x in xs])
        rows = [as_type(b, v, t) for v, t in zip(outs, types) if t is not None]
        stacks = [_put(b, stack, row, at) for stack, row in zip(stacks, rows, strict=True)]
        return [at + 1, *carry, *stacks]

    out, blocks = _loop(
        b,
        [b.constant(0, "i32"), *init, *stacks],
        lambda s: s[0] < length,
        step,
        current_state(b) if random else None,
    )
    skip(b, blocks * length)
    values = iter(out[1 + n :])
    return out[1 : 1 + n], [None if t is None else next(values) for t in types]


def _put(b: Builder, stack: Value, row: Value, at: Value) -> Value:
    zero = b.constant(0, at.dtype)
    starts = [at, *[zero] * row.ndim]
    return b.dynamic_update_slice(stack, b.unsqueeze(row, 0), starts)
