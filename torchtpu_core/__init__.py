"""TorchTPU: PyTorch's device `tpu`. Importing this package (which `import torch` does through the
entry point `torch.backends`) registers the device and the module torch.tpu; no plugin is loaded and
no client created before the device is first used."""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"

_loaded = False


def _autoload() -> None:
    """Registers the device with PyTorch, once. The entry point calls it from within `import torch`;
    importing this package first gets here before that, and then the entry point finds it done."""
    global _loaded
    if _loaded:
        return
    _loaded = True

    import torch

    from torchtpu_core import patches, tpu

    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    patches.apply()


def stats() -> dict[str, Any]:
    """Programs compiled, cache hits, executions, host transfers and fallbacks so far; and, under
    "graphs", the programs of each compiled graph and why there is more than one. Once something was
    compiled by `torch.compile`: how many graphs AOTAutograd traced (forward and backward are two),
    how many were found on disk instead, and how many were lowered.
    """
    import torchtpu_core._C as _C

    recompiles = sys.modules.get("torchtpu_core.compile.recompiles")
    counts = recompiles.counts() if recompiles else {}
    return _C.stats() | counts | {"graphs": recompiles.report() if recompiles else {}}


def export_stablehlo(program: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
    """The StableHLO of a torch.export program, or of a module exported with `args`: see
    compile/export.py.
    """
    from torchtpu_core.compile import export

    return export.export_stablehlo(program, args, kwargs)


def reset_stats() -> None:
    """Sets the counters of `stats` to zero."""
    import torchtpu_core._C as _C

    _C.reset_stats()
    recompiles = sys.modules.get("torchtpu_core.compile.recompiles")
    if recompiles:
        recompiles.reset()


_autoload()
