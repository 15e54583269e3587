"""Higher-order operators as XLA's own control flow, one module a family. A handler gets the walk
over the graph, the node, and the node's arguments with Values for tensors and GraphModules for
subgraphs; it returns what the node does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

_FAMILIES = ("cond", "loops", "associative_scan", "flex_attention", "regions", "checkpoint")

_HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the handler of a higher-order operator."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        _HANDLERS[name] = fn
        return fn

    return register


@cache
def _load() -> None:
    for family in _FAMILIES:
        importlib.import_module(f"{__name__}.{family}")


def refusal(name: str) -> str | None:
    """Why a higher-order operator cannot be lowered; None if it can be."""
    _load()
    if name in _HANDLERS:
        return None
    return f"the higher-order operator {name} is not lowered to StableHLO"


def handler(name: str) -> Callable[..., Any]:
    """The handler of a higher-order operator; NotImplementedError names one that has none."""
    why = refusal(name)
    if why is not None:
        raise NotImplementedError(why)
    return _HANDLERS[name]
