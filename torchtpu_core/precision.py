"""How exact products of float32 numbers are: dots, convolutions and everything made of them.

| mode    | torch.set_float32_matmul_precision | on a TPU                                   |
|---------|------------------------------------|--------------------------------------------|
| highest | "highest"                          | six products of bf16 pieces, f32's accuracy |
| high    | "high"                             | three products of bf16 pieces              |
| default | "medium"                           | one product of bf16, accumulated in f32    |

The mode is state of the process, as PyTorch's own setting is: that setting, or the region
`torch.tpu.precision` entered last among those still open, in whichever thread. It is part of every
program's key (flags.py), so that changing it never rebuilds what has been met before. In a function
being compiled a region is a mark on the graph's nodes instead: it covers the products inside it
and, since AOTAutograd hands marks to the backward, their gradients.

XLA's CPU plugin multiplies in f32 whatever the mode, unless `torch.tpu.emulate_precision`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import torchtpu_core._C as _C
from torchtpu_core import flags

if TYPE_CHECKING:
    from torchtpu_core.stablehlo import Builder

__all__ = ["MODES", "emulate_precision", "precision"]

#: by the value of the bits flags.PRECISION
MODES = ("highest", "high", "default")

_OF_TORCH = {"highest": "highest", "high": "high", "medium": "default"}

#: in node.meta["custom"]: the mode of the region that a product was traced in
MARK = "torchtpu_precision"

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_setting = 0  # PyTorch's, as an index of MODES
_regions: list[_Region] = []  # those open, in the order in which they were entered


def precision(mode: str) -> contextlib.AbstractContextManager[None]:
    """A context manager and a decorator of functions, in which products of float32 numbers have
    the mode "default", "high" or "highest".

    Eager and compiled; nests. Raises ValueError for another mode, TypeError where it decorates
    what does not run when it is called (classes, generators, coroutines).
    """
    _index(mode)
    return _marked(mode) if torch.compiler.is_compiling() else _Region(mode)


@contextlib.contextmanager
def _marked(mode: str) -> Iterator[None]:
    """A region that is being traced. A generator, because Dynamo runs a frame whose graph breaks
    inside of one eagerly; of `annotate` alone it makes broken code there (2.13).
    """
    from torch.fx.traceback import annotate, preserve_node_meta

    keep: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not torch.compiler.is_dynamo_compiling():  # torch.export, which drops marks otherwise
        keep = preserve_node_meta()
    with annotate({MARK: mode}), keep:
        yield


def _index(mode: str) -> int:
    if mode not in MODES:
        raise ValueError(f"torch.tpu.precision: unknown mode {mode!r}; known are {sorted(MODES)}")
    return MODES.index(mode)


def open_regions() -> list[str]:
    """The modes of the eager regions that are open, in the order in which they were entered."""
    with _lock:
        return [r.mode for r in _regions]


class _Region:
    """An eager region; may be entered again while it is open."""

    def __init__(self, mode: str):
        self.mode, self.index = mode, _index(mode)

    def __enter__(self) -> None:
        with _lock:
            _regions.append(self)
            _put()

    def __exit__(self, *exc: object) -> None:
        with _lock:
            # The last entry of this region: another thread's regions may lie above it.
            del _regions[len(_regions) - 1 - _regions[::-1].index(self)]
            _put()

    def __call__(self, fn: _F) -> _F:
        later = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isclass)
        if any(is_so(fn) for is_so in later) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"torch.tpu.precision cannot decorate {fn!r}, which does not run when it is "
                "called; use `with torch.tpu.precision(..)` inside it"
            )
        mode = self.mode

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with precision(mode):
                return fn(*args, **kwargs)

        return within  # type: ignore[return-value]


def _put() -> None:
    flags.put(flags.PRECISION, _regions[-1].index if _regions else _setting)


def follow_torch() -> None:
    """Takes over PyTorch's setting, after a change of it."""
    global _setting
    with _lock:
        _setting = _index(_OF_TORCH[torch.get_float32_matmul_precision()])
        # PyTorch's kernels would follow it, where XLA's CPU plugin multiplies in f32
        flags.put(flags.XLA_ALONE, flags.XLA_ALONE if _setting else 0)
        _put()


class emulate_precision:
    """Whether XLA's CPU plugin reproduces a TPU's products: bf16 pieces, accumulated in f32, one,
    three or six products by the mode (stablehlo/bf16.py). Takes effect at once and for the whole
    process; used as a context manager, until the end of the block. On a TPU it changes nothing.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._before = flags.put(flags.EMULATE, flags.EMULATE if enabled else 0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        flags.put(flags.EMULATE, self._before)


def of_products() -> dict[str, Any]:
    """What a StableHLO module that is built now says of its products."""
    from torchtpu_core import plugin

    target = "tpu" if flags.get(flags.FOR_TPU) else plugin.find().platform
    return {
        "precision": MODES[flags.get(flags.PRECISION)].upper(),
        "emulate": flags.get(flags.EMULATE) != 0 and target == "cpu",
        "target": target,
        "host_kernels": target == "cpu" and _C.has_kernels() and not flags.get(flags.XLA_ALONE),
    }


def mark(node: torch.fx.Node) -> str | None:
    """The mode of the region in which a node was traced, if in any."""
    return (node.meta.get("custom") or {}).get(MARK)


def of_node(b: Builder, node: torch.fx.Node) -> contextlib.AbstractContextManager[None]:
    """In it, products are those of the region in which the node was traced, if in any."""
    mode = mark(node)
    return contextlib.nullcontext() if mode is None else b.products(mode.upper())
