"""Reductions: sums, products, extrema with and without indices, truth, moments, and norms.

Order statistics (median, mode, kthvalue) are in `order.py`, pairwise distances in `distance.py`,
softmax in `softmax.py`. Low-precision floats accumulate in f32 and are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import Operand

# ---- helpers, also for the other families -------------------------------------------------------


def axes(x: Value, dim: int | Sequence[int] | None) -> list[int]:
    """The dimensions that `dim` names: all for None and for an empty list; none of a 0-d value."""
    if x.ndim == 0:
        return []
    dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % x.ndim for d in dims}) if dims else list(range(x.ndim))


def extent(x: Value, dims: Sequence[int]) -> int:
    """How many elements are reduced into one."""
    return math.prod(x.shape[d] for d in dims)


def wide(x: Value) -> Value:
    """`x` in its accumulation dtype."""
    return x.to(opmath(x.dtype))


def sum_of(x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """Sum in the dtype of `x`."""
    return x.b.reduce_op("add", x, dims, keepdim)


def mean_of(x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """NaN when nothing is reduced, as in PyTorch."""
    total, n = sum_of(x, dims, keepdim), extent(x, dims)
    return total / n if n else total * float("nan")


def max_of(x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """Maximum; NaN where there is one."""
    return x.b.reduce_op("maximum", x, dims, keepdim)


def restore(x: Value, like: Value, dims: Sequence[int]) -> Value:
    """A reduced value broadcast back over the dimensions it lost (the inverse of keepdim=False)."""
    kept = [i for i in range(like.ndim) if i not in dims]
    return x.b.broadcast_in_dim(x, like.shape, kept)


def floating(x: Value) -> Value:
    """Ints and bool as the default float dtype; low-precision floats as f32."""
    import torch

    if x.dtype in T.FLOATS or x.dtype in T.COMPLEX:
        return wide(x)
    return x.to(mlir(torch.get_default_dtype()))


# ---- sums and products --------------------------------------------------------------------------


def _accumulate(x: Value, dtype) -> Value:
    """The input of a sum or product: in `dtype`, ints and bool as i64."""
    if dtype is not None:
        x = x.to(mlir(dtype))
    elif x.dtype in T.INTS or x.dtype == "i1":
        x = x.to("i64")
    return wide(x)


@lowering("sum", "sum.dim_IntList")
def _sum(b, x, dim=None, keepdim=False, *, dtype=None):
    return sum_of(_accumulate(x, dtype), axes(x, dim), keepdim)


@lowering("prod", "prod.dim_int")
def _prod(b, x, dim=None, keepdim=False, *, dtype=None):
    return b.reduce_op("multiply", _accumulate(x, dtype), axes(x, dim), keepdim)


@lowering("nansum")
def _nansum(b, x, dim, keepdim, *, dtype=None):
    x = _accumulate(x, dtype)
    return sum_of(b.select(b.is_nan(x), 0, x), axes(x, dim), keepdim)


@lowering("mean", "mean.dim")
def _mean(b, x, dim=None, keepdim=False, *, dtype=None):
    x = wide(x if dtype is None else x.to(mlir(dtype)))
    return mean_of(x, axes(x, dim), keepdim)


@lowering("count_nonzero", "count_nonzero.dim_IntList")
def _count_nonzero(b, x, dim=None):
    return sum_of(x.to("i1").to("i64" if x.numel >> 31 else "i32"), axes(x, dim))


@lowering("prims::sum")
def _prims_sum(b, x, dims, *, output_dtype=None):
    return _sum(b, x, [] if dims is None else dims, dtype=output_dtype) if dims != [] else x


@lowering("prims::prod")
def _prims_prod(b, x, dims, *, output_dtype=None):
    return _prod(b, x, [] if dims is None else dims, dtype=output_dtype) if dims != [] else x


@lowering("prims::xor_sum")
def _prims_xor_sum(b, x, dims, *, output_dtype=None):
    zero = b.constant(0, x.dtype)
    return b.reduce([x], [zero], axes(x, dims), b.xor)[0]


@lowering("trace")
def _trace(b, x):
    n, m = x.shape
    on_diagonal = b.iota("i32", (n, m), 0).eq(b.iota("i32", (n, m), 1))
    return sum_of(b.select(on_diagonal, _accumulate(x, None), 0), [0, 1])


# ---- truth --------------------------------------------------------------------------------------


def _truth(kind: str):
    def lower(b: Builder, x: Value, dim=None, keepdim=False):
        return b.reduce_op(kind, x.to("i1"), axes(x, dim), keepdim)

    def lower_dims(b: Builder, x: Value, dim=None, keepdim=False):
        return x.to("i1") if dim is not None and not len(dim) else lower(b, x, dim, keepdim)

    return lower, lower_dims


for _name, _kind in (("all", "and"), ("any", "or")):
    _lower, _lower_dims = _truth(_kind)
    lowering(_name, f"{_name}.dim", f"_is_{_name}_true")(_lower)
    lowering(f"{_name}.dims")(_lower_dims)


# ---- extrema ------------------------------------------------------------------------------------


def extremum(b: Builder, x: Value, dims: Sequence[int], keepdim: bool, largest: bool) -> Value:
    """Maximum or minimum, NaN where there is one."""
    if x.dtype in T.COMPLEX:
        name = "max_values" if largest else "min_values"
        raise NotImplementedError(f'"{name}" not implemented for {x.dtype}')
    return b.reduce_op("maximum" if largest else "minimum", x, dims, keepdim)


def extremum_index(
    b: Builder, x: Value, dim: int, keepdim: bool, largest: bool
) -> tuple[Value, Value]:
    """(values, i32 indices) along `dim`: of the first NaN if any, else of the first extremum."""
    if x.ndim == 0:
        return x, b.constant(0, "i32")
    dim = dim % x.ndim
    init = b.constant(T.lowest(x.dtype) if largest else T.highest(x.dtype), x.dtype)
    last = b.constant(max(x.shape[dim] - 1, 0), "i32")

    def pick(v, i, w, j):
        better = b.compare(w, v, "GT" if largest else "LT")
        equal = b.compare(w, v, "EQ")
        if w.dtype in T.FLOATS:
            nan_v, nan_w = b.is_nan(v), b.is_nan(w)
            better = (better | nan_w) & ~nan_v
            equal = equal | (nan_v & nan_w)
        take = better | (equal & b.compare(j, i, "LT"))
        return b.select(take, w, v), b.select(take, j, i)

    index = b.iota("i32", x.shape, dim)
    out = b.reduce([x, index], [init, last], [dim], pick)
    return tuple(b.unsqueeze(o, dim) for o in out) if keepdim else tuple(out)


def _extrema(largest: bool):
    def all_dims(b, x):
        return extremum(b, x, axes(x, None), False, largest)

    def some_dims(b, x, dim=None, keepdim=False):
        return extremum(b, x, axes(x, dim), keepdim, largest)

    def with_index(b, x, dim, keepdim=False):
        return extremum_index(b, x, dim, keepdim, largest)

    def index(b, x, dim=None, keepdim=False):
        if dim is not None:
            return extremum_index(b, x, dim, keepdim, largest)[1]
        i = extremum_index(b, b.reshape(x, (x.numel,)), 0, False, largest)[1]
        return b.reshape(i, (1,) * x.ndim) if keepdim else i

    return all_dims, some_dims, with_index, index


for _name, _largest in (("max", True), ("min", False)):
    _all_dims, _some_dims, _with_index, _index = _extrema(_largest)
    lowering(_name)(_all_dims)
    lowering(f"a{_name}", f"prims::a{_name}")(_some_dims)
    lowering(f"{_name}.dim")(_with_index)
    lowering(f"arg{_name}")(_index)


def _minmax(b, x, dim, keepdim):
    return [extremum(b, x, axes(x, dim), keepdim, largest) for largest in (False, True)]


@lowering("aminmax")
def _aminmax(b, x, *, dim=None, keepdim=False):
    return _minmax(b, x, dim, keepdim)


@lowering("_aminmax", "_aminmax.dim")
def _aminmax_positional(b, x, dim=None, keepdim=False):
    return _minmax(b, x, dim, keepdim)


# ---- moments ------------------------------------------------------------------------------------


def square_abs(x: Value) -> Value:
    """|x|^2, real."""
    if x.dtype not in T.COMPLEX:
        return x * x
    re, im = x.b.real(x), x.b.imag(x)
    return re * re + im * im


def moments(
    x: Value, dims: Sequence[int], correction: Operand = 0, keepdim: bool = False
) -> tuple[Value, Value]:
    """(variance, mean) in two passes, each in the dtype of `x`."""
    b = x.b
    mean = mean_of(x, dims, True)
    total = sum_of(square_abs(x - mean), dims, True)
    divisor = max(extent(x, dims) - correction, 0)
    var = total / b.constant(divisor, total.dtype)
    if keepdim:
        return var, mean
    return b.squeeze(var, dims), b.squeeze(mean, dims)


def _moment_family(name: str):
    root, with_mean = name.startswith("std"), name.endswith("_mean")

    def compute(b, x, dim, correction, keepdim):
        var, mean = moments(wide(x), axes(x, dim), correction, keepdim)
        out = b.sqrt(var) if root else var
        return [out, mean] if with_mean else out

    def default(b, x, unbiased=True):
        return compute(b, x, None, int(unbiased), False)

    def dim(b, x, dim, unbiased=True, keepdim=False):
        return compute(b, x, dim, int(unbiased), keepdim)

    def correction(b, x, dim=None, *, correction=None, keepdim=False):
        return compute(b, x, dim, 1 if correction is None else correction, keepdim)

    return default, dim, correction


for _name in ("var", "std", "var_mean", "std_mean"):
    _default, _dim, _correction = _moment_family(_name)
    lowering(_name)(_default)
    lowering(f"{_name}.dim")(_dim)
    lowering(f"{_name}.correction")(_correction)


@lowering("prims::var")
def _prims_var(b, x, dims, correction=1, *, output_dtype=None):
    return moments(wide(x), axes(x, dims), correction)[0]


@lowering("logsumexp")
def _logsumexp(b, x, dim, keepdim=False):
    x, dims = floating(x), axes(x, dim)
    top = max_of(b.real(x) if x.dtype in T.COMPLEX else x, dims, True)
    # An infinite maximum would give inf - inf; such rows are decided by the maximum alone.
    top = b.select(b.abs(top).eq(float("inf")), 0.0, top).to(x.dtype)
    out = b.log(sum_of(b.exp(x - top), dims, True)) + top
    return out if keepdim else b.squeeze(out, dims)


# ---- norms --------------------------------------------------------------------------------------


def vector_norm(x: Value, p: float, dims: Sequence[int], keepdim: bool = False) -> Value:
    """The p-norm over `dims`, real, for any p, 0 and infinities too, in the precision of `x`."""
    b = x.b
    if p == 2:
        return b.sqrt(sum_of(square_abs(x), dims, keepdim))
    if p == 0:
        nonzero = b.compare(x, b.constant(0, x.dtype, x.shape), "NE")
        return sum_of(nonzero.to(T.real_of(x.dtype)), dims, keepdim)
    size = b.abs(x)
    if p == 1:
        return sum_of(size, dims, keepdim)
    if math.isinf(p):
        return extremum(b, size, dims, keepdim, p > 0)
    return power(sum_of(power(size, p), dims, keepdim), 1.0 / p)


def power(x: Value, p: float) -> Value:
    """x ** p for a constant p."""
    return x * x * x if p == 3 else x.b.power(x, x.b.constant(p, x.dtype, x.shape))


@lowering(
    "linalg_vector_norm",
    "norm.ScalarOpt_dim",
    "norm.Scalar",
    "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim_dtype",
)
def _vector_norm(b, x, ord=2, dim=None, keepdim=False, *, dtype=None):
    x = wide(x if dtype is None else x.to(mlir(dtype)))
    return vector_norm(x, 2.0 if ord is None else float(ord), axes(x, dim), keepdim)


@lowering("dist")
def _dist(b, x, y, p=2):
    x, y = b.broadcast(wide(x), wide(y))
    return vector_norm(x - y, float(p), axes(x, None))


@lowering("renorm", runtime=("maxnorm",))
def _renorm(b, x, p, dim, maxnorm):
    wx = wide(x)
    norm = vector_norm(wx, float(p), [i for i in range(x.ndim) if i != dim % x.ndim], True)
    limit = b.lift(maxnorm, norm.dtype, norm.shape)
    factor = b.select(norm > limit, limit / (norm + 1e-7), 1.0)
    return wx * b.expand(factor, x.shape).to(wx.dtype)
