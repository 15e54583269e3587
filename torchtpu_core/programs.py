"""Programs written to files, for people to read: what TORCHTPU_LOG=programs reports about."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchtpu_core import config


def logged() -> bool:
    """Whether programs are to be reported and written."""
    return "programs" in config.get("TORCHTPU_LOG")


def path_of(text: str, name: str = "graph") -> Path:
    """Where a program is, or would be, written: the same text, the same file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return config.get("TORCHTPU_PROGRAMS_DIR") / f"{name}-{digest}.mlir"


def write(text: str, name: str = "graph") -> Path:
    """Writes a program's text; returns its file."""
    path = path_of(text, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
