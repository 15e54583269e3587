"""Eigenvalues of Hermitian matrices, singular values, and the pseudo-inverse.

Eigenvectors in f32 are XLA's Eigh; other types go by singular values of a shifted matrix. Singular
values come from one-sided Jacobi (Hestenes): the columns are paired off in a round-robin tournament
and every round rotates all its pairs at once, until all columns are orthogonal to working
precision.
"""

from __future__ import annotations

import math

from torchtpu_core.lowering.linalg import diagonal, eye, qr, triangle
from torchtpu_core.lowering.matmul import adjoint, conj
from torchtpu_core.lowering.matmul import exact_matmul as matmul
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, TensorType, Value
from torchtpu_core.stablehlo import types as T

_SWEEPS = 24


def _times(x: Value, real: Value) -> Value:
    """x times a real factor that broadcasts."""
    return x * real.to(x.dtype)


def _square_sum(b: Builder, x: Value) -> Value:
    """Squared lengths of the columns [.., 1, n]."""
    parts = (b.real(x), b.imag(x)) if x.dtype in T.COMPLEX else (x,)
    total = None
    for p in parts:
        s = b.reduce_op("add", p * p, [x.ndim - 2], keepdim=True)
        total = s if total is None else total + s
    return total


def _columns(b: Builder, x: Value, lo: int, hi: int) -> Value:
    return b.slice_dim(x, -1, lo, hi)


def _next_round(b: Builder, top: Value, bottom: Value) -> tuple[Value, Value]:
    """The tournament's next pairing: all columns but the first move on by one place."""
    h = top.shape[-1]
    if h == 1:
        return top, bottom
    up = [_columns(b, top, 0, 1), _columns(b, bottom, 0, 1), _columns(b, top, 1, h - 1)]
    down = [_columns(b, bottom, 1, h), _columns(b, top, h - 1, h)]
    return b.concatenate(up if h > 2 else up[:2], -1), b.concatenate(down, -1)


def _rotate(b: Builder, top: Value, bottom: Value, m: int) -> tuple[Value, Value, Value]:
    """Makes the first `m` rows of each pair of columns orthogonal; also returns the worst cosine
    met."""
    p, q = b.slice_dim(top, -2, 0, m), b.slice_dim(bottom, -2, 0, m)
    alpha, beta = _square_sum(b, p), _square_sum(b, q)
    gamma = b.reduce_op("add", conj(b, p) * q, [p.ndim - 2], keepdim=True)
    size = b.abs(gamma)
    zero = size.eq(0)
    phase = b.select(zero, 1, _divided(b, gamma, b.select(zero, 1, size)))
    cosine = b.select(zero, 0, size / b.sqrt(alpha) / b.sqrt(beta))
    zeta = (beta - alpha) / (2 * b.select(zero, 1, size))
    t = b.select(zeta < 0, b.constant(-1, zeta.dtype, zeta.shape), 1)
    t = b.select(zero, 0, t / (b.abs(zeta) + b.sqrt(1 + zeta * zeta)))
    c = b.rsqrt(1 + t * t)
    s = c * t
    turned = bottom * conj(b, phase)
    worst = b.reduce_op("maximum", cosine, range(cosine.ndim))
    return _times(top, c) - _times(turned, s), _times(top, s) + _times(turned, c), worst


def _divided(b: Builder, x: Value, real: Value) -> Value:
    return x / real.to(x.dtype)


def _orthogonalized(b: Builder, w: Value, m: int) -> Value:
    """Rotates the columns of `w` until their first `m` rows are orthogonal; the other rows go
    along."""
    n = w.shape[-1]
    if n == 1:
        return w
    if n % 2:
        w = b.pad(w, 0, [0] * w.ndim, [0] * (w.ndim - 1) + [1])
    h = w.shape[-1] // 2
    real = T.real_of(w.dtype)
    tolerance = T.finfo_eps(real) * max(8.0, math.sqrt(m))
    zero = b.constant(0, "i32")

    def round_(i: Value, top: Value, bottom: Value, worst: Value) -> list[Value]:
        top, bottom, met = _rotate(b, top, bottom, m)
        return [i + 1, *_next_round(b, top, bottom), b.maximum(worst, met)]

    def sweep(i: Value, top: Value, bottom: Value, worst: Value) -> list[Value]:
        state = [b.constant(0, "i32"), top, bottom, b.constant(0, real)]
        done = b.while_(state, lambda j, *_: j < 2 * h - 1, round_)
        return [i + 1, *done[1:]]

    def unfinished(i: Value, top: Value, bottom: Value, worst: Value) -> Value:
        return (i < _SWEEPS) & (worst > tolerance)

    state = [zero, _columns(b, w, 0, h), _columns(b, w, h, 2 * h), b.constant(1, real)]
    _, top, bottom, _ = b.while_(state, unfinished, sweep)
    return _columns(b, b.concatenate([top, bottom], -1), 0, n)


def _take_columns(b: Builder, x: Value, order: Value) -> Value:
    """x[.., :, order] with one order a matrix."""
    k, m = x.ndim - 2, x.shape[-2]
    return b.gather(
        x,
        b.unsqueeze(order, k + 1),
        x.shape,
        [k],
        [k + 1],
        [k + 1],
        [1] * k + [m, 1],
        k + 1,
        range(k),
        range(k),
    )


def _sorted_columns(b: Builder, key: Value, *xs: Value) -> list[Value]:
    """`key` [.., n] in descending order and the columns of `xs` with it."""
    last = key.ndim - 1
    ids = b.iota("i32", key.shape, last)
    key, order = b.sort([key, ids], last, lambda x, y, *_: x > y)
    return [key, *(_take_columns(b, x, order) for x in xs)]


def svd(
    b: Builder, a: Value, vectors: bool, full: bool = False
) -> tuple[Value | None, Value, Value | None]:
    """(U, S, V^H); U and V^H are None without `vectors`."""
    m, n = a.shape[-2:]
    if m < n:
        u, s, vh = svd(b, adjoint(b, a), vectors, full)
        return (adjoint(b, vh), s, adjoint(b, u)) if vectors else (None, s, None)
    real = T.real_of(a.dtype)
    if a.numel == 0:
        s = b.constant(0, real, [*a.shape[:-2], n])
        u = eye(b, a.dtype, [*a.shape[:-2], m, m if full else n])
        return (u, s, eye(b, a.dtype, [*a.shape[:-2], n, n])) if vectors else (None, s, None)
    top = b.reduce_op("maximum", b.abs(a), [a.ndim - 2, a.ndim - 1], keepdim=True)
    top = b.select(top.eq(0), 1, top)
    a = _divided(b, a, top)
    q, w = qr(b, a) if m > n else (None, a)
    if vectors:
        w = b.concatenate([w, eye(b, a.dtype, w.shape)], -2)
    w = _orthogonalized(b, w, n)
    v = b.slice_dim(w, -2, n, 2 * n) if vectors else None
    w = b.slice_dim(w, -2, 0, n)
    s = b.squeeze(b.sqrt(_square_sum(b, w)), [-2])
    scale = b.squeeze(top, [-1])
    if not vectors:
        return None, _sorted_columns(b, s)[0] * scale, None
    s, w, v = _sorted_columns(b, s, w, v)
    length = b.unsqueeze(s, s.ndim - 1)
    w = _divided(b, w, b.select(length.eq(0), 1, length))
    u = w if q is None else matmul(b, q, w)
    # A basis that starts with the known columns completes those of zero singular values.
    basis, r = qr(b, u, complete=full)
    d = diagonal(b, r)
    size = b.abs(d)
    phase = b.select(size.eq(0), 1, _divided(b, d, b.select(size.eq(0), 1, size)))
    phase = b.unsqueeze(phase, phase.ndim - 1)
    known = _columns(b, basis, 0, n) * phase
    u = b.concatenate([known, _columns(b, basis, n, m)], -1) if full and m > n else known
    return u, s * scale, adjoint(b, v)


def eigh(
    b: Builder, a: Value, upper: bool = False, vectors: bool = True
) -> tuple[Value, Value | None]:
    """(eigenvalues in ascending order, eigenvectors as columns), from one triangle of `a`."""
    real = T.real_of(a.dtype)
    lead, n = a.shape[:-2], a.shape[-1]
    if a.numel == 0:
        return b.constant(0, real, [*lead, n]), a
    half = triangle(b, a, upper, 1 if upper else -1)
    middle = b.real(diagonal(b, a)).to(a.dtype)
    unit = eye(b, a.dtype, a.shape)
    a = half + adjoint(b, half) + unit * b.unsqueeze(middle, middle.ndim)
    if a.dtype != "f32":  # XLA's eigenvectors are exact to f32 only, and real
        return _hermitian(b, a, unit)
    # lower triangle, sorted, most sweeps, tolerance
    config = 'backend_config = "1,1,100,1e-6"'
    v, w = b.custom_call("Eigh", [a], [a.type, TensorType(real, (*lead, n))], config)
    return w, v


def _hermitian(b: Builder, a: Value, unit: Value) -> tuple[Value, Value]:
    """Shifted by a bound of its norm the matrix is positive: its singular vectors are its
    eigenvectors."""
    rows = b.reduce_op("add", b.abs(a), [a.ndim - 1], keepdim=True)
    bound = b.reduce_op("maximum", rows, [a.ndim - 2], keepdim=True)
    _, s, vh = svd(b, a + _times(unit, bound), True)
    w = s - b.squeeze(bound, [-1])
    return b.reverse(w, [-1]), b.reverse(adjoint(b, vh), [-1])


@lowering("_linalg_eigh")
def _linalg_eigh(b, a, uplo="L", compute_v=True):
    w, v = eigh(b, a, uplo.upper() == "U", compute_v)
    return w, v if compute_v else b.constant(0, a.dtype, [0])


@lowering("_linalg_svd")
def _linalg_svd(b, a, full_matrices=False, compute_uv=True, *, driver=None):
    u, s, vh = svd(b, a, compute_uv, full_matrices)
    none = b.constant(0, a.dtype, [0])
    return (u, s, vh) if compute_uv else (none, s, none)


@lowering("linalg_pinv.atol_rtol_tensor")
def _pinv(b, a, *, atol=None, rtol=None, hermitian=False):
    """Singular values up to max(atol, rtol * largest) count as zero."""
    m, n = a.shape[-2:]
    real = T.real_of(a.dtype)
    if a.numel == 0:
        return b.constant(0, a.dtype, [*a.shape[:-2], n, m])
    if hermitian:
        w, u = eigh(b, a)
        s, vh = b.abs(w), adjoint(b, u)
    else:
        u, s, vh = svd(b, a, True)
        w = s
    top = b.reduce_op("maximum", s, [s.ndim - 1], keepdim=True)
    default = T.finfo_eps(real) * max(m, n)
    absolute = b.constant(0, real, top.shape) if atol is None else _bound(b, atol, real, top)
    if rtol is not None:
        relative = _bound(b, rtol, real, top)
    else:  # an absolute bound replaces the default relative one
        relative = b.select(absolute > 0, 0, b.constant(default, real, top.shape))
    limit = b.expand(b.maximum(absolute, relative * top), s.shape)
    inverse = b.select(s > limit, 1 / b.select(w.eq(0), 1, w), 0)
    v = adjoint(b, vh)
    return matmul(b, _times(v, b.unsqueeze(inverse, inverse.ndim - 1)), u, adj_y=True)


def _bound(b: Builder, x: Value, real: str, like: Value) -> Value:
    """A tolerance, one a matrix or one for all, in the shape [.., 1] of `like`."""
    x = x.to(real)
    return b.expand(x if x.shape == () else b.unsqueeze(x, x.ndim), like.shape)
