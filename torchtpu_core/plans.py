"""What the dispatcher has to know of a program besides its executable, and the store that keeps it
on disk beside that, so that a process that meets only what an earlier one met lowers nothing and
never imports the lowerings.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

import torchtpu_core._C as _C
from torchtpu_core import cache, programs


@dataclass
class Plan:
    """A program and how to run it.

    inputs: ("slot", tensor) | ("host", tensor, dtype) | ("scalar", index, dtype) | ("random",)
    outputs: (dtype, base dims, sizes, strides, tensor): tensor is the index of the tensor whose
    slot receives the
        new base, or -1 for a new tensor.
    returns: one entry a schema return: ("out", i) | ("outs", [i..]) | ("arg", argument) | ("none",)
    counted: outputs (all of them new tensors) whose size along a dim is data, as (output, dim,
    order): the program has them at their bound, and after all outputs one i64 vector of these
    sizes. `order`: the dims of the tensor from slowest to fastest in memory.
    host: the call runs on the CPU after all; then nothing else is set.
    checks: what the program finds out about its data (bounds.py); its last result is their outcome.
    donate: inputs whose buffer the program may reuse for an output.
    resize: `out=` tensors to resize before the call is repeated, as (tensor, sizes); then nothing
    else is set.
    """

    text: str = ""
    inputs: list[tuple] = field(default_factory=list)
    outputs: list[tuple] = field(default_factory=list)
    returns: list[tuple] = field(default_factory=list)
    donate: list[int] = field(default_factory=list)
    checks: list[tuple[bool, str]] = field(default_factory=list)
    random_blocks: int = 0
    resize: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    counted: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    host: bool = False


#: what a plan is made by: a change of any of them makes other plans
_MAKERS = ("lowering", "stablehlo", "compile", "plans.py", "precision.py")


@functools.cache
def makers() -> str:
    """A digest of PyTorch's version, of the sources that make plans, and of the build of the
    extension, which describes calls."""
    built = os.stat(_C.__file__)
    identity = (torch.__version__, built.st_size, built.st_mtime_ns)
    digest = hashlib.sha256(repr(identity).encode())
    root = Path(__file__).parent
    for name in _MAKERS:
        path = root / name
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if source.exists():
                digest.update(source.name.encode())
                digest.update(source.read_bytes())
    return digest.hexdigest()


def _get(key: str) -> Any:
    # Every program is reported while it is lowered: then each has to be.
    payload = None if programs.logged() else cache.default_cache().get(key)
    if payload is None:
        return None
    try:
        return pickle.loads(payload)
    except Exception:  # an entry that another PyTorch wrote is a miss like any other
        return None


def _put(key: str, value: Any) -> None:
    cache.default_cache().put(key, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _route_key(op: str) -> str:
    return cache.ProgramCache.key("route", makers().encode(), op)


def find_route(op: str) -> tuple[int, list[int], str] | None:
    """What `lowering.program.route` said of an operator ("aten::add.Tensor"), if that is known."""
    return _get(_route_key(op))


def keep_route(op: str, route: tuple[int, list[int], str]) -> None:
    """Keeps what `lowering.program.route` says of an operator."""
    _put(_route_key(op), route)


def key(op: str, fingerprint: str, call: bytes) -> str:
    """The key of the plan for a call of `op`, described by the dispatcher's key, on a plugin."""
    return cache.ProgramCache.key(f"plan {op} {fingerprint}", makers().encode(), call)


def graph_key(graph: str, args: Sequence[Any]) -> str:
    """The key of the plan for a call of a compiled graph, which is described by a key of its own;
    `args`: as the dispatcher describes them (TensorSpecs and numbers).
    """
    from torchtpu_core import plugin

    # A CPU number that is fed at run time is not part of the program.
    call = [replace(x, value=None) if getattr(x, "host", False) else x for x in args]
    platform = plugin.find().platform
    kernels = platform == "cpu" and _C.has_kernels()  # which programs may call
    described = repr((call, _C.program_flags(), platform, kernels))
    return cache.ProgramCache.key(f"graph {graph}", makers().encode(), described)


def find(plan_key: str) -> Plan | None:
    """The plan of a key, if it is known."""
    values = _get(plan_key)
    return Plan(*values) if isinstance(values, tuple) and len(values) == len(fields(Plan)) else None


def keep(plan_key: str, plan: Plan) -> None:
    """Keeps a plan."""
    _put(plan_key, astuple(plan))


def _latest_key(graph: str) -> str:
    return cache.ProgramCache.key(f"latest {graph}", makers().encode(), "")


def keep_latest(graph: str, plan_key: str) -> None:
    """Remembers which plan of a compiled graph was built last."""
    _put(_latest_key(graph), plan_key)


def load_ahead(graph: str) -> None:
    """Begins to load the program of a compiled graph that was built last, which is likely to be the
    one that is asked for; another one is loaded when it is. Does nothing before the device is used.
    """
    plan_key = _get(_latest_key(graph)) if _C.is_initialized() else None
    plan = None if plan_key is None else find(plan_key)
    if plan is not None and plan.text:
        _C.load_ahead(plan.text)
