"""Elementwise ops: arithmetic, comparisons, selection and conversions."""

from __future__ import annotations

from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.shapes import Shapes
from torchtpu_core.stablehlo.value import Operand, Value, broadcast_shapes

# XLA crashes on the remainder of complex numbers, and gives the others an order of its own.
_ORDERED = frozenset(("remainder", "maximum", "minimum"))
_BITWISE = frozenset(
    ("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical")
)


class Elementwise(Shapes):
    """Elementwise ops."""

    def unary(self, name: str, x: Value, dtype: str | None = None) -> Value:
        """`stablehlo.<name>`, or CHLO with name "chlo.erf" and so on."""
        full = name if "." in name else f"stablehlo.{name}"
        return self._one(full, [x], dtype or x.dtype, x.shape)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        if x.dtype != y.dtype or x.shape != y.shape:
            raise TypeError(f"{name}: operand types differ: {x.type} and {y.type}")
        if name in _BITWISE and (x.dtype in T.FLOATS or x.dtype in T.COMPLEX):
            raise TypeError(f"{name}: no bits of {x.type} are meant by this")
        if name in _ORDERED and (x.dtype in T.COMPLEX or (name, x.dtype) == ("remainder", "i1")):
            raise NotImplementedError(f"{name} not implemented for {x.dtype}")
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
        if x.dtype in T.COMPLEX and direction not in ("EQ", "NE"):
            raise NotImplementedError(f"{direction} not implemented for {x.dtype}")
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
        if x.origin is not None and x.origin[1] is None:  # so that reshapes still meet reshapes
            return self.reshape(self.convert(x.origin[0], dtype), x.shape)
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
