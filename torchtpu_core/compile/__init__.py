"""Compiled mode: the `torch.compile` backend `tpu`.

Dynamo captures, AOTAutograd makes functional ATen graphs of it, and each graph becomes one program
by the lowering that eager operators have. `backend` is what PyTorch finds through the entry point
`torch_dynamo_backends`; neither Dynamo nor a plugin is loaded before it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["backend", "on_tpu", "prepare"]

#: the `mode`s of torch.compile: they choose among ways to compile that XLA does not have
_MODES = (
    None,
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured; one with nothing on the device is left to PyTorch's
    eager kernels.
    """
    if mode not in _MODES:
        raise ValueError(f"torch.compile: unknown mode {mode!r}; known are {_MODES[1:]}")
    if options:
        raise ValueError(f"torch.compile: the backend tpu has no options, got {sorted(options)}")
    prepare()
    if not on_tpu(gm, example_inputs):
        return gm.forward
    from torchtpu_core.compile import aot

    return aot.compile(gm, example_inputs)


def prepare() -> None:
    """Tells Dynamo what it has to know about the device. Imports Dynamo; does it once."""
    from torchtpu_core.compile import dynamo

    dynamo.apply()


def on_tpu(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether some input or some value of a graph from Dynamo lives on the device."""
    nodes = (node.meta.get("example_value") for node in gm.graph.nodes)
    tensors = [*example_inputs, *gm.parameters(), *gm.buffers(), *nodes]
    return any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in tensors)
