"""Which dimensions of an earlier value the dimensions of a reshaped or transposed value come from.

PyTorch multiplies and sums over matrices where the program has batches of sequences: it flattens
first. On a TPU such a reshape is a copy whenever the compiler would rather have another order of
the flattened dimensions in memory. Products and sums that look through it leave that order free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu_core.stablehlo.value import Value

if TYPE_CHECKING:
    from torchtpu_core.stablehlo.builder import Builder

#: for each dimension of a value, dimensions of its source that it consists of, outermost first
Groups = list[list[int]]


def split(x: Value, ordered: bool = True) -> tuple[Value, Groups]:
    """(source, groups): `x` before dimensions of sizes other than 1 were merged, which may be `x`
    itself. The groups name the source's dimensions, in order if `ordered`: transposed if need be.
    """
    source, groups = _trace(x)
    if not any(len([d for d in g if source.shape[d] != 1]) > 1 for g in groups):
        return x, [[d] for d in range(x.ndim)]
    return _in_order(source, groups) if ordered else (source, groups)


def _in_order(source: Value, groups: Groups) -> tuple[Value, Groups]:
    source = source.b.transpose(source, [d for g in groups for d in g])
    return source, _numbered([len(g) for g in groups])


def merged(b: Builder, source: Value, groups: Groups, which: Sequence[int]) -> tuple[Value, Groups]:
    """What `split` gave, with the groups in `which` merged again; in order, if there are any."""
    if not which:
        return source, groups
    source, groups = _in_order(source, groups)
    lengths = [1 if i in which else len(g) for i, g in enumerate(groups)]
    shape: list[int] = []
    for i, g in enumerate(groups):
        sizes = [source.shape[d] for d in g]
        shape += [math.prod(sizes)] if i in which else sizes
    return b.reshape(source, shape), _numbered(lengths)


def unmerged(x: Value, dim: int) -> tuple[Value, int]:
    """(source, d): `x` before dimensions other than `dim` were merged, which is dimension d of it.
    What is computed of the source is as that of `x`, once reshaped to its shape.
    """
    dim = dim % x.ndim
    source, groups = split(x)
    if len(groups[dim]) > 1:
        source, groups = merged(x.b, source, groups, [dim])
    return source, groups[dim][0]


def _numbered(lengths: Sequence[int]) -> Groups:
    feed = itertools.count()
    return [[next(feed) for _ in range(n)] for n in lengths]


def _trace(x: Value) -> tuple[Value, Groups]:
    """Back through transposes and through one reshape, where it merged. Not further: a merge before
    that is the user's.
    """
    order, at = list(range(x.ndim)), x
    while at.origin is not None and at.origin[1] is not None:
        at, perm = at.origin
        order = [perm[d] for d in order]
    groups = None if at.origin is None else _merges(at.origin[0].shape, at.shape)
    if at.origin is None or groups is None:
        return at, [[d] for d in order]
    return at.origin[0], [groups[d] for d in order]


def _merges(old: tuple[int, ...], new: tuple[int, ...]) -> Groups | None:
    """How a reshape merges dimensions; None if it splits one, or has none or nothing to merge."""
    if not old or 0 in old:
        return None
    groups: Groups = []
    at = 0
    for n in new:
        group, size = [], 1
        while at < len(old) and (size < n or not group):
            if size * old[at] > n:
                break
            group.append(at)
            size *= old[at]
            at += 1
        if size != n or not group:
            return None
        groups.append(group)
    if any(old[d] != 1 for d in range(at, len(old))) or not groups:
        return None
    groups[-1] += range(at, len(old))
    return groups
