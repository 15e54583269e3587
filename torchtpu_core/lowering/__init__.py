"""ATen operators as StableHLO: one file a family, and the routes that lead to them.

Importing this package registers every lowering. It is imported on the first program that has to be
built, never by `import torch`.
"""

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

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _NOT_FAMILIES:
        importlib.import_module(f"{__name__}.{_module.name}")
