"""What the device tests share: a fresh interpreter for whatever is about a process's life."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_python(run_python: Callable[..., Any]) -> Callable[..., str]:
    """Runs a script in a new interpreter, with extra environment, and returns what it printed."""
    return lambda script, **env: run_python(script, **env).stdout.strip()
