"""Fixtures of the PJRT tests: one client a process, and fresh processes for what needs its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtpu_core import _C, config, plugin

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cpu_plugin() -> Any:
    """XLA's CPU plugin, loaded."""
    path = plugin.cpu_plugin_path()
    assert path is not None, "the tests need the package xla-cpu-pjrt"
    return _C.pjrt.load_plugin(str(path))


@pytest.fixture(scope="session")
def client(cpu_plugin: Any) -> Any:
    """A client with one CPU device."""
    return cpu_plugin.create_client({"cpu_device_count": 1})


@pytest.fixture
def fresh_config() -> Any:
    """Settings are read anew in the test, and once more after it."""
    config.reload()
    plugin.find.cache_clear()
    yield
    config.reload()
    plugin.find.cache_clear()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_python(code, check=True, **environment)`: the code in a process of its own."""

    def run(code: str, *, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **env},
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
