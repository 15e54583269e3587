"""Where random lowerings get their bits: the program's random state, and the draws every
distribution starts from.

A program that draws has one more argument, ui64[2] = (seed, offset), a Philox key and the number of
16-byte blocks drawn before. Each draw takes a constant number of blocks, so the host only adds
`random_blocks` to its generator's offset when it launches the program: equal seeds give equal
numbers, whatever ran in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torchtpu_core.stablehlo import Builder, Value, philox
from torchtpu_core.stablehlo import types as T


class RandomState:
    """The random state of one program: `key` names the argument, `blocks` is how far the program
    has advanced it.
    """

    def __init__(self, b: Builder):
        # The argument joins the list last (`random_input`), so a draw does not disturb the order of
        # the others.
        self.key = Value(b, "%random", "ui64", (2,))
        self.blocks = 0
        self.listed = False

    def take(self, b: Builder, blocks: int) -> Value:
        """A Philox state at the current offset, which then moves on by `blocks`."""
        state = self.key
        if self.blocks:
            step = b.pad(b.constant(self.blocks, "ui64", (1,)), 0, [1], [0])
            state = state + step
        self.blocks += blocks
        return state


def _state(b: Builder) -> RandomState:
    state = getattr(b, "random", None)
    if state is None:
        state = b.random = RandomState(b)
    return state


def random_blocks(b: Builder) -> int:
    """How many blocks the program built so far consumes."""
    state = getattr(b, "random", None)
    return state.blocks if state is not None else 0


def current_state(b: Builder) -> Value:
    """ui64[2], the Philox state that the next draw would use; draws nothing."""
    return _state(b).take(b, 0)


def skip(b: Builder, blocks: int) -> None:
    """Counts draws that a nested scope made; a negative number takes back."""
    if blocks:
        _state(b).blocks += blocks


@contextmanager
def drawing_from(b: Builder, key: Value) -> Iterator[RandomState]:
    """What is emitted inside draws from `key`, ui64[2]; the program's own state stays put. Loops
    carry such a key, and checkpointed regions repeat one.
    """
    outer, inner = getattr(b, "random", None), RandomState(b)
    inner.key, inner.listed = key, True
    b.random = inner
    try:
        yield inner
    finally:
        b.random = outer


def random_input(b: Builder) -> Value | None:
    """The random state as the program's last argument, or None for a program that draws nothing.
    Call it before `finish`.
    """
    state = getattr(b, "random", None)
    if state is None:
        return None
    if not state.listed:
        b.args.append(state.key)
        b.arg_attrs.append("")
        state.listed = True
    return state.key


def bits(b: Builder, dtype: str, shape: Sequence[int]) -> Value:
    """Uniform bits of an unsigned type ("ui32" or "ui64")."""
    n = math.prod(shape)
    if n == 0:
        return b.constant(0, dtype, shape)
    state = _state(b).take(b, -(-n * T.ITEMSIZE[dtype] // 16))
    if b.module.target != "cpu" and dtype == "ui32" and n >= philox.MANY:
        return philox.bits(b, state, shape)
    return b.rng_bit_generator(state, dtype, shape)[1]


def fork(b: Builder) -> Value:
    """A state of its own for a loop that draws an unknown number of times: pass it to
    `rng_bit_generator` and keep what it returns.
    """
    return bits(b, "ui64", (2,))


#: bits of a float's mantissa, the hidden one included: k * 2^-n is exact and below 1 for k < 2^n
_MANTISSA = {"f32": 24, "f64": 53, "bf16": 8, "f16": 11}


def to_unit(b: Builder, raw: Value, dtype: str, half: bool = False) -> Value:
    """Bits as floats in [0, 1) on the finest even grid of `dtype`; with `half` in (0, 1), at the
    middle of each step.

    Low-precision results come as f32, which holds them exactly.
    """
    n = _MANTISSA[dtype] - half
    compute = "f64" if dtype == "f64" else "f32"
    width = T.bits(raw.dtype)
    k = b.convert(b.binary("shift_right_logical", *b.broadcast(raw, width - n)), compute)
    return (k + 0.5) * 2.0**-n if half else k * 2.0**-n


def unit(b: Builder, dtype: str, shape: Sequence[int], half: bool = False) -> Value:
    """Uniform floats in [0, 1), or (0, 1) with `half`; see `to_unit`."""
    return to_unit(b, bits(b, "ui64" if dtype == "f64" else "ui32", shape), dtype, half)


def normal(b: Builder, dtype: str, shape: Sequence[int]) -> Value:
    """Standard normal floats in f32 (f64 for f64), by the inverse of the distribution function."""
    compute = "f64" if dtype == "f64" else "f32"
    raw = bits(b, "ui64" if dtype == "f64" else "ui32", shape)
    # Sign and magnitude apart: every bit of the magnitude's mantissa counts, so the tails reach as
    # far as they can.
    u = to_unit(b, raw, compute, half=True)
    negative = b.binary("and", *b.broadcast(raw, 1)).eq(0)
    z = b.unary("chlo.erf_inv", u) * math.sqrt(2)
    return b.select(negative, -z, z)
