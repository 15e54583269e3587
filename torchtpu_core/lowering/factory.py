"""Tensors from nothing: fills, ranges, identity matrices, windows. Numbers that are values may come
at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torchtpu_core.lowering import graph
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.pointwise import quotient
from torchtpu_core.lowering.promotion import number_dtype, opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Number, Operand


def default_dtype(dtype: torch.dtype | None) -> str:
    """The element type of a factory's `dtype=` argument."""
    return mlir(dtype if dtype is not None else torch.get_default_dtype())


def _fill_dtype(value: Operand, dtype: torch.dtype | None) -> str:
    """`full` infers its dtype from the fill value."""
    if dtype is not None:
        return mlir(dtype)
    return value.dtype if isinstance(value, Value) else mlir(number_dtype(value))


# ---- fills ---------------------------------------------------------------------------------------


@lowering("full", "prims::full", runtime=("fill_value",))
def _full(b: Builder, size: Sequence[int], value: Operand, *, dtype=None) -> Value:
    return b.lift(value, _fill_dtype(value, dtype), size)


@lowering("full_like", "prims::full_like", runtime=("fill_value",))
def _full_like(b: Builder, x: Value, value: Operand, *, dtype=None) -> Value:
    return b.lift(value, mlir(dtype) if dtype is not None else x.dtype, x.shape)


@lowering("new_full", runtime=("fill_value",))
def _new_full(b: Builder, x: Value, size: Sequence[int], value: Operand, *, dtype=None) -> Value:
    return b.lift(value, mlir(dtype) if dtype is not None else x.dtype, size)


@lowering("scalar_tensor", "prims::scalar_tensor", runtime=("s",))
def _scalar_tensor(b: Builder, s: Operand, *, dtype=None) -> Value:
    out = b.lift(s, default_dtype(dtype))
    return b.reshape(b.reshape(out, (1,)), ()) if out is s else out  # a tensor is not a weak number


def _register_fills() -> None:
    """zeros, ones and empty (whose contents are free: zeros cost nothing in a program), by what
    gives the shape and dtype.
    """

    def sized(value: int) -> Callable[..., Value]:
        return lambda b, size, *, dtype=None: b.constant(value, default_dtype(dtype), size)

    def like(value: int) -> Callable[..., Value]:
        return lambda b, x, *, dtype=None: b.constant(
            value, mlir(dtype) if dtype is not None else x.dtype, x.shape
        )

    def new(value: int) -> Callable[..., Value]:
        return lambda b, x, size, *_, dtype=None: b.constant(
            value, mlir(dtype) if dtype is not None else x.dtype, size
        )

    def laid_out(b: Builder, size: Sequence[int], layout: Sequence[int], *, dtype=None) -> Value:
        return b.constant(0, default_dtype(dtype), size)

    lowering("zeros", "_efficientzerotensor", "empty.memory_format", "prims::empty")(sized(0))
    lowering("empty_strided", "empty_permuted", "prims::empty_strided", "prims::empty_permuted")(
        laid_out
    )
    lowering("ones")(sized(1))
    lowering("zeros_like", "empty_like")(like(0))
    lowering("ones_like")(like(1))
    lowering("new_zeros", "new_empty", "new_empty_strided")(new(0))
    lowering("new_ones")(new(1))


_register_fills()


# ---- ranges --------------------------------------------------------------------------------------


def _range(b: Builder, start: Operand, step: Operand, n: int, dtype: str) -> Value:
    """start + i * step for i < n, computed in a wide enough type and rounded once."""
    compute = opmath(dtype)
    if dtype in T.INTS or dtype == "i1":
        compute = "i64" if T.bits(dtype) == 64 else "i32"  # narrower ones wrap, as on CPU
        start, step = int(start), int(step)
    i = b.iota(compute, (n,))
    if step != 1:
        i = i * step
    if start != 0:
        i = i + start
    return b.convert(i, dtype)


def _arange(b: Builder, start, end, step, dtype: torch.dtype | None) -> Value:
    integers = not any(isinstance(v, float) for v in (start, end, step))
    if dtype is None:
        dtype = torch.int64 if integers else torch.get_default_dtype()
    if integers or dtype == torch.int64:  # other integer types count with the fractions
        n = -((int(start) - int(end)) // int(step))
    else:
        n = math.ceil((end - start) / step)
    return _range(b, start, step, max(0, n), mlir(dtype))


@lowering("arange")
def _arange_end(b: Builder, end, *, dtype=None) -> Value:
    return _arange(b, 0, end, 1, dtype)


@lowering("arange.start")
def _arange_start(b: Builder, start, end, *, dtype=None) -> Value:
    return _arange(b, start, end, 1, dtype)


@lowering("arange.start_step")
def _arange_start_step(b: Builder, start, end, step, *, dtype=None) -> Value:
    return _arange(b, start, end, step, dtype)


@lowering("range.step", "range")
def _inclusive_range(b: Builder, start, end, step=1, *, dtype=None) -> Value:
    n = max(0, math.floor((end - start) / step) + 1)
    return _range(b, start, step, n, default_dtype(dtype))


@lowering("prims::iota")
def _iota(b: Builder, length: int, *, start: int, step: int, dtype) -> Value:
    return _range(b, start, step, length, mlir(dtype))


def _spaced(b: Builder, start: Operand, end: Operand, steps: int, compute: str) -> Value:
    """`steps` values from `start` to `end`, counted from the nearer end so that both are exact."""
    start, end = b.lift(start, compute), b.lift(end, compute)
    if steps == 1:
        return b.reshape(start, (1,))
    i = b.iota(compute, (steps,))
    step = quotient(b, end - start, b.constant(max(steps - 1, 1), compute))
    up, down = start + i * step, end - (-i + (steps - 1)) * step
    first_half = b.iota("i32", (steps,)) < steps // 2
    return b.select(first_half, up, down)


def _spaced_dtypes(start: Operand, end: Operand, dtype: torch.dtype | None) -> tuple[str, str]:
    """(result, compute) element type of linspace and logspace."""
    if dtype is not None:
        out = mlir(dtype)
    elif any(_is_complex(v) for v in (start, end)):
        out = mlir(number_dtype(1j))
    else:
        out = default_dtype(None)
    return out, "f64" if out in T.INTS else opmath(out)


def _is_complex(x: Operand) -> bool:
    return x.dtype in T.COMPLEX if isinstance(x, Value) else isinstance(x, complex)


def _ends(b: Builder, start: Operand, end: Operand, out: str, compute: str) -> list[Value]:
    """Both ends in the compute type; for an integer result they are integers first, as on CPU."""
    first = out if out in T.INTS else compute
    return [
        b.lift(b.lift(v, first) if isinstance(v, Value) else _as(v, out), compute)
        for v in (start, end)
    ]


def _as(x: Number, dtype: str) -> Number:
    return int(x) if dtype in T.INTS else x


_OVERLOADS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@lowering(*(f"linspace.{o}" for o in _OVERLOADS), runtime=("start", "end"))
def _linspace(b: Builder, start: Operand, end: Operand, steps: int, *, dtype=None) -> Value:
    out, compute = _spaced_dtypes(start, end, dtype)
    return b.convert(_spaced(b, *_ends(b, start, end, out, compute), steps, compute), out)


@lowering(*(f"logspace.{o}" for o in _OVERLOADS), runtime=("start", "end", "base"))
def _logspace(
    b: Builder, start: Operand, end: Operand, steps: int, base: Operand, *, dtype=None
) -> Value:
    out, compute = _spaced_dtypes(start, end, dtype)
    exponent = _spaced(b, *_ends(b, start, end, out, compute), steps, compute)
    x = b.power(b.lift(base, compute, (steps,)), exponent)
    if out in T.INTS:
        x = x * (1 + 1e-12)  # a power that is whole but for the last bit must not lose one
    return b.convert(x, out)


# ---- matrices and windows ------------------------------------------------------------------------


@lowering("eye", "eye.m")
def _eye(b: Builder, n: int, m: int | None = None, *, dtype=None) -> Value:
    shape = (n, n if m is None else m)
    on = b.compare(b.iota("i32", shape, 0), b.iota("i32", shape, 1), "EQ")
    return b.convert(on, default_dtype(dtype))


def _window(
    b: Builder, n: int, periodic: bool, dtype: torch.dtype | None, fn: Callable[..., Value]
) -> Value:
    """`fn` gets the positions 0, 1/(m-1), .. of a window of m points, the last of which a periodic
    one leaves out.
    """
    out = default_dtype(dtype)
    if n <= 1:
        return b.constant(1, out, (n,))
    span = n if periodic else n - 1
    return b.convert(fn(b.iota(opmath(out), (n,)) / span), out)


def _cosines(b: Builder, x: Value, *weights: float) -> Value:
    total = b.constant(weights[0], x.dtype, x.shape)
    for k, w in enumerate(weights[1:], 1):
        total = total + b.unary("cosine", x * (2 * math.pi * k)) * w
    return total


@lowering("hann_window", "hann_window.periodic")
def _hann_window(b: Builder, n: int, periodic: bool = True, *, dtype=None) -> Value:
    return _window(b, n, periodic, dtype, lambda x: _cosines(b, x, 0.5, -0.5))


@lowering(
    "hamming_window",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
)
def _hamming_window(
    b: Builder,
    n: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype=None,
) -> Value:
    return _window(b, n, periodic, dtype, lambda x: _cosines(b, x, alpha, -beta))


@lowering("blackman_window", "blackman_window.periodic")
def _blackman_window(b: Builder, n: int, periodic: bool = True, *, dtype=None) -> Value:
    return _window(b, n, periodic, dtype, lambda x: _cosines(b, x, 0.42, -0.5, 0.08))


@lowering("bartlett_window", "bartlett_window.periodic")
def _bartlett_window(b: Builder, n: int, periodic: bool = True, *, dtype=None) -> Value:
    return _window(b, n, periodic, dtype, lambda x: 1 - b.abs(x * 2 - 1))


@lowering("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def _kaiser_window(
    b: Builder, n: int, periodic: bool = True, beta: float = 12.0, *, dtype=None
) -> Value:
    def bessel(x: Value) -> Value:
        return graph.lower_op(b, torch.ops.aten.special_i0e.default, [x], {})

    def kaiser(
        x: Value,
    ) -> Value:  # I0(y) / I0(beta), scaled by exponentials so that neither overflows
        y = b.sqrt(b.maximum(*b.broadcast(1 - (x * 2 - 1) * (x * 2 - 1), 0))) * beta
        return bessel(y) * b.exp(y - beta) / bessel(b.constant(beta, x.dtype, x.shape))

    return _window(b, n, periodic, dtype, kaiser)
