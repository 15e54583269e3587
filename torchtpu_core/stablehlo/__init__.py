"""StableHLO text: types, values, one function's body, module assembly, and strided views over a
linear buffer.

Nothing here knows torch.
"""

from torchtpu_core.stablehlo.builder import Builder, Module, Value
from torchtpu_core.stablehlo.types import TensorType

__all__ = ["Builder", "Module", "TensorType", "Value"]
