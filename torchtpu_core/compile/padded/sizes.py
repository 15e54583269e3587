"""Sizes that a graph leaves open: what bounds them, and their values inside and around a program.

A size is a SymPy expression over the graph's symbols. Its *room* is the most it can be while every
symbol lies in its bucket: how many elements a padded buffer has along such a dimension.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as F
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchtpu_core.stablehlo import Builder, Value

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Inexact(Exception):
    """Something that a padded program cannot compute exactly; the message says what."""


def expression(x: Any) -> sympy.Basic:
    """A size or number of a fake tensor as an expression over the symbols that are still open."""
    return x.node.expr if isinstance(x, SYMBOLIC) else sympy.sympify(x)


def is_open(x: Any) -> bool:
    """Whether a size is not the same in every call."""
    return isinstance(x, sympy.Basic) and bool(x.free_symbols)


class Sizes:
    """The open sizes of one program.

    bounds: for each symbol the least and the greatest value it has in calls of the program; symbols
    whose value is a run-time number only may be missing there.
    """

    def __init__(
        self,
        b: Builder,
        bounds: dict[sympy.Symbol, tuple[int, int]],
        values: dict[sympy.Symbol, Callable[[], Value]],
    ):
        self.b = b
        self._ranges = {s: ValueRanges(lo, hi) for s, (lo, hi) in bounds.items()}
        self._values = values
        self._rooms: dict[sympy.Basic, int] = {}
        self._emitted: dict[sympy.Basic, Value] = {}

    def room(self, size: sympy.Basic | int) -> int:
        """The most that `size` can be."""
        size = sympy.sympify(size)
        if size.is_Integer:
            return int(size)
        if size not in self._rooms:
            if not size.free_symbols <= self._ranges.keys():
                raise Inexact(f"a size ({size}) that has no bound")
            upper = bound_sympy(size, self._ranges).upper
            if not upper.is_Integer:
                raise Inexact(f"a size ({size}) that has no bound")
            self._rooms[size] = max(int(upper), 0)
        return self._rooms[size]

    def number(self, x: Any) -> Any:
        """A number of a graph inside the program: Python's, or a weak 0-d value (i64, f64)."""
        if not isinstance(x, sympy.Basic):
            return x
        if not x.free_symbols:
            return int(x) if x.is_Integer else bool(x) if x.is_Boolean else float(x)
        value = self._emit(x)
        value.weak = True
        return value

    def count(self, size: sympy.Basic | int, dtype: str = "i32") -> Value:
        """A size as a 0-d value of `dtype`."""
        v = self.number(size)
        return self.b.convert(v, dtype) if isinstance(v, Value) else self.b.constant(v, dtype)

    def _emit(self, e: sympy.Basic) -> Value:
        if e not in self._emitted:
            self._emitted[e] = self._compute(e)
        return self._emitted[e]

    def _compute(self, e: sympy.Basic) -> Value:
        b = self.b
        if e.is_Symbol:
            if e not in self._values:
                raise NotImplementedError(
                    f"a size that depends on data ({e}) is not known when a graph is compiled for "
                    "tpu"
                )
            return self._values[e]()
        if e.is_Integer:
            return b.constant(int(e), "i64")
        if e.is_number and e.is_real:
            return b.constant(float(e), "f64")
        args = e.args
        if isinstance(e, (sympy.Add, sympy.Mul)):
            op = b.add if isinstance(e, sympy.Add) else b.multiply
            return functools.reduce(op, self._alike([self._emit(a) for a in args]))
        if isinstance(e, (sympy.Max, F.Max)):
            return functools.reduce(b.maximum, self._alike([self._emit(a) for a in args]))
        if isinstance(e, (sympy.Min, F.Min)):
            return functools.reduce(b.minimum, self._alike([self._emit(a) for a in args]))
        if isinstance(e, (sympy.Pow, F.PowByNatural)) and args[1].is_Integer and args[1] > 0:
            return functools.reduce(b.multiply, [self._emit(args[0])] * int(args[1]))
        if isinstance(e, F.CleanDiv) or (isinstance(e, F.FloorDiv) and self._natural(*args)):
            return b.divide(*(self._emit(a) for a in args))
        if isinstance(e, (F.Mod, F.PythonMod)) and self._natural(*args):
            return b.remainder(*(self._emit(a) for a in args))
        if isinstance(e, F.ToFloat):
            return b.convert(self._emit(args[0]), "f64")
        if isinstance(e, (F.FloatTrueDiv, F.IntTrueDiv)):
            return b.divide(*(b.convert(self._emit(a), "f64") for a in args))
        if isinstance(e, F.FloatPow):
            return b.power(*(b.convert(self._emit(a), "f64") for a in args))
        if type(e).__name__ == "OpaqueUnaryFn_sqrt":
            return b.sqrt(b.convert(self._emit(args[0]), "f64"))
        if isinstance(e, F.Identity):
            return self._emit(args[0])
        raise Inexact(f"the number {e}")

    def _natural(self, x: sympy.Basic, y: sympy.Basic) -> bool:
        """Whether truncating and flooring division of the two are one."""
        lows = [bound_sympy(v, self._ranges).lower for v in (x, y)]
        return bool(lows[0] >= 0) and bool(lows[1] >= 1)

    def _alike(self, xs: list[Value]) -> list[Value]:
        return [self.b.convert(x, "f64") for x in xs] if any(x.dtype == "f64" for x in xs) else xs


# ---- sizes as products ---------------------------------------------------------------------------


def factors(size: sympy.Basic) -> tuple[int, dict[sympy.Basic, int]]:
    """A size as an integer and powers of what is no product."""
    coefficient, rest = sympy.sympify(size).as_coeff_Mul()
    if not coefficient.is_Integer:
        return 1, {size: 1}
    powers = {} if rest == 1 else {k: int(v) for k, v in rest.as_powers_dict().items()}
    return int(coefficient), powers


def quotient(x: sympy.Basic, y: sympy.Basic) -> sympy.Basic | None:
    """x / y where it is a product of integers and of factors of `x`, else None."""
    (n, xs), (m, ys) = factors(x), factors(y)
    if m == 0 or n % m or any(xs.get(k, 0) < v for k, v in ys.items()):
        return None
    left = [k ** (v - ys.get(k, 0)) for k, v in xs.items()]
    return sympy.Mul(n // m, *left)


# ---- sizes on the host ---------------------------------------------------------------------------


def host_function(symbols: Sequence[sympy.Symbol], values: Any) -> Callable[[Sequence[int]], Any]:
    """`values`, nested tuples of expressions and None, as a function of the symbols' values."""
    names = {s: sympy.Symbol(f"v{i}", integer=True) for i, s in enumerate(symbols)}
    unknown = {s for s in _leaves(values)} - set(symbols)
    if unknown:
        raise Inexact(f"sizes that depend on {', '.join(map(str, unknown))}")
    body = _printed(values, names)
    arguments = "".join(f"{names[s]}, " for s in symbols)
    source = f"lambda _v: (lambda {arguments}: {body})(*_v)"
    return eval(source, {"math": math, "torch": torch, "min": min, "max": max})


def _leaves(x: Any) -> set[sympy.Symbol]:
    if isinstance(x, tuple):
        return set().union(*map(_leaves, x)) if x else set()
    return x.free_symbols if isinstance(x, sympy.Basic) else set()


def _printed(x: Any, names: dict[sympy.Symbol, sympy.Symbol]) -> str:
    if isinstance(x, tuple):
        return "(" + "".join(_printed(v, names) + ", " for v in x) + ")"
    if not isinstance(x, sympy.Basic):
        return repr(x)
    return PythonPrinter().doprint(x.xreplace(names))
