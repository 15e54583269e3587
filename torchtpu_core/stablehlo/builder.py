"""Builds StableHLO: a Module of functions, a Builder that emits one function's body, and the Values
it names.

Ops are printed in MLIR's generic form, which is uniform and stable. Each method is one StableHLO or
CHLO op (same name, same operand order as in the specification) and infers its result type; shapes
and dtypes are checked here so that a wrong lowering fails with Python's stack, not in the plugin's
parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtpu_core.stablehlo import dft
from torchtpu_core.stablehlo import literals as lit
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.contraction import Contractions
from torchtpu_core.stablehlo.types import TensorType
from torchtpu_core.stablehlo.value import Value


class Module:
    """A StableHLO module: `main` and private functions, printed by `str()`.

    precision: "DEFAULT", "HIGH" or "HIGHEST", of the products of f32 and c64 in its functions;
    emulate: those products are made of bf16 pieces in so many words (bf16.py). target: the platform
    whose compiler gets the module: "cpu", or "tpu" where what a TPU's compiler lacks is written out
    (wide.py, dft.py), which every compiler takes. host_kernels: large products
    and a few other ops are calls of PyTorch's CPU kernels (host_kernels.py), which only this
    process's XLA CPU plugin can run.
    """

    def __init__(
        self,
        name: str = "torchtpu",
        attributes: str = "",
        precision: str = "HIGHEST",
        emulate: bool = False,
        target: str = "tpu",
        host_kernels: bool = False,
    ):
        self.name, self.attributes = name, attributes
        self.precision, self.emulate, self.target = precision, emulate, target
        self.host_kernels = host_kernels
        #: already printed ops that stand before the functions (meshes of devices)
        self.header: list[str] = []
        self._functions: dict[str, str] = {}

    def function(self, name: str, arg_types: Sequence[TensorType], public: bool = False) -> Builder:
        """A builder for a new function; `Builder.finish` adds it to the module."""
        if name in self._functions:
            raise ValueError(f"function {name} exists already")
        self._functions[name] = ""
        return Builder(self, name, arg_types, public)

    def unique(self, stem: str) -> str:
        """A function name not taken yet."""
        name, i = stem, 0
        while name in self._functions:
            i += 1
            name = f"{stem}_{i}"
        return name

    def _set(self, name: str, text: str) -> None:
        self._functions[name] = text

    def __str__(self) -> str:
        attrs = f" attributes {{{self.attributes}}}" if self.attributes else ""
        body = [*self.header, *self._functions.values()]
        return f"module @{self.name}{attrs} {{\n" + "\n".join(body) + "\n}\n"


class Builder(Contractions):
    """Emits the body of one function: families of ops, control flow, and single ops."""

    # ---- control flow ---------------------------------------------------------------------------

    def while_(
        self, state: Sequence[Value], cond: Callable[..., Value], body: Callable[..., Any]
    ) -> list[Value]:
        types = [s.type for s in state]
        regions = [self.region(types, cond), self.region(types, body)]
        return self.op("stablehlo.while", state, types, "", regions)

    def if_(
        self,
        pred: Value,
        then: Callable[[], Any],
        other: Callable[[], Any],
        results: Sequence[TensorType],
    ) -> list[Value]:
        regions = [self.region([], then), self.region([], other)]
        return self.op("stablehlo.if", [pred], results, "", regions)

    # ---- the rest -------------------------------------------------------------------------------

    def rng_bit_generator(
        self, state: Value, dtype: str, shape: Sequence[int], algorithm: str = "PHILOX"
    ) -> tuple[Value, Value]:
        """(new state, random bits of an unsigned `dtype`)."""
        attrs = f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>"
        out = self.op(
            "stablehlo.rng_bit_generator",
            [state],
            [state.type, TensorType(dtype, tuple(shape))],
            attrs,
        )
        return out[0], out[1]

    def cholesky(self, x: Value, lower: bool = True) -> Value:
        return self._one(
            "stablehlo.cholesky", [x], x.dtype, x.shape, f"lower = {'true' if lower else 'false'}"
        )

    def triangular_solve(
        self,
        a: Value,
        y: Value,
        left: bool,
        lower: bool,
        unit: bool,
        transpose: str = "NO_TRANSPOSE",
    ) -> Value:
        """transpose: NO_TRANSPOSE, TRANSPOSE or ADJOINT of `a`."""
        flags = (("left_side", left), ("lower", lower), ("unit_diagonal", unit))
        attrs = ", ".join(f"{k} = {'true' if v else 'false'}" for k, v in flags)
        attrs += f", transpose_a = #stablehlo<transpose {transpose}>"
        return self._one("stablehlo.triangular_solve", [a, y], y.dtype, y.shape, attrs)

    def fft(self, x: Value, kind: str, lengths: Sequence[int]) -> Value:
        """kind: FFT, IFFT, RFFT, IRFFT over the last len(lengths) dimensions."""
        if x.dtype in dft.DOUBLE and self.module.target != "cpu":
            return dft.fft(self, x, kind, lengths)
        shape, dtype = list(x.shape), x.dtype
        if kind == "RFFT":
            shape[-1], dtype = lengths[-1] // 2 + 1, T.complex_of(x.dtype)
        elif kind == "IRFFT":
            shape[-1], dtype = lengths[-1], T.real_of(x.dtype)
        attrs = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {lit.ints(lengths)}"
        return self._one("stablehlo.fft", [x], dtype, shape, attrs)

    def custom_call(
        self, target: str, operands: Sequence[Value], results: Sequence[TensorType], attrs: str = ""
    ) -> list[Value]:
        """`attrs`: more printed attributes, such as backend_config or api_version."""
        text = f'call_target_name = "{target}"' + (f", {attrs}" if attrs else "")
        return self.op("stablehlo.custom_call", operands, results, text)

    def with_layout(self, x: Value, minor_to_major: Sequence[int]) -> Value:
        """`x` with its dimensions in this order in memory, from the innermost out. XLA's layout
        assignment keeps to it (xla/service/layout_assignment.cc); it is no op of its own.
        """
        order = lit.layout(minor_to_major)
        attrs = f"operand_layouts = [{order}], result_layouts = [{order}]"
        return self.custom_call("LayoutConstraint", [x], [x.type], attrs)[0]

    def barrier(self, xs: Sequence[Value]) -> list[Value]:
        return self.op("stablehlo.optimization_barrier", xs, [x.type for x in xs])
