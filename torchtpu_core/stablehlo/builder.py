"""Builds StableHLO: a Module of functions, a Builder that emits one function's body, and the Values
it names.

Ops are printed in MLIR's generic form, which is uniform and stable. Each method is one StableHLO or
CHLO op (same name, same
operand order as in the specification) and infers its result type; shapes and dtypes are checked
here so that a wrong
lowering fails with Python's stack, not in the plugin's parser.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from torchtpu_core.stablehlo import bf16
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.types import TensorType

Number = bool | int | float | complex


class Value:
    """An SSA value: `name`, element type and shape. `weak` marks a scalar that does not take part
    in dtype promotion
    beyond its category (a Python number). `row_major` is false for a tensor argument that its owner
    calls not contiguous (few
    lowerings ask). Arithmetic operators accept Values of one dtype and Python numbers, and
    broadcast as NumPy does."""

    __slots__ = ("b", "dtype", "name", "row_major", "shape", "weak")

    def __init__(
        self, b: Builder, name: str, dtype: str, shape: tuple[int, ...], weak: bool = False
    ):
        self.b, self.name, self.dtype, self.shape, self.weak = b, name, dtype, shape, weak
        self.row_major = True

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    def __add__(self, o: Operand) -> Value:
        return self.b.add(*self.b.broadcast(self, o))

    def __radd__(self, o: Operand) -> Value:
        return self.b.add(*self.b.broadcast(o, self))

    def __sub__(self, o: Operand) -> Value:
        return self.b.subtract(*self.b.broadcast(self, o))

    def __rsub__(self, o: Operand) -> Value:
        return self.b.subtract(*self.b.broadcast(o, self))

    def __mul__(self, o: Operand) -> Value:
        return self.b.multiply(*self.b.broadcast(self, o))

    def __rmul__(self, o: Operand) -> Value:
        return self.b.multiply(*self.b.broadcast(o, self))

    def __truediv__(self, o: Operand) -> Value:
        return self.b.divide(*self.b.broadcast(self, o))

    def __rtruediv__(self, o: Operand) -> Value:
        return self.b.divide(*self.b.broadcast(o, self))

    def __and__(self, o: Operand) -> Value:
        return self.b.and_(*self.b.broadcast(self, o))

    def __or__(self, o: Operand) -> Value:
        return self.b.or_(*self.b.broadcast(self, o))

    def __xor__(self, o: Operand) -> Value:
        return self.b.xor(*self.b.broadcast(self, o))

    def __invert__(self) -> Value:
        return self.b.not_(self)

    def __neg__(self) -> Value:
        return self.b.negate(self)

    def __lt__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "LT")

    def __le__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "LE")

    def __gt__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "GT")

    def __ge__(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "GE")

    def eq(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "EQ")

    def ne(self, o: Operand) -> Value:
        return self.b.compare(*self.b.broadcast(self, o), "NE")

    def __bool__(self) -> bool:
        raise TypeError("a StableHLO value has no truth value while the program is being built")

    def to(self, dtype: str) -> Value:
        """Converted to `dtype` (the same value when it has that dtype already)."""
        return self.b.convert(self, dtype)


Operand = Value | Number


class Module:
    """A StableHLO module: `main` and private functions, printed by `str()`.

    precision: "DEFAULT", "HIGH" or "HIGHEST", of the products of f32 and c64 in its functions;
    emulate: those products are made of bf16 pieces in so many words (bf16.py).
    """

    def __init__(
        self,
        name: str = "torchtpu",
        attributes: str = "",
        precision: str = "HIGHEST",
        emulate: bool = False,
    ):
        self.name, self.attributes = name, attributes
        self.precision, self.emulate = precision, emulate
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


def _ints(xs: Sequence[int]) -> str:
    return f"array<i64: {', '.join(str(int(x)) for x in xs)}>" if len(xs) else "array<i64>"


def _bools(xs: Sequence[bool]) -> str:
    return (
        f"array<i1: {', '.join('true' if x else 'false' for x in xs)}>" if len(xs) else "array<i1>"
    )


def _list(xs: Sequence[int]) -> str:
    return "[" + ", ".join(str(int(x)) for x in xs) + "]"


def _scalar_text(value: Number, dtype: str) -> str:
    """An element's literal, floats as exact bit patterns."""
    if dtype == "i1":
        return "true" if value else "false"
    if dtype in T.INTS:
        lo, hi = T.int_limits(dtype)
        n = int(value.real if isinstance(value, complex) else value)
        if not lo <= n <= hi:
            n &= (1 << T.bits(dtype)) - 1
            if n > hi:
                n -= 1 << T.bits(dtype)
        return str(n)
    if dtype in T.COMPLEX:
        z, part = complex(value), T.real_of(dtype)
        return f"({_scalar_text(z.real, part)}, {_scalar_text(z.imag, part)})"
    x = float(value.real if isinstance(value, complex) else value)
    if dtype == "f64":
        return "0x" + struct.pack(">d", x).hex().upper()
    if dtype == "f32":
        return f"0x{_f32_bits(x):08X}"
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return f"0x{int(np.float16(x).view(np.uint16)):04X}"
    if dtype == "bf16":
        return f"0x{_bf16_bits(x):04X}"
    return repr(x)  # f8 kinds: decimal literals of representable values only


def _f32_bits(x: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(x).view(np.uint32))


def _bf16_bits(x: float) -> int:
    """Round to nearest even, through f32."""
    n = _f32_bits(x)
    if math.isnan(x):
        return (n >> 16) | 0x40
    return (n + 0x7FFF + ((n >> 16) & 1)) >> 16


class Builder:
    """Emits the body of one function."""

    #: the program's random state, once a lowering has drawn from it (lowering/random_bits.py)
    random: Any = None

    #: printed location of the ops that follow ('"name"("file":1:0)'), or "": programs that are only
    #: run have none, so that their text does not depend on where they were written
    location: str = ""

    def __init__(self, module: Module, name: str, arg_types: Sequence[TensorType], public: bool):
        self.module, self.name, self.public = module, name, public
        self.precision, self.emulate = module.precision, module.emulate
        self._lines: list[str] = []
        self._scopes: list[dict[Any, Value]] = [{}]  # constants by block, innermost last
        self._n = 0
        self.arg_attrs: list[str] = ["" for _ in arg_types]
        self.result_attrs: dict[int, str] = {}
        self.args = [Value(self, f"%arg{i}", t.dtype, t.shape) for i, t in enumerate(arg_types)]

    # ---- assembly -------------------------------------------------------------------------------

    def add_arg(self, t: TensorType, attrs: str = "") -> Value:
        """One more argument: the signature is printed by `finish`, so arguments may come at any
        time.
        """
        arg = Value(self, f"%arg{len(self.args)}", t.dtype, tuple(t.shape))
        self.args.append(arg)
        self.arg_attrs.append(attrs)
        return arg

    def finish(self, results: Sequence[Value]) -> None:
        """Returns `results` and adds the function to its module."""
        self._return("func.return", results)
        args = ", ".join(
            f"{a.name}: {a.type}" + (f" {{{t}}}" if t else "")
            for a, t in zip(self.args, self.arg_attrs)
        )
        head = f"  func.func {'public' if self.public else 'private'} @{self.name}({args})"
        outs = ", ".join(
            f"{r.type} {{{self.result_attrs[i]}}}" if i in self.result_attrs else str(r.type)
            for i, r in enumerate(results)
        )
        body = "\n".join("    " + line for line in self._lines)
        self.module._set(self.name, f"{head} -> ({outs}) {{\n{body}\n  }}")

    def _return(self, op: str, results: Sequence[Value]) -> None:
        names = ", ".join(r.name for r in results)
        self._lines.append(f'"{op}"({names}) : ({", ".join(str(r.type) for r in results)}) -> ()')

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[TensorType],
        attrs: str = "",
        regions: Sequence[str] = (),
    ) -> list[Value]:
        """Any op by its full name ("stablehlo.add") with already printed attributes and regions."""
        outs = []
        for t in results:
            outs.append(Value(self, f"%{self._n}", t.dtype, tuple(t.shape)))
            self._n += 1
        for o in operands:
            if not isinstance(o, Value):
                raise TypeError(f"{name}: operand {o!r} is not a Value")
        lhs = ", ".join(o.name for o in outs)
        text = f"{lhs} = " if outs else ""
        text += f'"{name}"({", ".join(o.name for o in operands)})'
        if attrs:
            text += f" <{{{attrs}}}>"
        if regions:
            text += " (" + ", ".join(regions) + ")"
        text += f" : ({', '.join(str(o.type) for o in operands)}) -> "
        text += (
            str(outs[0].type)
            if len(outs) == 1
            else "(" + ", ".join(str(o.type) for o in outs) + ")"
        )
        if self.location:
            text += f" loc({self.location})"
        self._lines.append(text)
        return outs

    def _one(
        self,
        name: str,
        operands: Sequence[Value],
        dtype: str,
        shape: Sequence[int],
        attrs: str = "",
        regions: Sequence[str] = (),
    ) -> Value:
        return self.op(name, operands, [TensorType(dtype, tuple(shape))], attrs, regions)[0]

    @contextmanager
    def _block(self):
        outer, self._lines = self._lines, []
        self._scopes.append({})
        try:
            yield self._lines
        finally:
            self._lines = outer
            self._scopes.pop()

    def region(self, arg_types: Sequence[TensorType], body: Callable[..., Any]) -> str:
        """A one-block region: `body` gets the block's arguments and returns its result(s)."""
        with self._block() as lines:
            args = []
            for t in arg_types:
                args.append(Value(self, f"%{self._n}", t.dtype, tuple(t.shape)))
                self._n += 1
            out = body(*args)
            self._return("stablehlo.return", [out] if isinstance(out, Value) else list(out))
        head = ", ".join(f"{a.name}: {a.type}" for a in args)
        block = f"^bb0({head}):\n      " if args else ""
        return "{ " + block + "\n      ".join(lines) + " }"

    def call(
        self, function: str, operands: Sequence[Value], results: Sequence[TensorType]
    ) -> list[Value]:
        return self.op("func.call", operands, results, f"callee = @{function}")

    # ---- constants and shapes -------------------------------------------------------------------

    def constant(self, value: Number, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A splat; equal scalars of one block are one op."""
        key = (repr(value), dtype)
        for scope in self._scopes:
            if key in scope:
                scalar = scope[key]
                break
        else:
            text = f"value = dense<{_scalar_text(value, dtype)}> : tensor<{dtype}>"
            scalar = self._scopes[-1][key] = self._one("stablehlo.constant", [], dtype, (), text)
        return self.splat(scalar, shape)

    def array(self, data: np.ndarray, dtype: str | None = None) -> Value:
        """A dense constant from a NumPy array (dtype inferred, or converted to)."""
        if dtype is None:
            dtype = next(k for k, v in T._NUMPY.items() if np.dtype(v) == data.dtype)
        data = np.ascontiguousarray(data, dtype=T.numpy_dtype(dtype)).reshape(data.shape)
        if data.size == 0 or dtype == "i1":
            text = "" if data.size == 0 else _nested(data.tolist())
        elif data.size == 1 and dtype not in T.COMPLEX:
            text = _scalar_text(data.item(), dtype)
        else:
            text = f'"0x{data.tobytes().hex().upper()}"'
        t = TensorType(dtype, data.shape)
        return self._one(
            "stablehlo.constant", [], dtype, data.shape, f"value = dense<{text}> : {t}"
        )

    def lift(self, x: Operand, dtype: str, shape: Sequence[int] = ()) -> Value:
        """`x` as a Value of `dtype`; a number or 0-d value is broadcast to `shape`."""
        if not isinstance(x, Value):
            return self.constant(x, dtype, shape)
        x = self.convert(x, dtype)
        return self.splat(x, shape) if x.shape == () else x

    def splat(self, scalar: Value, shape: Sequence[int]) -> Value:
        return self.broadcast_in_dim(scalar, shape, ()) if len(shape) else scalar

    def broadcast(self, *xs: Operand) -> list[Value]:
        """Numbers lifted to the Values' dtype, everything broadcast to the common shape."""
        first = next(x for x in xs if isinstance(x, Value))
        vals = [x if isinstance(x, Value) else self.constant(x, first.dtype) for x in xs]
        shape = broadcast_shapes(*(v.shape for v in vals))
        return [self.expand(v, shape) for v in vals]

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """NumPy broadcasting of `x` to `shape`."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        lead = len(shape) - x.ndim
        if lead < 0 or any(s != 1 and s != shape[lead + i] for i, s in enumerate(x.shape)):
            raise ValueError(f"cannot broadcast {x.shape} to {shape}")
        return self.broadcast_in_dim(x, shape, range(lead, len(shape)))

    def broadcast_in_dim(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        shape, dims = tuple(shape), tuple(dims)
        if x.shape == shape and dims == tuple(range(len(shape))):
            return x
        assert len(dims) == x.ndim, (x, shape, dims)
        out = self._one(
            "stablehlo.broadcast_in_dim",
            [x],
            x.dtype,
            shape,
            f"broadcast_dimensions = {_ints(dims)}",
        )
        out.weak = x.weak
        return out

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if math.prod(shape) != x.numel:
            raise ValueError(f"cannot reshape {x.shape} to {shape}")
        return self._one("stablehlo.reshape", [x], x.dtype, shape)

    def unsqueeze(self, x: Value, dim: int) -> Value:
        dim = dim % (x.ndim + 1)
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def squeeze(self, x: Value, dims: Sequence[int]) -> Value:
        drop = {d % x.ndim for d in dims} if x.ndim else set()
        return self.reshape(x, [s for i, s in enumerate(x.shape) if i not in drop])

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = tuple(perm)
        if perm == tuple(range(x.ndim)):
            return x
        return self._one(
            "stablehlo.transpose",
            [x],
            x.dtype,
            [x.shape[p] for p in perm],
            f"permutation = {_ints(perm)}",
        )

    def moveaxis(self, x: Value, src: int, dst: int) -> Value:
        perm = [i for i in range(x.ndim) if i != src % x.ndim]
        perm.insert(dst % x.ndim, src % x.ndim)
        return self.transpose(x, perm)

    def slice(
        self,
        x: Value,
        start: Sequence[int],
        limit: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        strides = tuple(strides) if strides is not None else (1,) * x.ndim
        if not any(start) and tuple(limit) == x.shape and all(s == 1 for s in strides):
            return x
        shape = [max(0, -(-(e - s) // st)) for s, e, st in zip(start, limit, strides)]
        attrs = (
            f"start_indices = {_ints(start)}, limit_indices = {_ints(limit)}, "
            f"strides = {_ints(strides)}"
        )
        return self._one("stablehlo.slice", [x], x.dtype, shape, attrs)

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """`x[..., start:limit:stride, ...]` along `dim`; bounds already clamped."""
        dim = dim % x.ndim
        lo, hi, st = [0] * x.ndim, list(x.shape), [1] * x.ndim
        lo[dim], hi[dim], st[dim] = start, limit, stride
        return self.slice(x, lo, hi, st)

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        return self._one(
            "stablehlo.dynamic_slice", [x, *starts], x.dtype, sizes, f"slice_sizes = {_ints(sizes)}"
        )

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        return self._one("stablehlo.dynamic_update_slice", [x, update, *starts], x.dtype, x.shape)

    def concatenate(self, xs: Sequence[Value], dim: int) -> Value:
        if len(xs) == 1:
            return xs[0]
        dim = dim % xs[0].ndim
        shape = list(xs[0].shape)
        shape[dim] = sum(x.shape[dim] for x in xs)
        return self._one(
            "stablehlo.concatenate", xs, xs[0].dtype, shape, f"dimension = {dim} : i64"
        )

    def pad(
        self,
        x: Value,
        value: Operand,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
    ) -> Value:
        """Negative `low`/`high` crop."""
        interior = tuple(interior) if interior is not None else (0,) * x.ndim
        if not any(low) and not any(high) and not any(interior):
            return x
        shape = [
            s + lo + hi + max(0, s - 1) * it for s, lo, hi, it in zip(x.shape, low, high, interior)
        ]
        attrs = (
            f"edge_padding_low = {_ints(low)}, edge_padding_high = {_ints(high)}, "
            f"interior_padding = {_ints(interior)}"
        )
        fill = self.lift(value, x.dtype)
        return self._one("stablehlo.pad", [x, fill], x.dtype, shape, attrs)

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        dims = [d % x.ndim for d in dims]
        return (
            self._one("stablehlo.reverse", [x], x.dtype, x.shape, f"dimensions = {_ints(dims)}")
            if dims
            else x
        )

    def iota(self, dtype: str, shape: Sequence[int], dim: int = 0) -> Value:
        """Index along `dim` at each element."""
        if dtype == "i1":
            return self.convert(self.iota("i32", shape, dim), dtype)
        return self._one("stablehlo.iota", [], dtype, shape, f"iota_dimension = {dim} : i64")

    # ---- elementwise ----------------------------------------------------------------------------

    def unary(self, name: str, x: Value, dtype: str | None = None) -> Value:
        """`stablehlo.<name>`, or CHLO with name "chlo.erf" and so on."""
        full = name if "." in name else f"stablehlo.{name}"
        return self._one(full, [x], dtype or x.dtype, x.shape)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        if x.dtype != y.dtype or x.shape != y.shape:
            raise TypeError(f"{name}: operand types differ: {x.type} and {y.type}")
        if name in _BITWISE and (x.dtype in T.FLOATS or x.dtype in T.COMPLEX):
            raise TypeError(f"{name}: no bits of {x.type} are meant by this")
        return self._one(name if "." in name else f"stablehlo.{name}", [x, y], x.dtype, x.shape)

    def add(self, x: Value, y: Value) -> Value:
        return self.binary("or" if x.dtype == "i1" else "add", x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        return self.binary("subtract", x, y)

    def multiply(self, x: Value, y: Value) -> Value:
        return self.binary("and" if x.dtype == "i1" else "multiply", x, y)

    def divide(self, x: Value, y: Value) -> Value:
        return self.binary("divide", x, y)

    def maximum(self, x: Value, y: Value) -> Value:
        return self.binary("maximum", x, y)

    def minimum(self, x: Value, y: Value) -> Value:
        return self.binary("minimum", x, y)

    def power(self, x: Value, y: Value) -> Value:
        return self.binary("power", x, y)

    def remainder(self, x: Value, y: Value) -> Value:
        """Sign of the dividend (C's fmod)."""
        return self.binary("remainder", x, y)

    def atan2(self, x: Value, y: Value) -> Value:
        return self.binary("atan2", x, y)

    def and_(self, x: Value, y: Value) -> Value:
        return self.binary("and", x, y)

    def or_(self, x: Value, y: Value) -> Value:
        return self.binary("or", x, y)

    def xor(self, x: Value, y: Value) -> Value:
        return self.binary("xor", x, y)

    def not_(self, x: Value) -> Value:
        return self.unary("not", x)

    def negate(self, x: Value) -> Value:
        return self.unary("negate", x)

    def abs(self, x: Value) -> Value:
        if x.dtype in T.UNSIGNED or x.dtype == "i1":
            return x
        return self.unary("abs", x, T.real_of(x.dtype))

    def exp(self, x: Value) -> Value:
        return self.unary("exponential", x)

    def log(self, x: Value) -> Value:
        return self.unary("log", x)

    def log1p(self, x: Value) -> Value:
        return self.unary("log_plus_one", x)

    def expm1(self, x: Value) -> Value:
        return self.unary("exponential_minus_one", x)

    def sqrt(self, x: Value) -> Value:
        return self.unary("sqrt", x)

    def rsqrt(self, x: Value) -> Value:
        return self.unary("rsqrt", x)

    def tanh(self, x: Value) -> Value:
        return self.unary("tanh", x)

    def logistic(self, x: Value) -> Value:
        return self.unary("logistic", x)

    def floor(self, x: Value) -> Value:
        return self.unary("floor", x)

    def ceil(self, x: Value) -> Value:
        return self.unary("ceil", x)

    def sign(self, x: Value) -> Value:
        return self.unary("sign", x)

    def erf(self, x: Value) -> Value:
        return self.unary("chlo.erf", x)

    def is_nan(self, x: Value) -> Value:
        if x.dtype in T.COMPLEX:
            return self.or_(self.is_nan(self.real(x)), self.is_nan(self.imag(x)))
        if x.dtype not in T.FLOATS:
            return self.constant(False, "i1", x.shape)
        return self.compare(x, x, "NE")

    def compare(self, x: Value, y: Value, direction: str) -> Value:
        """direction: EQ NE GE GT LE LT. Floats compare as in IEEE 754: with NaN only NE is true."""
        if x.dtype != y.dtype or x.shape != y.shape:
            raise TypeError(f"compare: operand types differ: {x.type} and {y.type}")
        kind = (
            "FLOAT"
            if x.dtype in T.FLOATS or x.dtype in T.COMPLEX
            else "SIGNED"
            if x.dtype in T.SIGNED
            else "UNSIGNED"
        )
        attrs = (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {kind}>"
        )
        return self._one("stablehlo.compare", [x, y], "i1", x.shape, attrs)

    def select(self, pred: Value, x: Operand, y: Operand) -> Value:
        """`where`, with NumPy broadcasting and numbers lifted."""
        x, y = self.broadcast(x, y)
        shape = broadcast_shapes(pred.shape, x.shape)
        pred, x, y = (self.expand(v, shape) for v in (pred, x, y))
        return self._one("stablehlo.select", [pred, x, y], x.dtype, shape)

    def clamp(self, lo: Value, x: Value, hi: Value) -> Value:
        return self._one("stablehlo.clamp", [lo, x, hi], x.dtype, x.shape)

    def convert(self, x: Value, dtype: str) -> Value:
        """Value conversion as in PyTorch: to bool means != 0; complex to real drops the imaginary
        part.
        """
        if x.dtype == dtype:
            return x
        if x.dtype in T.COMPLEX and dtype == "i1":
            return self.compare(x, self.constant(0, x.dtype, x.shape), "NE")
        if x.dtype in T.COMPLEX and dtype not in T.COMPLEX:
            x = self.real(x)
            if x.dtype == dtype:
                return x
        out = self._to_float8(x, dtype) if dtype.startswith("f8") else self._convert(x, dtype)
        out.weak = x.weak
        return out

    def _convert(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        return self._one("stablehlo.convert", [x], dtype, x.shape)

    def _to_float8(self, x: Value, dtype: str) -> Value:
        from torchtpu_core.stablehlo.float8 import to_float8

        return to_float8(self, x, dtype, self._convert)

    def bitcast(self, x: Value, dtype: str) -> Value:
        """Same bits. A narrower type adds a last dimension, a wider one consumes it."""
        if x.dtype == dtype:
            return x
        src, dst = T.ITEMSIZE[x.dtype], T.ITEMSIZE[dtype]
        shape: tuple[int, ...] = x.shape
        if src > dst:
            shape = (*x.shape, src // dst)
        elif src < dst:
            assert x.shape[-1] == dst // src, (x, dtype)
            shape = x.shape[:-1]
        return self._one("stablehlo.bitcast_convert", [x], dtype, shape)

    def reduce_precision(self, x: Value, exponent_bits: int, mantissa_bits: int) -> Value:
        attrs = f"exponent_bits = {exponent_bits} : i32, mantissa_bits = {mantissa_bits} : i32"
        return self._one("stablehlo.reduce_precision", [x], x.dtype, x.shape, attrs)

    def real(self, x: Value) -> Value:
        return self.unary("real", x, T.real_of(x.dtype)) if x.dtype in T.COMPLEX else x

    def imag(self, x: Value) -> Value:
        if x.dtype not in T.COMPLEX:
            return self.constant(0, x.dtype, x.shape)
        return self.unary("imag", x, T.real_of(x.dtype))

    def complex(self, re: Value, im: Value) -> Value:
        return self._one("stablehlo.complex", [re, im], T.complex_of(re.dtype), re.shape)

    # ---- reductions and windows -----------------------------------------------------------------

    def reduce(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        dims: Sequence[int],
        body: Callable[..., Any],
    ) -> list[Value]:
        """body(acc_0.., x_0..) -> new accumulators, on scalars."""
        dims = sorted(d % xs[0].ndim for d in dims)
        shape = tuple(s for i, s in enumerate(xs[0].shape) if i not in dims)
        scalars = [TensorType(x.dtype, ()) for x in xs]
        region = self.region(scalars + scalars, body)
        results = [TensorType(x.dtype, shape) for x in xs]
        return self.op(
            "stablehlo.reduce", [*xs, *inits], results, f"dimensions = {_ints(dims)}", [region]
        )

    def reduce_op(self, kind: str, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
        """kind: add, multiply, maximum, minimum, and, or. Identity elements as in the
        specification.
        """
        dims = [d % x.ndim for d in dims] if x.ndim else []
        out = x
        if dims:
            init = self.constant(_identity(kind, x.dtype), x.dtype)
            op = {("add", "i1"): "or", ("multiply", "i1"): "and"}.get((kind, x.dtype), kind)
            out = self.reduce([x], [init], dims, lambda a, v: self.binary(op, a, v))[0]
        if keepdim:
            out = self.reshape(out, [1 if i in dims else s for i, s in enumerate(x.shape)])
        return out

    def reduce_window(
        self,
        xs: Sequence[Value],
        inits: Sequence[Value],
        body: Callable[..., Any],
        window: Sequence[int],
        strides: Sequence[int] | None = None,
        padding: Sequence[tuple[int, int]] | None = None,
        base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None,
    ) -> list[Value]:
        n = len(window)
        strides = list(strides or [1] * n)
        padding = list(padding or [(0, 0)] * n)
        base, wdil = list(base_dilation or [1] * n), list(window_dilation or [1] * n)
        shape = []
        for i in range(n):
            size = (xs[0].shape[i] - 1) * base[i] + 1 if xs[0].shape[i] else 0
            size += padding[i][0] + padding[i][1]
            span = (window[i] - 1) * wdil[i] + 1
            shape.append(0 if size < span else (size - span) // strides[i] + 1)
        scalars = [TensorType(x.dtype, ()) for x in xs]
        attrs = (
            f"window_dimensions = {_ints(window)}, window_strides = {_ints(strides)}, "
            f"base_dilations = {_ints(base)}, window_dilations = {_ints(wdil)}, "
            f"padding = {_pairs(padding)}"
        )
        results = [TensorType(x.dtype, tuple(shape)) for x in xs]
        region = self.region(scalars + scalars, body)
        return self.op("stablehlo.reduce_window", [*xs, *inits], results, attrs, [region])

    def select_and_scatter(
        self,
        x: Value,
        source: Value,
        init: Value,
        select: Callable[[Value, Value], Value],
        scatter: Callable[[Value, Value], Value],
        window: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
    ) -> Value:
        s = TensorType(x.dtype, ())
        attrs = (
            f"window_dimensions = {_ints(window)}, window_strides = {_ints(strides)}, "
            f"padding = {_pairs(padding)}"
        )
        regions = [self.region([s, s], select), self.region([s, s], scatter)]
        return self._one(
            "stablehlo.select_and_scatter", [x, source, init], x.dtype, x.shape, attrs, regions
        )

    def sort(
        self, xs: Sequence[Value], dim: int, less: Callable[..., Value], stable: bool = True
    ) -> list[Value]:
        """less(a_0, b_0, a_1, b_1, ..) -> i1, on scalars, one pair an operand."""
        dim = dim % xs[0].ndim
        pairs = [TensorType(x.dtype, ()) for x in xs for _ in range(2)]
        attrs = f"dimension = {dim} : i64, is_stable = {'true' if stable else 'false'}"
        return self.op(
            "stablehlo.sort", xs, [x.type for x in xs], attrs, [self.region(pairs, less)]
        )

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

    # ---- contractions ---------------------------------------------------------------------------

    @contextmanager
    def products(self, precision: str) -> Iterator[None]:
        """Within, dots and convolutions have this precision."""
        outer, self.precision = self.precision, precision
        try:
            yield
        finally:
            self.precision = outer

    def _product(
        self, name: str, x: Value, y: Value, dtype: str, shape: Sequence[int], attrs: str
    ) -> Value:
        """A dot or convolution with its precision: that of the builder for f32 and c64; other
        types have no less than their own.
        """
        single = x.dtype in ("f32", "complex<f32>")

        def multiply(x: Value, y: Value) -> Value:
            p = f"#stablehlo<precision {self.precision if single else 'HIGHEST'}>"
            out = x.dtype if single else dtype
            return self._one(name, [x, y], out, shape, f"{attrs}, precision_config = [{p}, {p}]")

        if single and self.emulate:
            return bf16.product(self, x, y, multiply, self.precision)
        return multiply(x, y)

    def dot_general(
        self,
        x: Value,
        y: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        out_dtype: str | None = None,
    ) -> Value:
        """Result dims: batch, x's free, y's free. `out_dtype` may be wider than the operands'
        (accumulation type).
        """
        cx, cy = (list(c) for c in contract)
        bx, by = (list(c) for c in batch)
        shape = [x.shape[i] for i in bx]
        shape += [s for i, s in enumerate(x.shape) if i not in cx and i not in bx]
        shape += [s for i, s in enumerate(y.shape) if i not in cy and i not in by]
        attrs = (
            f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {_list(bx)}, "
            f"rhs_batching_dimensions = {_list(by)}, lhs_contracting_dimensions = {_list(cx)}, "
            f"rhs_contracting_dimensions = {_list(cy)}>"
        )
        return self._product("stablehlo.dot_general", x, y, out_dtype or x.dtype, shape, attrs)

    def convolution(
        self,
        x: Value,
        w: Value,
        dims: tuple[str, str, str],
        out_shape: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        feature_groups: int = 1,
        batch_groups: int = 1,
        out_dtype: str | None = None,
    ) -> Value:
        """dims: e.g. ("bf01", "oi01", "bf01") - a letter or a spatial number for each dimension."""
        lhs, rhs, out = (", ".join(d) for d in dims)
        attrs = (
            f"dimension_numbers = #stablehlo.conv<[{lhs}]x[{rhs}]->[{out}]>, "
            f"window_strides = {_ints(strides)}, padding = {_pairs(padding)}, "
            f"lhs_dilation = {_ints(lhs_dilation)}, rhs_dilation = {_ints(rhs_dilation)}, "
            f"window_reversal = {_bools([False] * len(strides))}, "
            f"feature_group_count = {feature_groups} : i64, "
            f"batch_group_count = {batch_groups} : i64"
        )
        return self._product("stablehlo.convolution", x, w, out_dtype or x.dtype, out_shape, attrs)

    # ---- gather and scatter ---------------------------------------------------------------------

    def gather(
        self,
        x: Value,
        indices: Value,
        out_shape: Sequence[int],
        offset_dims: Sequence[int],
        collapsed: Sequence[int],
        start_index_map: Sequence[int],
        slice_sizes: Sequence[int],
        index_vector_dim: int,
        operand_batching: Sequence[int] = (),
        indices_batching: Sequence[int] = (),
        sorted_: bool = False,
    ) -> Value:
        attrs = (
            f"dimension_numbers = #stablehlo.gather<offset_dims = {_list(offset_dims)}, "
            f"collapsed_slice_dims = {_list(collapsed)}, "
            f"operand_batching_dims = {_list(operand_batching)}, "
            f"start_indices_batching_dims = {_list(indices_batching)}, "
            f"start_index_map = {_list(start_index_map)}, "
            f"index_vector_dim = {index_vector_dim}>, slice_sizes = {_ints(slice_sizes)}, "
            f"indices_are_sorted = {'true' if sorted_ else 'false'}"
        )
        return self._one("stablehlo.gather", [x, indices], x.dtype, out_shape, attrs)

    def scatter(
        self,
        xs: Sequence[Value],
        indices: Value,
        updates: Sequence[Value],
        body: Callable[..., Any],
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        input_batching: Sequence[int] = (),
        indices_batching: Sequence[int] = (),
        unique: bool = False,
        sorted_: bool = False,
    ) -> list[Value]:
        """body(current.., update..) -> new, on scalars. Out-of-range updates are dropped."""
        attrs = (
            "scatter_dimension_numbers = #stablehlo.scatter<"
            f"update_window_dims = {_list(update_window_dims)}, "
            f"inserted_window_dims = {_list(inserted_window_dims)}, "
            f"input_batching_dims = {_list(input_batching)}, "
            f"scatter_indices_batching_dims = {_list(indices_batching)}, "
            f"scatter_dims_to_operand_dims = {_list(scatter_dims_to_operand_dims)}, "
            f"index_vector_dim = {index_vector_dim}>, "
            f"indices_are_sorted = {'true' if sorted_ else 'false'}, "
            f"unique_indices = {'true' if unique else 'false'}"
        )
        scalars = [TensorType(x.dtype, ()) for x in xs]
        region = self.region(scalars + scalars, body)
        return self.op(
            "stablehlo.scatter", [*xs, indices, *updates], [x.type for x in xs], attrs, [region]
        )

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
        shape, dtype = list(x.shape), x.dtype
        if kind == "RFFT":
            shape[-1], dtype = lengths[-1] // 2 + 1, T.complex_of(x.dtype)
        elif kind == "IRFFT":
            shape[-1], dtype = lengths[-1], T.real_of(x.dtype)
        attrs = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {_ints(lengths)}"
        return self._one("stablehlo.fft", [x], dtype, shape, attrs)

    def custom_call(
        self, target: str, operands: Sequence[Value], results: Sequence[TensorType], attrs: str = ""
    ) -> list[Value]:
        """`attrs`: more printed attributes, such as backend_config or api_version."""
        text = f'call_target_name = "{target}"' + (f", {attrs}" if attrs else "")
        return self.op("stablehlo.custom_call", operands, results, text)

    def barrier(self, xs: Sequence[Value]) -> list[Value]:
        return self.op("stablehlo.optimization_barrier", xs, [x.type for x in xs])


_BITWISE = frozenset(
    ("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical")
)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """NumPy's rule; raises ValueError naming the shapes."""
    n = max(len(s) for s in shapes)
    out = [1] * n
    for s in shapes:
        for i, d in enumerate(s, n - len(s)):
            if d != 1 and out[i] not in (1, d):
                raise ValueError(
                    f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast"
                )
            out[i] = d if d != 1 else out[i]
    return tuple(out)


def _identity(kind: str, dtype: str) -> Number:
    if kind in ("add", "or"):
        return 0
    if kind == "multiply":
        return 1
    if kind == "and":
        return 1 if dtype == "i1" else -1 if dtype in T.SIGNED else T.int_limits(dtype)[1]
    return T.lowest(dtype) if kind == "maximum" else T.highest(dtype)


def _pairs(padding: Sequence[tuple[int, int]]) -> str:
    if not padding:
        return "dense<> : tensor<0x2xi64>"
    rows = ", ".join(f"[{lo}, {hi}]" for lo, hi in padding)
    return f"dense<[{rows}]> : tensor<{len(padding)}x2xi64>"


def _nested(x: Any) -> str:
    if isinstance(x, list):
        return "[" + ", ".join(_nested(v) for v in x) + "]"
    return "true" if x else "false"
