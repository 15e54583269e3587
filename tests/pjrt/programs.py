"""StableHLO programs that the tests compile."""

from __future__ import annotations

DOUBLE = """module {
  func.func @main(%a: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %a, %a : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}"""

DOUBLE_DONATED = DOUBLE.replace(
    "%a: tensor<2x3xf32>)", "%a: tensor<2x3xf32> {tf.aliasing_output = 0 : i32})"
)

TRANSPOSE_AND_SUM = """module {
  func.func @main(%a: tensor<2x3xf32>) -> (tensor<3x2xf32>, tensor<f32>) {
    %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<3x2xf32>, tensor<f32>
  }
}"""

CROSS_REPLICA_SUM = """module @sum attributes {mhlo.num_replicas = 2 : i32} {
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%a) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def huge_iota(elements: int) -> str:
    """A program whose only output has this many float32 elements."""
    shape = f"tensor<{elements}xf32>"
    return f"""module {{
  func.func @main() -> {shape} {{
    %0 = stablehlo.iota dim = 0 : {shape}
    return %0 : {shape}
  }}
}}"""
