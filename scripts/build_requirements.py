"""Prints the build requirements of pyproject.toml, one a line, for an install without isolation."""

from __future__ import annotations

import tomllib
from pathlib import Path


def main() -> None:
    """Print [build-system].requires."""
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    print("\n".join(tomllib.loads(pyproject.read_text())["build-system"]["requires"]))


if __name__ == "__main__":
    main()
