"""Graphs at the sizes of a bucket: the lowering of ops on tensors of which only a part counts.

`sizes` has open sizes, `layout` padded tensors, `walk` the interpreter; the other modules have the
rules: what an op does with padding. An op on tensors without padding, and an elementwise one, is
lowered as ever; an op without a rule is `Inexact`, upon which its graph is compiled for each set of
sizes.
"""

from torchtpu_core.compile.padded import (
    factory,
    indexing,
    movement,
    order,
    products,
    random,
    reduction,
    windows,
)
from torchtpu_core.compile.padded.layout import Layouts, Padded
from torchtpu_core.compile.padded.sizes import Inexact, Sizes
from torchtpu_core.compile.padded.walk import Walk, has_rule

__all__ = ["Inexact", "Layouts", "Padded", "Sizes", "Walk", "has_rule"]

del (
    factory,
    indexing,
    movement,
    order,
    products,
    random,
    reduction,
    windows,
)  # imported for their rules
