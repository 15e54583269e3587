"""Fixtures for all tests: fixed seeds, a program cache that outlives the run, comparison with the
CPU, and fresh processes for what needs its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.common.cache import use_test_cache

# Before torch loads the device, which reads its settings once.
use_test_cache()

from tests.common import compare  # noqa: E402
from tests.conformance.samples import seed_all  # noqa: E402

_ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device`: what conformance tests and `assert_same` run on."""
    parser.addoption("--device", default="tpu", help="the device under test (default: tpu)")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    seed_all(0)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    return request.config.getoption("--device")


@pytest.fixture
def assert_same(device: str) -> Callable[..., Any]:
    """`assert_same(fn, *inputs)`: the function gives on the device what it gives on the CPU."""

    def check(fn: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        return compare.assert_same(fn, *inputs, **{"device": device, **options})

    return check


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
