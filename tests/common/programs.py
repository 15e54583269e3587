"""The programs that are built in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchtpu_core.lowering import program


def built_texts(
    monkeypatch: pytest.MonkeyPatch, wanted: Callable[[str], bool] = lambda text: True
) -> list[str]:
    """The StableHLO of every program built from now on, in order, of those that are `wanted`."""
    found: list[str] = []
    seal = program.seal

    def spy(b: Any, module: Any, plan: Any, *rest: Any) -> None:
        seal(b, module, plan, *rest)
        if wanted(plan.text):
            found.append(plan.text)

    monkeypatch.setattr(program, "seal", spy)
    return found
