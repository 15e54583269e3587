"""What Dynamo has to know about the device, put in place before the first graph is captured.

torch._dynamo.variables.optimizer.OptimizerVariable._set_capturable (2.13): makes optimizers keep
    their step counts on the device, but asks `is_cuda or is_xpu` whether parameters are on one.
    Without this, the first compiled step would count on the CPU and the second be compiled anew.
torch._dynamo.variables.optimizer._is_static_for_cudagraphs (2.13): imports Inductor, to say of
    what is on no CUDA device that it is.
torch.optim.adam._fused_adam (2.13): Dynamo is told to stop there, since Inductor takes the
    fused operator for a call of a kernel. Here it is lowered like any other.
torch.optim.adam._multi_tensor_adam (2.13): the same formulas as about 25 operators on lists of
    tensors, each element of each of which Dynamo and AOTAutograd trace. Compiled for the device it
    is the fused operator, which is one; where that has no rule (complex parameters, differentiable
    steps, rates that are tensors) it stays what it is.
torch._dynamo.guards.CheckFunctionManager.serialize_guards (2.13): where Dynamo keeps its captures
    (captures.py), a frame whose guards cannot be written, such as an optimizer's step, is traced in
    each process; but PyTorch, after it has said so, asserts that they were written. An empty string
    stands for them, which is not kept.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def apply() -> None:
    """Puts the replacements in place, once."""
    _apply_to_optimizers()
    _apply_to_adam()
    _apply_to_guards()


def _apply_to_optimizers() -> None:
    from torch._dynamo.variables import optimizer

    set_capturable = optimizer.OptimizerVariable._set_capturable

    def _set_capturable(self: Any, tx: Any) -> None:
        for group in self.value.param_groups:
            params = group["params"]
            fresh = all(p.device.type == "tpu" and p not in self.value.state for p in params)
            if "capturable" in group and params and fresh:
                group["capturable"] = True
        set_capturable(self, tx)

    optimizer.OptimizerVariable._set_capturable = _set_capturable  # type: ignore[method-assign]
    is_static = optimizer._is_static_for_cudagraphs

    def _is_static_for_cudagraphs(x: Any) -> bool:
        return is_static(x) if x.is_cuda else True

    optimizer._is_static_for_cudagraphs = _is_static_for_cudagraphs


def _apply_to_adam() -> None:
    import torch
    from torch._dynamo.eval_frame import TorchPatcher, innermost_fn
    from torch.optim import adam

    TorchPatcher.patch()  # what disables the fused step; it does so once
    disabled, foreach = adam._fused_adam, adam._multi_tensor_adam
    fused = innermost_fn(disabled)

    def step(
        params: Any, grads: Any, means: Any, squares: Any, maxima: Any, counts: Any,
        *rest: Any, amsgrad: bool, **options: Any,
    ) -> None:  # fmt: skip
        # Functionalization refuses an empty list of tensors to write. What stands in for the
        # maxima, where there are none, is written as it is.
        known = maxima if amsgrad else counts[:1]
        fused(params, grads, means, squares, known, counts, *rest, amsgrad=amsgrad, **options)

    def traced(params: Any, *numbers: Any) -> bool:
        on_tpu = torch.compiler.is_compiling() and params[0].device.type == "tpu"
        return on_tpu and not any(isinstance(n, torch.Tensor) for n in numbers)

    @functools.wraps(fused)
    def _fused_adam(params: Any, *lists: Any, lr: Any, **options: Any) -> None:
        run = step if params and traced(params, lr) else disabled
        run(params, *lists, lr=lr, **options)

    @functools.wraps(foreach)
    def _multi_tensor_adam(
        params: Any, *lists: Any,
        has_complex: bool, differentiable: bool, lr: Any, beta1: Any, beta2: Any, **options: Any,
    ) -> None:  # fmt: skip
        options |= {"lr": lr, "beta1": beta1, "beta2": beta2}
        known = params and not has_complex and not differentiable
        run = step if known and traced(params, lr, beta1, beta2) else foreach
        run(params, *lists, has_complex=has_complex, differentiable=differentiable, **options)

    adam._fused_adam, adam._multi_tensor_adam = _fused_adam, _multi_tensor_adam


def _apply_to_guards() -> None:
    import torch
    from torch._dynamo import exc, guards

    serialize = guards.CheckFunctionManager.serialize_guards

    @functools.wraps(serialize)
    def serialize_guards(self: Any, builder: Any, sorted_guards: Any, output_graph: Any) -> bytes:
        try:
            return serialize(self, builder, sorted_guards, output_graph)
        except exc.PackageError as error:
            if torch._dynamo.config.strict_precompile:
                raise
            output_graph.bypass_package(f"its guards cannot be written: {error}")
            return b""

    guards.CheckFunctionManager.serialize_guards = serialize_guards  # type: ignore[method-assign]
