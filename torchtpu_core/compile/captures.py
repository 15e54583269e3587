"""Dynamo's captures on disk, for those who ask: with PyTorch's TORCH_CACHING_PRECOMPILE=1
(torch._dynamo.config.caching_precompile, 2.13) a process does not trace again what an earlier one
traced. PyTorch keeps bytecode and guards, in its own folder (TORCHINDUCTOR_CACHE_DIR), and drops
guards on the identity of objects, which is why it is a setting. What is ours: a compiled graph as
the part of such an entry that a backend gives, and that a process writes its captures when it ends
(PyTorch does so in torch.compiler.save_cache_artifacts() only).
"""

from __future__ import annotations

import atexit
import functools
import logging
from collections.abc import Callable
from typing import Any

from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._functorch._aot_autograd.aot_autograd_result import deserialize_bundled_cache_entry

from torchtpu_core import plans

_log = logging.getLogger(__name__)


class Capture(BackendCacheArtifact[Callable[..., Any]]):
    """What AOTAutograd made of a graph (`content`), found by the graph's id in Dynamo (`key`)."""

    def __getstate__(self) -> tuple[str, Any, str]:
        return self.key, self.content, plans.makers()

    def __setstate__(self, state: tuple[str, Any, str]) -> None:
        self.key, self.content, makers = state
        if makers != plans.makers():  # the entry is then traced anew
            raise RuntimeError("it was made by another version of torchtpu or of PyTorch")

    def after_deserialization(self) -> Callable[..., Any]:
        """What Dynamo's bytecode calls."""
        return deserialize_bundled_cache_entry(self.content)


def give(backend_id: str, entry: Any) -> None:
    """Gives Dynamo what AOTAutograd made of the graph with that id, fit for disk."""
    _save_at_exit()
    entry.sanitized_aot_config.precompile_backend_id = None
    PrecompileContext.record_artifact(Capture(backend_id, entry))


def save() -> None:
    """Writes what this process has captured."""
    try:
        PrecompileContext.save_to_dynamo_cache()
    except Exception as error:  # a cache never fails a program
        _log.warning("Dynamo's captures are not kept: %s", error)


@functools.cache
def _save_at_exit() -> None:
    atexit.register(save)
