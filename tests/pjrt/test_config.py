"""TORCHTPU_* variables: defaults, parsing, and refusal of what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchtpu_core import config

pytestmark = pytest.mark.usefixtures("fresh_config")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHTPU_PJRT_PLUGIN", None),
        ("TORCHTPU_CPU_DEVICES", 1),
        ("TORCHTPU_CACHE_SIZE", 2_000_000_000),
        ("TORCHTPU_MODE", "strict"),
        ("TORCHTPU_LOG", frozenset()),
    ],
)
def test_defaults(name: str, value: Any) -> None:
    assert config.get(name) == value


def test_default_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.get("TORCHTPU_CACHE_DIR") == tmp_path / "torchtpu"
    config.reload()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.get("TORCHTPU_CACHE_DIR") == tmp_path / ".cache" / "torchtpu"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("TORCHTPU_CPU_DEVICES", "8", 8),
        ("TORCHTPU_CACHE_SIZE", "0", 0),
        ("TORCHTPU_CACHE_SIZE", "12345", 12345),
        ("TORCHTPU_CACHE_SIZE", "500 MB", 500_000_000),
        ("TORCHTPU_CACHE_SIZE", "1.5GiB", 3 * 2**29),
        ("TORCHTPU_MODE", "debug", "debug"),
        ("TORCHTPU_LOG", "cache, programs", frozenset({"cache", "programs"})),
    ],
)
def test_values(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(name, text)
    assert config.get(name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TORCHTPU_PJRT_PLUGIN", "/no/such/file.so"),
        ("TORCHTPU_CPU_DEVICES", "0"),
        ("TORCHTPU_CPU_DEVICES", "-1"),
        ("TORCHTPU_CPU_DEVICES", "two"),
        ("TORCHTPU_CPU_DEVICES", ""),
        ("TORCHTPU_CACHE_DIR", __file__),
        ("TORCHTPU_CACHE_SIZE", "-5"),
        ("TORCHTPU_CACHE_SIZE", "2 bananas"),
        ("TORCHTPU_MODE", "fast"),
        ("TORCHTPU_LOG", "programs,everything"),
    ],
)
def test_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError) as error:
        config.get(name)
    for part in (name, repr(text), config.VARIABLES[name].allowed):
        assert part in str(error.value)


def test_unknown_variable_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_CACHEDIR", "x")
    with pytest.raises(ValueError, match=r"TORCHTPU_CACHEDIR.*did you mean TORCHTPU_CACHE_DIR"):
        config.get("TORCHTPU_MODE")


def test_every_variable_says_what_it_means() -> None:
    for variable in config.VARIABLES.values():
        assert variable.meaning.endswith(".") and variable.allowed
        variable.parse(variable.default)
