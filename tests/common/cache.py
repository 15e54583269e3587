"""Where tests keep compiled programs: in the checkout's build folder, so that the next run finds
them; and other settings for a part of a test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def use_test_cache() -> None:
    """Point TORCHTPU_CACHE_DIR, unless it is set, at build/test-cache; for this process and its
    children.
    """
    os.environ.setdefault("TORCHTPU_CACHE_DIR", str(_ROOT / "build" / "test-cache"))


@contextmanager
def settings(**variables: str) -> Iterator[None]:
    """TORCHTPU_* variables, in force in this process meanwhile: it reads each of them once, so that
    a variable that is only set may change nothing, or outlast the test.
    """
    # Not above: the device is loaded with torch, after `use_test_cache`.
    from torchtpu_core import cache, config

    def read_anew() -> None:
        config.reload()
        cache.default_cache.cache_clear()

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        read_anew()
        try:
            yield
        finally:
            monkeypatch.undo()
            read_anew()
