"""The programs that are built in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from torchtpu_core import _C, plans
from torchtpu_core.lowering import program


def of_graphs(text: str) -> bool:
    """Whether a program is a compiled graph's."""
    return "module @graph" in text


def built_texts(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[str], bool] = lambda text: True
) -> list[str]:
    """The StableHLO of every program built from now on, in order, of those that are `wanted`.

    Whatever is called is built: no plan is found on disk, nor what this process met before among
    the dispatcher's programs.
    """
    found: list[str] = []
    seal = program.seal

    def spy(b: Any, module: Any, plan: Any, *rest: Any) -> None:
        seal(b, module, plan, *rest)
        if wanted(plan.text):
            found.append(plan.text)

    monkeypatch.setattr(program, "seal", spy)
    # Not `plans.find`: the dispatcher looks that up once, and would keep what is there by then.
    monkeypatch.setattr(plans, "_get", lambda key: None)
    for _ in range(64):  # each time half of what is left goes
        _C._evict_programs(0)
    return found


@contextmanager
def graph_texts() -> Iterator[list[str]]:
    """`built_texts` of the compiled graphs called meanwhile."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield built_texts(monkeypatch, of_graphs)
