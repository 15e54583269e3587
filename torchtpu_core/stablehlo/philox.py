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

from torchtpu_core.stablehlo import wide

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
    parts = [b.convert(half, "ui32") for v in (first, key) for half in wide.halves(b, v)]
    keys = parts[2:]
    low, high, *rest = (b.expand(part, shape) for part in parts)
    low = low + block
    carry = b.convert(b.compare(low, block, "LT"), "ui32")
    words = [low, high + carry, *rest]
    for _ in range(_ROUNDS):
        factors = list(zip(words[::2], _MULTIPLIERS))
        upper0, upper1 = (wide.high_product(b, x, m) for x, m in factors)
        lower0, lower1 = (x * m for x, m in factors)
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
        more = b.binary("shift_right_logical", *b.broadcast(place, 2))
        block, place = block + more, place & 3
        pitch *= shape[d]
    return block, place
