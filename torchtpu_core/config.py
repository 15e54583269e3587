"""Every TORCHTPU_* environment variable: name, default, meaning, and what values make sense. Each
is read and checked when first asked for; what makes no sense, or is no variable of ours, is
refused."""

from __future__ import annotations

import difflib
import functools
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PREFIX = "TORCHTPU_"


@dataclass(frozen=True)
class Variable:
    """One environment variable. `parse` raises ValueError for what is not among `allowed`."""

    name: str
    default: str
    parse: Callable[[str], Any]
    allowed: str
    meaning: str


def _existing_file(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_file():
        raise ValueError
    return path


def _directory(text: str) -> Path:
    if not text:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "torchtpu"
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError
    return path


def _programs(text: str) -> Path:
    return _directory(text) if text else Path(tempfile.gettempdir()) / "torchtpu-programs"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return parse


def _some_of(*choices: str) -> Callable[[str], frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        parts = frozenset(part.strip() for part in text.split(",") if part.strip())
        if not parts <= frozenset(choices):
            raise ValueError
        return parts

    return parse


VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable(
            "TORCHTPU_PJRT_PLUGIN",
            "",
            _existing_file,
            "the path of a PJRT plugin's shared library",
            "The PJRT plugin to load. Default: libtpu if a TPU is attached, else XLA's CPU plugin.",
        ),
        Variable(
            "TORCHTPU_CPU_DEVICES",
            "1",
            _positive,
            "a whole number from 1",
            "How many devices `tpu` has when it runs on XLA's CPU plugin.",
        ),
        Variable(
            "TORCHTPU_CACHE_DIR",
            "",
            _directory,
            "a directory, which need not exist yet",
            "Where compiled programs are kept. Default: torchtpu in the user's cache folder.",
        ),
        Variable(
            "TORCHTPU_CACHE_SIZE",
            "2GB",
            _bytes,
            "a number of bytes, such as 500000000, 2GB or 1.5GiB; 0 for no cache",
            "The most that compiled programs may take on disk; the least recently used go first.",
        ),
        Variable(
            "TORCHTPU_MODE",
            "strict",
            _one_of("strict", "debug"),
            "strict or debug",
            "strict: asynchronous, op by op. debug: waits after each op; errors point at its line.",
        ),
        Variable(
            "TORCHTPU_BUILD_UNITY",
            "1",
            _one_of("0", "1"),
            "0 or 1",
            "Read by the build alone. 0: one object a source, for those who edit the extension.",
        ),
        Variable(
            "TORCHTPU_LOG",
            "",
            _some_of("programs", "recompiles", "cache"),
            "a comma-separated list of programs, recompiles, cache",
            "What to report on stderr: executed programs, compilations and why, the program cache.",
        ),
        Variable(
            "TORCHTPU_PROGRAMS_DIR",
            "",
            _programs,
            "a directory, which need not exist yet",
            "Where TORCHTPU_LOG=programs writes them. Default: torchtpu-programs among the "
            "system's temporary files.",
        ),
    )
}


def _refuse(name: str, value: str, allowed: str) -> ValueError:
    return ValueError(f"{name}={value!r} makes no sense: it must be {allowed}")


@functools.cache
def _refuse_unknown() -> None:
    """Raises for a TORCHTPU_* name in the environment that no variable has: most often a typo."""
    for name in os.environ:
        if name.startswith(_PREFIX) and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)
            raise ValueError(
                f"{name} is set, but there is no such variable; did you mean {near[0]}? "
                f"The variables are {', '.join(VARIABLES)}"
            )


@functools.cache
def get(name: str) -> Any:
    """The value of a variable of the table, parsed; read from the environment once."""
    variable = VARIABLES[name]
    _refuse_unknown()
    text = os.environ.get(name)
    if text is None:
        return variable.parse(variable.default)
    try:
        return variable.parse(text)
    except ValueError:
        raise _refuse(name, text, variable.allowed) from None


def reload() -> None:
    """Forgets what was read, so that the next `get` reads the environment again."""
    get.cache_clear()
    _refuse_unknown.cache_clear()
