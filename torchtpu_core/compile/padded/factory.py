"""Rules of ops that make tensors of open size."""

from __future__ import annotations

import math

import torch

from torchtpu_core.compile.padded.layout import room
from torchtpu_core.compile.padded.sizes import Inexact
from torchtpu_core.compile.padded.walk import Walk, rule
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Value


def _constant(w: Walk, node, value):
    dims = [w.layouts.prefix(n) for n in w.shape(node)]
    dtype = mlir(node.meta["val"].dtype)
    value = w.sizes.number(value)
    return w.layouts.result(w.b.lift(value, dtype, list(map(room, dims))), dims)


@rule("zeros", "new_zeros", "empty.memory_format", "new_empty", "empty_strided")
@rule("new_empty_strided", "empty_permuted")
def _zeros(w: Walk, node, *_, **__):
    return _constant(w, node, 0)


@rule("ones", "new_ones")
def _ones(w: Walk, node, *_, **__):
    return _constant(w, node, 1)


@rule("full", "scalar_tensor")
def _full(w: Walk, node, *args, **kwargs):
    value = kwargs.get("fill_value", args[-1])
    return _constant(w, node, value)


@rule("new_full")
def _new_full(w: Walk, node, x, sizes, value, **_):
    return _constant(w, node, value)


@rule("arange", "arange.start", "arange.start_step")
def _arange(w: Walk, node, *args, **_):
    start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) == 3 else 1)
    dim = w.layouts.prefix(w.shape(node)[0])
    dtype, n = mlir(node.meta["val"].dtype), room(dim)
    start, step = w.sizes.number(start), w.sizes.number(step)
    if not any(isinstance(x, Value) for x in (start, step)):
        end = start + step * n
        v = w.lower(
            torch.ops.aten.arange.start_step, start, end, step, dtype=node.meta["val"].dtype
        )
        if v.shape != (n,):
            raise Inexact("steps that floats do not hold exactly")
        return w.result(node, v, [dim])
    if any(isinstance(x, float) and not math.isfinite(x) for x in (start, step)):
        raise Inexact("a range without an end")
    wide = "f64" if any(_is_float(x) for x in (start, step)) else "i64"
    first, by = (w.b.lift(x, wide, (n,)) for x in (start, step))
    return w.result(node, (first + w.b.iota(wide, (n,)) * by).to(dtype), [dim])


def _is_float(x) -> bool:
    return isinstance(x, float) or (isinstance(x, Value) and x.dtype == "f64")


@rule("eye", "eye.m")
def _eye(w: Walk, node, *_, **__):
    dims = [w.layouts.prefix(n) for n in w.shape(node)]
    shape = list(map(room, dims))
    return w.result(node, w.b.iota("i32", shape, 0).eq(w.b.iota("i32", shape, 1)), dims)
