"""ATen operators as StableHLO: one file a family, and the routes that lead to them.

A process whose programs are all on disk needs none of them: they are imported where the first one
is looked for.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

_NOT_FAMILIES = {
    "bounds",
    "dtypes",
    "promotion",
    "registry",
    "decompose",
    "graph",
    "program",
    "variants",
    "host",
    "random_bits",
    "status",
    "unsupported",
}


@functools.cache
def register_all() -> None:
    """Imports every family, which registers its lowerings."""
    for module in pkgutil.iter_modules(__path__):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"{__name__}.{module.name}")
