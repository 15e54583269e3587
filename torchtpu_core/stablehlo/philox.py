"""Random bits for TPUs: Philox4x32-10 in so many words (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011).

The compiler has `rng_bit_generator` with this algorithm too, but lays the four words of a block
beside each other, which a TPU's tiles of 128 columns hold at 32 times the size: dropout of 25
million numbers took 3.3 GB and the time to move them. Here each number is computed for itself, with
all of its block: four times the arithmetic, no memory, and the same numbers.
"""

from __future__ import annotations

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
    """ui32 of this shape, of less than 2^34 numbers, as `rng_bit_generator` gives them. state:
    ui64[2], the key and the number of the first block; the key is the upper half of the blocks'
    128-bit numbers too.
    """
    key, first = (b.reshape(b.slice_dim(state, 0, i, i + 1), ()) for i in (0, 1))
    block, place = _places(b, tuple(shape))
    keys = list(_halves(b, key))
    low, high, *rest = (b.expand(part, shape) for part in (*_halves(b, first), *keys))
    low = low + block
    carry = b.convert(b.compare(low, block, "LT"), "ui32")
    words = [low, high + carry, *rest]
    for _ in range(_ROUNDS):
        (upper0, lower0), (upper1, lower1) = (
            _product(b, x, m) for x, m in zip(words[::2], _MULTIPLIERS)
        )
        k0, k1 = (b.expand(k, shape) for k in keys)
        words = [upper1 ^ words[1] ^ k0, lower1, upper0 ^ words[3] ^ k1, lower0]
        keys = [k + step for k, step in zip(keys, _STEPS)]
    odd, late = (place & 1).ne(0), (place & 2).ne(0)
    x, y = (b.select(odd, words[i + 1], words[i]) for i in (0, 2))
    return b.select(late, y, x)


def _places(b: Builder, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """The number of each element's block, from 0, and its place in it, in the lowest two bits."""
    # In two parts, since an element's number may have more than 32 bits.
    block, place, pitch = b.constant(0, "ui32", shape), b.constant(0, "ui32", shape), 1
    for d in reversed(range(len(shape))):
        index = b.iota("ui32", shape, d)
        block = block + index * (pitch >> 2)
        place = place + index * (pitch & 3)
        block, place = block + _shifted(b, place, 2), place & 3
        pitch *= shape[d]
    return block, place


def _halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """The lower and the upper half of a ui64 as ui32."""
    return b.convert(x, "ui32"), b.convert(_shifted(b, x, 32), "ui32")


def _product(b: Builder, x: Value, m: int) -> tuple[Value, Value]:
    """The upper and the lower 32 bits of x * m, by halves: a TPU has no wider product."""
    x0, x1 = x & 0xFFFF, _shifted(b, x, 16)
    m0, m1 = m & 0xFFFF, m >> 16
    middle = x0 * m1 + _shifted(b, x0 * m0, 16)
    other = x1 * m0 + (middle & 0xFFFF)
    return x1 * m1 + _shifted(b, middle, 16) + _shifted(b, other, 16), x * m


def _shifted(b: Builder, x: Value, n: int) -> Value:
    return b.binary("shift_right_logical", *b.broadcast(x, n))
