"""Matrix products: mm and its relatives, all by way of one `dot`. Low-precision floats accumulate
in f32 and round once."""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.lowering.dtypes import mlir, torch_dtype
from torchtpu_core.lowering.pointwise import conj
from torchtpu_core.lowering.promotion import opmath
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo.origins import merged, split
from torchtpu_core.stablehlo.value import Operand


def dot(
    b: Builder,
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Value:
    """dot_general in the accumulation type of the operands (negative dimensions allowed); the
    caller rounds."""
    if x.dtype != y.dtype:  # PyTorch's meta kernels let this pass, its real ones do not
        raise RuntimeError(
            "expected m1 and m2 to have the same dtype, but got: "
            f"{torch_dtype(x.dtype)} != {torch_dtype(y.dtype)}"
        )
    pairs = [([i % x.ndim for i in p], [i % y.ndim for i in q]) for p, q in (contract, batch)]
    if x.dtype == "i1":
        x, y = x.to("i32"), y.to("i32")
        return b.dot_general(x, y, *pairs).to("i1")
    return _unmerged_dot(b, x, y, *pairs)


_Pairs = tuple[list[int], list[int]]


def _unmerged_dot(b: Builder, x: Value, y: Value, contract: _Pairs, batch: _Pairs) -> Value:
    """dot_general with the dimensions that a reshape before it has merged (see origins.py); the
    result is a reshape of the product.
    """
    out_dtype = opmath(x.dtype)
    xs, xg = _source(x, contract[0] + batch[0])
    ys, yg = _source(y, contract[1] + batch[1])
    # where one is merged of other sizes than the other, it stays merged
    pairs = [*zip(contract[0] + batch[0], contract[1] + batch[1])]
    odd = [(i, j) for i, j in pairs if _sizes(xs, xg[i]) != _sizes(ys, yg[j])]
    xs, xg = merged(b, xs, xg, [i for i, _ in odd])
    ys, yg = merged(b, ys, yg, [j for _, j in odd])

    def spread(pair: _Pairs) -> _Pairs:
        return [d for i in pair[0] for d in xg[i]], [d for j in pair[1] for d in yg[j]]

    out = b.dot_general(xs, ys, spread(contract), spread(batch), out_dtype=out_dtype)
    shape = [x.shape[i] for i in batch[0]]
    for v, c, t in zip((x, y), contract, batch):
        shape += [n for i, n in enumerate(v.shape) if i not in (*c, *t)]
    return b.reshape(out, shape)


def _source(x: Value, named: Sequence[int]) -> tuple[Value, list[list[int]]]:
    """`split`, for a product that names the dimensions `named` of `x`. For a TPU, not transposed
    where the others are in order: its compiler moves a transpose up through all sums of gradients
    before it, and computes those once for each order.
    """
    if x.b.module.target != "cpu":
        source, groups = split(x, ordered=False)
        others = [d for i, g in enumerate(groups) if i not in named for d in g]
        if others == sorted(others):
            return source, groups
    return split(x)


def _sizes(x: Value, dims: Sequence[int]) -> list[int]:
    return [x.shape[d] for d in dims]


def matmul(b: Builder, x: Value, y: Value, adj_x: bool = False, adj_y: bool = False) -> Value:
    """`x @ y` over the last two dimensions with equal leading ones; `adj_*` takes the (conjugate)
    transpose of an operand."""
    lead = range(x.ndim - 2)
    x, y = (conj(b, v) if adj else v for v, adj in ((x, adj_x), (y, adj_y)))
    return dot(b, x, y, ((-2 if adj_x else -1,), (-1 if adj_y else -2,)), (lead, lead))


def exact_matmul(b: Builder, x: Value, y: Value, adj_x: bool = False, adj_y: bool = False) -> Value:
    """`matmul` at full precision whatever the mode: for algorithms that a rough product breaks."""
    with b.products("HIGHEST"):
        return matmul(b, x, y, adj_x, adj_y)


def adjoint(b: Builder, x: Value) -> Value:
    """The conjugate transpose of the last two dimensions."""
    return conj(b, transpose(b, x))


def transpose(b: Builder, x: Value) -> Value:
    """The last two dimensions swapped."""
    return b.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def _is_number(x: Operand, n: int) -> bool:
    return not isinstance(x, Value) and x == n


def _combine(b: Builder, c: Value, product: Value, beta: Operand, alpha: Operand) -> Value:
    """beta * c + alpha * product, where beta = 0 drops `c` even if it holds NaN."""
    dtype = product.dtype
    inner = product.origin[0] if product.origin is not None else product
    n = product.shape[-1:]
    if inner is not product and inner.shape[-1:] == n == c.shape[-1:] == (c.numel,):
        # a row is added before the rows of the product are merged
        out = _combine(b, b.reshape(c, n), inner, beta, alpha)
        return b.reshape(out, product.shape)
    if not _is_number(alpha, 1):
        product = b.multiply(product, b.lift(alpha, dtype, product.shape))
    if _is_number(beta, 0):
        return product
    c = b.expand(c.to(dtype), product.shape)
    if not _is_number(beta, 1):
        factor = b.lift(beta, dtype)
        scaled = b.multiply(c, b.splat(factor, c.shape))
        c = b.select(factor.eq(0), 0, scaled) if isinstance(beta, Value) else scaled
    return b.add(c, product)


@lowering("mm", "mm.dtype")
def _mm(b, x, y, out_dtype=None):
    return dot(b, x, y, ((1,), (0,)))


@lowering("bmm", "bmm.dtype")
def _bmm(b, x, y, out_dtype=None):
    return matmul(b, x, y)


@lowering("mv")
def _mv(b, x, y):
    return dot(b, x, y, ((1,), (0,)))


@lowering("dot")
def _dot(b, x, y):
    return dot(b, x, y, ((0,), (0,)))


@lowering("vdot")
def _vdot(b, x, y):
    return dot(b, conj(b, x), y, ((0,), (0,)))


@lowering("addmm", "baddbmm", "addmm.dtype", "baddbmm.dtype", runtime=("beta", "alpha"))
def _addmm(b, c, x, y, out_dtype=None, *, beta=1, alpha=1):
    return _combine(b, c, matmul(b, x, y), beta, alpha)


@lowering("_addmm_activation", runtime=("beta", "alpha"))
def _addmm_activation(b, c, x, y, *, beta=1, alpha=1, use_gelu=False):
    out = _combine(b, c, matmul(b, x, y), beta, alpha)
    if not use_gelu:
        return b.maximum(out, b.constant(0, out.dtype, out.shape))
    inner = (out * out * out * 0.044715 + out) * 0.7978845608028654
    return out * 0.5 * (b.tanh(inner) + 1)


@lowering("addbmm", runtime=("beta", "alpha"))
def _addbmm(b, c, x, y, *, beta=1, alpha=1):
    return _combine(b, c, dot(b, x, y, ((0, 2), (0, 1))), beta, alpha)


@lowering("addmv", runtime=("beta", "alpha"))
def _addmv(b, c, x, y, *, beta=1, alpha=1):
    return _combine(b, c, dot(b, x, y, ((1,), (0,))), beta, alpha)


@lowering("addr", runtime=("beta", "alpha"))
def _addr(b, c, x, y, *, beta=1, alpha=1):
    dtype = opmath(_widest(c, x, y))
    x, y = x.to(dtype), y.to(dtype)
    product = b.unsqueeze(x, 1) * b.unsqueeze(y, 0)
    return _combine(b, c, product, beta, alpha)


def _widest(*xs: Value) -> str:
    from torchtpu_core.lowering.promotion import result_dtype

    return mlir(result_dtype(xs))


@lowering("linear")
def _linear(b, x, w, bias=None):
    out = dot(b, x, w, ((-1,), (-1,)))
    return out if bias is None else out + bias.to(out.dtype)


@lowering("_int_mm")
def _int_mm(b, x, y):
    return b.dot_general(x, y, ((1,), (0,)), out_dtype="i32")


@lowering("_trilinear")
def _trilinear(b, i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """The sum over `sumdim` of the product of three tensors, each missing the dimensions it is
    expanded in."""
    n = i1.ndim + len(expand1)
    drops = [sorted(d % n for d in e) for e in (expand1, expand2, expand3)]
    axes = [[d for d in range(n) if d not in drop] for drop in drops]
    summed = {d % n for d in sumdim}
    pair, pair_axes = _contract(b, i1, axes[0], i2, axes[1], summed - set(axes[2]))
    out, out_axes = _contract(b, pair, pair_axes, i3.to(pair.dtype), axes[2], summed)
    kept = [d for d in range(n) if d not in summed]
    sizes = {
        d: s for x, ax in ((i1, axes[0]), (i2, axes[1]), (i3, axes[2])) for d, s in zip(ax, x.shape)
    }
    out = b.transpose(out, [out_axes.index(d) for d in kept if d in out_axes])
    where = [i for i, d in enumerate(kept) if d in out_axes]
    return b.broadcast_in_dim(out, [sizes.get(d, 1) for d in kept], where)


def _contract(
    b: Builder, x: Value, xa: list[int], y: Value, ya: list[int], summed: set[int]
) -> tuple[Value, list[int]]:
    """Product of two tensors with named axes, summed over `summed`; (result, its axes)."""
    x, xa = _sum_alone(b, x, xa, summed - set(ya))
    y, ya = _sum_alone(b, y, ya, summed - set(xa))
    both = [d for d in xa if d in ya]
    con, bat = [d for d in both if d in summed], [d for d in both if d not in summed]
    at = [([xa.index(d) for d in ds], [ya.index(d) for d in ds]) for ds in (con, bat)]
    free = [d for d in xa if d not in both] + [d for d in ya if d not in both]
    return dot(b, x, y, *at), bat + free


def _sum_alone(b: Builder, x: Value, axes: list[int], summed: set[int]) -> tuple[Value, list[int]]:
    where = [i for i, d in enumerate(axes) if d in summed]
    return b.reduce_op("add", x, where) if where else x, [d for d in axes if d not in summed]
