"""Activation checkpointing that a compiler cannot undo.

A block's backward pass computes its forward pass again. In one program the two are the same
expressions, which XLA would share, keeping every activation after all; an optimization barrier on
the block's inputs and weights, tied to the arriving gradient, keeps them apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchtpu_core.aot import locate
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value


@torch.library.custom_op("torchtpu::barrier", mutates_args=())
def barrier(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors, which the compiler takes for others."""
    return [x.clone() for x in xs]


@barrier.register_fake
def _(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in xs]


@lowering("torchtpu::barrier")
def _barrier(b: Builder, xs: list[Value]) -> list[Value]:
    return b.barrier(xs)


def checkpoint(model: torch.nn.Module) -> int:
    """Makes each block of a transformers model (its GradientCheckpointingLayers) compute its
    forward pass again in backward; how many there are. ValueError for a model that has none.
    """
    blocks: list[Any] = [
        m for m in model.modules() if hasattr(m, "gradient_checkpointing") and _is_block(m)
    ]
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks that support checkpointing")
    for block in blocks:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = functools.partial(_call, block)
    model.train()
    return len(blocks)


def _is_block(module: torch.nn.Module) -> bool:
    return any(c.__name__ == "GradientCheckpointingLayer" for c in type(module).__mro__)


def _call(block: torch.nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    names, weights = zip(*block.named_parameters())
    out = _Recomputed.apply(block, function, names, len(args), *args, *weights)
    locate.belongs(out, block)
    return out


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Any, function: Any, names: Any, n: int, *values: Any) -> Any:
        ctx.block, ctx.function, ctx.names, ctx.n = block, function, names, n
        ctx.where = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
        ctx.rest = [None if isinstance(v, torch.Tensor) else v for v in values]
        ctx.save_for_backward(*[values[i] for i in ctx.where])
        return function(*values[:n])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        needs = ctx.needs_input_grad[4:]
        *saved, grad = barrier([*ctx.saved_tensors, grad])
        values = list(ctx.rest)
        for i, v in zip(ctx.where, saved):
            values[i] = v.detach().requires_grad_(needs[i])
        with (
            torch.enable_grad(),
            torch.nn.utils.stateless._reparametrize_module(
                ctx.block, dict(zip(ctx.names, values[ctx.n :]))
            ),
        ):
            out = ctx.function(*values[: ctx.n])
        wanted = [i for i, need in enumerate(needs) if need]
        grads = iter(torch.autograd.grad(out, [values[i] for i in wanted], grad))
        return (None, None, None, None, *[next(grads) if n else None for n in needs])
