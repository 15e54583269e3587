"""Random bits for TPUs: Philox4x32-10 in so many words (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011).

The compiler has `rng_bit_generator` with this algorithm too, but lays the four words of a block
beside each other, which a TPU's tiles of 128 columns hold at 32 times the size: dropout of 25
million numbers took 3.3 GB. Here the first words of all blocks come first, then the second ones:
the same words as XLA's, in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder, Value

#: the multipliers of a round, and what a round adds to the keys
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

#: numbers from which on memory matters; fewer are left to the compiler, as less to compile
MANY = 1 << 14


def bits(b: Builder, state: Value, shape: Sequence[int]) -> Value:
    """ui32 of this shape. state: ui64[2], the key and the number of the first block; as XLA has it,
    the key is the upper half of the blocks' 128-bit numbers too.
    """
    shape = tuple(shape)
    # Words of a block are apart along a dimension, not the last two: nothing moves between tiles.
    axis = next((d for d in range(len(shape) - 2) if shape[d] % 4 == 0), None)
    if axis is None:
        n = math.prod(shape)
        flat = _words(b, state, (-(-n // 4),), 0)
        return b.reshape(b.slice_dim(flat, 0, 0, n), shape)
    return _words(b, state, (*shape[:axis], shape[axis] // 4, *shape[axis + 1 :]), axis)


def _words(b: Builder, state: Value, shape: tuple[int, ...], axis: int) -> Value:
    """Blocks in this shape, row-major, with their four words one after the other along `axis`."""
    key, first = (b.reshape(b.slice_dim(state, 0, i, i + 1), ()) for i in (0, 1))
    index, pitch = b.constant(0, "ui32", shape), 1
    for d in reversed(range(len(shape))):
        index = index + b.iota("ui32", shape, d) * pitch
        pitch *= shape[d]
    keys = list(_halves(b, key))
    low, high, *rest = (b.expand(part, shape) for part in (*_halves(b, first), *keys))
    low = low + index
    carry = b.convert(b.compare(low, index, "LT"), "ui32")
    words = [low, high + carry, *rest]
    for i in range(_ROUNDS):
        # Else each word's part of the result is computed with the whole block again; half way too,
        # which on a TPU is faster than all in one kernel, and compiles in half the time.
        if i == _ROUNDS // 2:
            words = b.barrier(words)
        (upper0, lower0), (upper1, lower1) = (
            _product(b, x, m) for x, m in zip(words[::2], _MULTIPLIERS)
        )
        k0, k1 = (b.expand(k, shape) for k in keys)
        words = [upper1 ^ words[1] ^ k0, lower1, upper0 ^ words[3] ^ k1, lower0]
        keys = [k + step for k, step in zip(keys, _STEPS)]
    return b.concatenate(b.barrier(words), axis)


def _halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """The lower and the upper half of a ui64 as ui32."""
    upper = b.binary("shift_right_logical", *b.broadcast(x, 32))
    return b.convert(x, "ui32"), b.convert(upper, "ui32")


def _product(b: Builder, x: Value, m: int) -> tuple[Value, Value]:
    """The upper and the lower 32 bits of x * m, by halves: a TPU has no wider product."""
    x0, x1 = x & 0xFFFF, _upper(b, x)
    m0, m1 = m & 0xFFFF, m >> 16
    middle = x0 * m1 + _upper(b, x0 * m0)
    other = x1 * m0 + (middle & 0xFFFF)
    return x1 * m1 + _upper(b, middle) + _upper(b, other), x * m


def _upper(b: Builder, x: Value) -> Value:
    return b.binary("shift_right_logical", *b.broadcast(x, 16))
