"""Padded tensors inside a program: a value at the sizes of a bucket, and which part of it counts.

Each dimension is a row-major product of factors, each with a size (what counts) and a room (what
the buffer has). One factor is the usual case: the first `size` of `room` elements count. Several
come from reshapes that merge padded dimensions, [b, s, d] -> [b * s, d], which then cost nothing.
What does not count is anything, NaN included: whoever mixes elements along a dimension fills it
first (`filled`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy

from torchtpu_core.compile.padded.sizes import Inexact, Sizes, factors, is_open, quotient
from torchtpu_core.lowering.indexing import take
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.value import Number


class Factor(NamedTuple):
    """`size` elements count, of `room`."""

    size: sympy.Basic
    room: int

    @property
    def full(self) -> bool:
        """Everything counts."""
        return self.size == self.room


Dim = tuple[Factor, ...]

ONE: Dim = (Factor(sympy.Integer(1), 1),)


def fixed(n: int) -> Dim:
    """A dimension without padding."""
    return (Factor(sympy.Integer(n), int(n)),)


def room(dim: Dim) -> int:
    """How many elements the value has along a dimension."""
    return math.prod(f.room for f in dim)


def size(dim: Dim) -> sympy.Basic:
    """How many of them count."""
    return sympy.Mul(*(f.size for f in dim))


def is_padded(dim: Dim) -> bool:
    """Whether some elements along the dimension do not count."""
    return not all(f.full for f in dim)


def is_prefix(dim: Dim) -> bool:
    """Whether those that count come first."""
    return len(dim) == 1


def joined(fs: Sequence[Factor]) -> Dim:
    """A dimension of these factors, with as few of them as possible."""
    out: list[Factor] = []
    for f in fs:
        if f.size == 1 and f.room == 1:
            continue
        if out and f.full:  # a full inner factor only makes the outer one's elements larger
            out[-1] = Factor(out[-1].size * f.size, out[-1].room * f.room)
        else:
            out.append(f)
    return tuple(out) or ONE


@dataclass(frozen=True)
class Padded:
    """A tensor inside a padded program; `value` has the rooms of `dims` as its shape."""

    value: Value
    dims: tuple[Dim, ...]

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def shape(self) -> tuple[sympy.Basic, ...]:
        """The sizes that count."""
        return tuple(map(size, self.dims))

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def padded(self) -> list[int]:
        """The dimensions with padding."""
        return [d for d, dim in enumerate(self.dims) if is_padded(dim)]


class Layouts:
    """What can be done with padded tensors of one program."""

    def __init__(self, b: Builder, sizes: Sizes):
        self.b, self.sizes = b, sizes
        self._masks: dict[Dim, Value] = {}

    # ---- making them -----------------------------------------------------------------------------

    def prefix(self, n: sympy.Basic | int) -> Dim:
        """The dimension of size `n` whose first elements count."""
        n = sympy.sympify(n)
        return (Factor(n, self.sizes.room(n)),)

    def boundary(self, n: sympy.Basic, order: dict[sympy.Symbol, int]) -> Dim:
        """The dimension of size `n` as it leaves and enters programs: a product of several open
        sizes keeps them apart, outermost the one that comes first in `order`.
        """
        coefficient, powers = factors(n)
        atoms = [s for s in powers for _ in range(powers[s])]
        if coefficient < 1 or len(atoms) < 2 or not all(s.is_Symbol for s in atoms):
            return self.prefix(n)
        atoms.sort(key=lambda s: order.get(s, len(order)))
        atoms[-1] = atoms[-1] * coefficient
        return tuple(self.prefix(s)[0] for s in atoms)

    def of(self, x: Any) -> Padded:
        """A tensor with or without padding."""
        return x if isinstance(x, Padded) else Padded(x, tuple(map(fixed, x.shape)))

    def result(self, value: Value, dims: Sequence[Dim]) -> Any:
        """A tensor as rules return it: a plain Value where nothing is open."""
        dims = tuple(dims)
        if value.shape != tuple(map(room, dims)):
            raise AssertionError(f"a value of shape {value.shape} for {dims}")
        return Padded(value, dims) if any(map(is_padded_or_open, dims)) else value

    # ---- padding ---------------------------------------------------------------------------------

    def counts(self, dim: Dim) -> Value:
        """i1 along one dimension: which elements count."""
        if dim not in self._masks:
            b, rooms = self.b, [f.room for f in dim]
            mask = b.constant(True, "i1", rooms)
            for i, f in enumerate(dim):
                if not f.full:
                    limit = b.splat(self.sizes.count(f.size), rooms)
                    mask = mask & b.compare(b.iota("i32", rooms, i), limit, "LT")
            self._masks[dim] = b.reshape(mask, (room(dim),))
        return self._masks[dim]

    def mask(self, x: Padded, dims: Sequence[int] | None = None) -> Value | None:
        """i1 of the shape of `x`: which elements count, by `dims` (all); None if all do."""
        b = self.b
        which = [d for d in x.padded() if dims is None or d in dims]
        parts = [b.broadcast_in_dim(self.counts(x.dims[d]), x.value.shape, [d]) for d in which]
        return functools.reduce(b.and_, parts) if parts else None

    def filled(self, x: Any, fill: Number | Value, dims: Sequence[int] | None = None) -> Value:
        """The value of `x` with `fill` where it does not count, by `dims` (all)."""
        if not isinstance(x, Padded):
            return x
        mask = self.mask(x, dims)
        return x.value if mask is None else self.b.select(mask, x.value, fill)

    def resized(self, v: Value, d: int, n: int) -> Value:
        """`v` cut or padded with zeros to `n` elements along `d`."""
        if v.shape[d] == n:
            return v
        if v.shape[d] > n:
            return self.b.slice_dim(v, d, 0, n)
        high = [n - v.shape[d] if i == d else 0 for i in range(v.ndim)]
        return self.b.pad(v, 0, [0] * v.ndim, high)

    # ---- from one layout to another --------------------------------------------------------------

    def plain(self, x: Padded, dims: Sequence[int] | None = None) -> Padded:
        """`x` whose `dims` (all) have their counting elements first, in the usual room."""
        wanted = [
            self.prefix(size(dim)) if dims is None or d in dims else dim
            for d, dim in enumerate(x.dims)
        ]
        return self.as_(x, wanted)

    def as_(self, x: Padded, dims: Sequence[Dim]) -> Padded:
        """`x` in another layout of the same sizes."""
        dims = tuple(dims)
        if x.dims == dims:
            return x
        pairs = list(zip(x.dims, dims))
        if all(p == q or (is_prefix(p) and is_prefix(q)) for p, q in pairs):
            v = x.value
            for d, q in enumerate(dims):
                v = self.resized(v, d, room(q))
            return Padded(v, dims)
        return self._moved(x, dims)

    def common(self, out: Sequence[sympy.Basic], xs: Sequence[Any]) -> list[Dim]:
        """The layout of the broadcast of `xs`, whose sizes are `out`."""
        dims: list[Dim] = []
        for i, n in enumerate(out):
            met = []
            for x in xs:
                at = i - len(out) + len(x.dims if isinstance(x, Padded) else x.shape)
                if isinstance(x, Padded) and at >= 0 and size(x.dims[at]) != 1:
                    met.append(x.dims[at])
            usual = self.prefix(n)
            same = bool(met) and all(dim == met[0] for dim in met)
            dims.append(met[0] if same and (len(met[0]) > 1 or met[0] == usual) else usual)
        return dims

    def aligned(self, x: Any, dims: Sequence[Dim]) -> Value:
        """The value of `x` in the layout `dims`, of which it may lack leading ones or have 1."""
        if not isinstance(x, Padded) and not any(map(is_padded_or_open, dims)):
            return x
        x = self.of(x)
        own = dims[len(dims) - x.ndim :]
        own = [p if size(p) == 1 and room(p) == 1 else q for p, q in zip(x.dims, own)]
        return self.as_(x, own).value

    def reshaped(self, x: Any, sizes: Sequence[sympy.Basic]) -> Any:
        """`x` seen with other sizes of the same number of elements."""
        x = self.of(x)
        sizes = [sympy.sympify(n) for n in sizes]
        dims = self._regrouped(x, sizes)
        if dims is None:
            dims = list(map(self.prefix, sizes))
            return self.result(self._moved(x, dims).value, dims)
        v = self.b.reshape(x.value, list(map(room, dims)))
        moved = self.result(v, dims)
        if not isinstance(moved, Padded):
            return moved
        # a single factor whose room is not the usual one (a cut of an odd bucket) is put right
        usual = [self.prefix(n) if is_prefix(d) else d for d, n in zip(dims, sizes)]
        return self.result(self.as_(moved, usual).value, usual)

    def _regrouped(self, x: Padded, sizes: Sequence[sympy.Basic]) -> list[Dim] | None:
        """The dimensions of `x` when its factors are dealt out to `sizes` in order, or None."""
        queue = [f for dim in x.dims for f in dim if not (f.size == 1 and f.room == 1)]
        dims: list[Dim] = []
        for n in sizes:
            need, got = n, []
            while need != 1:
                if not queue:
                    return None
                f = queue.pop(0)
                rest = quotient(need, f.size)
                if rest is not None:
                    got.append(f)
                    need = rest
                    continue
                inner = quotient(f.size, need)
                if inner is None or not inner.is_Integer or inner == 0 or f.room % int(inner):
                    return None
                got.append(Factor(need, f.room // int(inner)))
                queue.insert(0, Factor(inner, int(inner)))
                need = sympy.Integer(1)
            dims.append(joined(got))
        return None if queue else dims

    def _moved(self, x: Padded, dims: Sequence[Dim]) -> Padded:
        """`x` in any layout of as many elements, by a gather: the row-major place of each element
        among those that count leads from one to the other.
        """
        b, dims = self.b, tuple(dims)
        keep = 0  # trailing dimensions that both sides have alike stay as they are
        while keep < min(x.ndim, len(dims)) and x.dims[x.ndim - 1 - keep] == dims[-1 - keep]:
            keep += 1
        source, target = x.dims[: x.ndim - keep], dims[: len(dims) - keep]
        tail = x.value.shape[x.ndim - keep :]
        rows, wanted = (math.prod(map(room, side)) for side in (source, target))
        if max(rows, wanted) >= 1 << 31:
            raise Inexact("a reshape of more than 2^31 elements")
        shape = [f.room for dim in target for f in dim]
        if rows == 0 or wanted == 0:
            return Padded(b.constant(0, x.dtype, [*map(room, target), *tail]), dims)
        place = b.constant(0, "i32", shape)
        for i, f in enumerate(f for dim in target for f in dim):
            if f.room != 1:
                place = place * b.splat(self.sizes.count(f.size), shape) + b.iota("i32", shape, i)
        index, stride = b.constant(0, "i32", shape), 1
        for f in reversed([f for dim in source for f in dim]):
            n = b.splat(b.maximum(self.sizes.count(f.size), b.constant(1, "i32")), shape)
            index = index + b.remainder(place, n) * stride
            place, stride = b.divide(place, n), stride * f.room
        flat = b.reshape(x.value, (rows, *tail))
        moved = take(b, flat, b.reshape(index, (wanted,)), 0)
        return Padded(b.reshape(moved, [*map(room, target), *tail]), dims)


def is_padded_or_open(dim: Dim) -> bool:
    """Whether a dimension is anything but a fixed number of elements that all count."""
    return is_padded(dim) or any(is_open(f.size) for f in dim)
