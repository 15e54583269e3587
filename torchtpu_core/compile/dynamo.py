"""What Dynamo has to know about the device, put in place before the first graph is captured.

torch._dynamo.variables.optimizer.OptimizerVariable._set_capturable (2.13): makes optimizers keep
    their step counts on the device, but asks `is_cuda or is_xpu` whether parameters are on one.
    Without this, the first compiled step would count on the CPU and the second be compiled anew.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def apply() -> None:
    """Puts the replacement in place, once."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    original = OptimizerVariable._set_capturable

    def _set_capturable(self: Any, tx: Any) -> None:
        for group in self.value.param_groups:
            params = group["params"]
            fresh = all(p.device.type == "tpu" and p not in self.value.state for p in params)
            if "capturable" in group and params and fresh:
                group["capturable"] = True
        original(self, tx)

    OptimizerVariable._set_capturable = _set_capturable  # type: ignore[method-assign]
