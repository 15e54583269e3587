"""Fixtures of the PJRT tests: one client a process."""

from __future__ import annotations

from typing import Any

import pytest

from torchtpu_core import _C, config, plugin


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
