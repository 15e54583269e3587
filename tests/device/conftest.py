"""What the device tests share: a fresh interpreter for whatever is about a process's life."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs a script in a new interpreter, with extra environment, and returns what it printed."""

    def run(script: str, **env: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, f"exit code {result.returncode}\n{result.stderr}"
        return result.stdout.strip()

    return run
