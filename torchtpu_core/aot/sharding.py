"""Named meshes of devices and how tensors are split over them, as Shardy attributes
(openxla/shardy, docs/sharding_representation.md) of a program's arguments and results.

Propagation is the compiler's. Arguments go first and weights second (Shardy's priorities 0 and 1):
where both are split over one axis, as in FSDP, activations follow the data and weights are
gathered.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtpu_core.aot.capture import Input

#: one entry a dimension: an axis, several of them, or None for a dimension that is not split
Spec = Sequence[str | Sequence[str] | None]
#: by pattern of the input's name (fnmatch; the first that matches counts), or a function of it
Shardings = Mapping[str, Spec] | Callable[[Input], Spec | None]


@dataclass(frozen=True)
class Mesh:
    """Axis names and sizes, the last one fastest over the topology's devices."""

    axes: dict[str, int]

    @property
    def size(self) -> int:
        """How many devices it has."""
        return math.prod(self.axes.values())

    def text(self) -> str:
        """The mesh as an op of the module."""
        axes = ", ".join(f'"{name}"={n}' for name, n in self.axes.items())
        return f"  sdy.mesh @mesh = <[{axes}]>"

    def sharding(self, spec: Spec, priority: int) -> str:
        """The attribute of an argument; `spec` has an entry for each dimension."""
        dims = []
        for entry in spec:
            names = [entry] if isinstance(entry, str) else list(entry or ())
            inside = ", ".join(f'"{n}"' for n in names)
            dims.append("{" + inside + "}" + (f"p{priority}" if names else ""))
        return f"#sdy.sharding<@mesh, [{', '.join(dims)}]>"


def check(shardings: Shardings | None, mesh: Mesh | None, inputs: Sequence[Input]) -> None:
    """ValueError for shardings without a mesh, and for a pattern that is no input's."""
    if shardings is not None and mesh is None:
        raise ValueError("shardings say how inputs are split over a mesh: give mesh= as well")
    names = [x.name for x in inputs]
    for pattern in shardings if isinstance(shardings, Mapping) else ():
        if not fnmatch.filter(names, pattern):
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ValueError(f"sharding of {pattern!r}: no input has that name, only {shown}")


def spec_of(shardings: Shardings | None, mesh: Mesh, x: Input) -> Spec | None:
    """How `x` is split, one entry a dimension; None where nothing is said: then the compiler
    chooses. ValueError for what the mesh or the shape does not allow.
    """
    if shardings is None:
        return None
    if callable(shardings):
        spec = shardings(x)
    else:
        spec = next((s for p, s in shardings.items() if fnmatch.fnmatchcase(x.name, p)), None)
    if spec is None:
        return None
    if len(spec) > len(x.shape):
        raise ValueError(f"sharding of {x.name}: {len(spec)} entries for {len(x.shape)} dimensions")
    spec = (*spec, *[None] * (len(x.shape) - len(spec)))
    for size, entry in zip(x.shape, spec):
        names = [entry] if isinstance(entry, str) else list(entry or ())
        for name in names:
            if name not in mesh.axes:
                raise ValueError(
                    f"sharding of {x.name}: the mesh has no axis {name!r}, only {list(mesh.axes)}"
                )
        parts = math.prod(mesh.axes[n] for n in names)
        if size % parts:
            raise ValueError(
                f"sharding of {x.name}: a dimension of {size} does not split into {parts} parts"
            )
    return spec


def fsdp(axis: str, devices: int) -> Callable[[Input], Spec | None]:
    """Everything split over one axis: arguments by their first dimension, weights and optimizer
    state by the largest that divides; what does not divide is on every device.
    """

    def split(x: Input) -> Spec | None:
        sizes = x.shape if x.kind != "argument" else x.shape[:1]
        fitting = [i for i, n in enumerate(sizes) if n % devices == 0 and n > 0]
        where = max(fitting, key=lambda i: sizes[i], default=None)
        return [axis if i == where else None for i in range(len(x.shape))]

    return split
