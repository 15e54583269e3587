"""Where tests keep compiled programs: in the checkout's build folder, so that the next run finds
them.
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def use_test_cache() -> None:
    """Point TORCHTPU_CACHE_DIR, unless it is set, at build/test-cache; for this process and its
    children.
    """
    os.environ.setdefault("TORCHTPU_CACHE_DIR", str(_ROOT / "build" / "test-cache"))
