"""Programs for TPUs that are not there: libtpu compiles for a named slice on any Linux machine.

    from torchtpu_core import aot
    compiled = aot.compile_for(model, (x,), topology="v5p:2x2x1")
    print(compiled.memory, compiled.roofline, compiled.top_ops[:5])

The compiler runs in processes of its own (pool.py, worker.py); no plugin is loaded into this one,
and no TPU is used. Names are imported at their first use: the compiler's processes need none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtpu_core.aot.api import (
        compile_for,
        compile_many,
        compile_program,
        lowered,
        topology_of,
    )
    from torchtpu_core.aot.errors import (
        AotError,
        CompilerCrash,
        CompileTimeout,
        DoesNotFit,
        InvalidProgram,
        LibtpuMissing,
        UnknownTopology,
        WrongChip,
    )
    from torchtpu_core.aot.result import Compiled
    from torchtpu_core.aot.sharding import fsdp

__all__ = [
    "AotError",
    "CompileTimeout",
    "Compiled",
    "CompilerCrash",
    "DoesNotFit",
    "InvalidProgram",
    "LibtpuMissing",
    "UnknownTopology",
    "WrongChip",
    "compile_for",
    "compile_many",
    "compile_program",
    "fsdp",
    "lowered",
    "topology_of",
]

_ELSEWHERE = {"Compiled": "result", "fsdp": "sharding"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _ELSEWHERE.get(name, "errors" if name[0].isupper() else "api")
    return getattr(import_module(f"{__name__}.{home}"), name)
