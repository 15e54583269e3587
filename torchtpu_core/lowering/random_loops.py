"""Distributions sampled by rejection: gamma, Dirichlet, Poisson, binomial; and the gradient of
gamma samples.

Each is one while loop over the whole tensor that draws for every element until the last one is
accepted, from a random state of its own (`random_bits.fork`), so that the program's state moves by
a constant.
"""

from __future__ import annotations

from collections.abc import Callable

from torchtpu_core.lowering import random_bits
from torchtpu_core.lowering.registry import lowering
from torchtpu_core.stablehlo import Builder, Value
from torchtpu_core.stablehlo import types as T


def _wide(x: Value) -> str:
    return "f64" if x.dtype == "f64" else "f32"


def _units(b: Builder, state: Value, like: Value, count: int) -> list[Value]:
    """[new state, uniform numbers in (0, 1) ..], each of the type of `like`."""
    raw_dtype = "ui64" if like.dtype == "f64" else "ui32"
    state, raw = b.rng_bit_generator(state, raw_dtype, (count, *like.shape))
    u = random_bits.to_unit(b, raw, like.dtype, half=True)
    return [state] + [b.squeeze(b.slice_dim(u, 0, i, i + 1), [0]) for i in range(count)]


def _normals(b: Builder, u: Value) -> Value:
    return b.unary("chlo.erf_inv", u * 2 - 1) * 2**0.5


def _any(b: Builder, x: Value) -> Value:
    return b.reduce_op("or", x, range(x.ndim))


def _until_accepted(
    b: Builder,
    like: Value,
    draws: int,
    propose: Callable[..., tuple[Value, Value]],
    done: Value | None = None,
) -> Value:
    """Repeats `propose(*uniforms) -> (candidate, accepted)` until every element has an accepted
    candidate (0 where `done`).
    """
    if not like.numel:
        return like
    open_ = b.not_(done) if done is not None else b.constant(True, "i1", like.shape)
    start = [random_bits.fork(b), open_, b.constant(0, like.dtype, like.shape)]

    def body(state: Value, open_: Value, held: Value) -> list[Value]:
        state, *u = _units(b, state, like, draws)
        candidate, accepted = propose(*u)
        taken = open_ & accepted
        return [state, open_ & b.not_(accepted), b.select(taken, candidate, held)]

    return b.while_(start, lambda state, open_, held: _any(b, open_), body)[2]


# ---- gamma ---------------------------------------------------------------------------------------


def gamma(b: Builder, alpha: Value) -> Value:
    """Gamma(alpha, 1) by Marsaglia and Tsang's squeeze of a cubed normal; below 1 by way of alpha +
    1.
    """
    one_more = alpha < 1
    d = b.select(one_more, alpha + 1, alpha) - 1 / 3
    c = 1 / (b.sqrt(d) * 3)

    def propose(u: Value, w: Value) -> tuple[Value, Value]:
        z = _normals(b, w)
        root = z * c + 1
        v = root * root * root
        positive = root > 0
        bound = z * z * 0.5 + d * (1 - v + b.log(b.select(positive, v, 1)))
        return d * v, positive & (b.log(u) < bound)

    # Not a number or not positive: nothing would ever be accepted.
    invalid = b.not_(alpha > 0)
    x = _until_accepted(b, alpha, 2, propose, invalid)
    boost = random_bits.unit(b, alpha.dtype, alpha.shape, half=True)
    x = b.select(one_more, x * b.exp(b.log(boost) / alpha), x)
    nothing = b.select(alpha.eq(0), b.constant(0, alpha.dtype, alpha.shape), float("nan"))
    return b.select(invalid, nothing, x)


@lowering("_standard_gamma")
def _standard_gamma(b: Builder, alpha: Value, generator=None) -> Value:
    x = gamma(b, b.convert(alpha, _wide(alpha)))
    return b.maximum(*b.broadcast(x, T.finfo_tiny(alpha.dtype)))  # a sample is never 0


@lowering("_sample_dirichlet")
def _sample_dirichlet(b: Builder, alpha: Value, generator=None) -> Value:
    x = gamma(b, b.convert(alpha, _wide(alpha)))
    x = b.maximum(*b.broadcast(x, 2.0**-126))
    return x / b.reduce_op("add", x, [-1], keepdim=True)


@lowering("_standard_gamma_grad")
def _standard_gamma_grad(b: Builder, alpha: Value, x: Value) -> Value:
    """d x / d alpha at a fixed quantile: minus the distribution function's derivative by alpha over
    the density.

    With the incomplete gamma function's power series this is -x * sum t_n (log x - psi(alpha + n +
    1)), t_0 = 1 / alpha, t_(n+1) = t_n x / (alpha + n + 1). Its terms cancel, hence f64.
    """
    if not x.numel:
        return x
    dtype, shape, x, alpha = x.dtype, x.shape, b.convert(x, "f64"), b.convert(alpha, "f64")
    log_x, term, psi = b.log(x), 1 / alpha, b.unary("chlo.digamma", alpha + 1)
    zero = b.constant(0, "f64", shape)

    def unfinished(n: Value, term: Value, psi: Value, total: Value) -> Value:
        piece = b.abs(term * (log_x - psi))
        return _any(b, (piece > b.abs(total) * 1e-17) | (x > alpha + n)) & (n < 10000)

    def body(n: Value, term: Value, psi: Value, total: Value) -> list[Value]:
        total = total + term * (log_x - psi)
        step = alpha + n + 1
        return [n + 1, term * x / step, psi + 1 / step, total]

    total = b.while_([b.constant(0, "f64"), term, psi, zero], unfinished, body)[3]
    return b.convert(-x * total, dtype)


@lowering("_dirichlet_grad")
def _dirichlet_grad(b: Builder, x: Value, alpha: Value, total: Value) -> Value:
    """d x / d alpha, over 1 - x, at a fixed quantile of the distribution Beta(alpha, beta), where
    beta = total - alpha.

    With s = alpha + beta and the incomplete beta function's series of positive terms, that of x if
    it is below the mean or so: -x / alpha * sum t_n (log x - psi(alpha + 1 + n) + psi(s + n)), t_0
    = 1, t_(n+1) = t_n x (s + n) / (alpha + 1 + n); otherwise that of y = 1 - x: x / beta * sum u_n
    (log x - psi(alpha) + psi(s + n)), u_(n+1) = u_n y (s + n) / (beta + 1 + n). The brackets
    cancel, hence f64.
    """
    if not x.numel:
        return x
    dtype = x.dtype
    x, alpha, total = (b.convert(v, "f64") for v in (x, alpha, total))
    beta = total - alpha
    lower = x * (total + 2) < alpha + 1
    shape, z = b.select(lower, alpha, beta), b.select(lower, x, 1 - x)
    psi = b.unary("chlo.digamma", b.select(lower, alpha + 1, alpha))
    gap = b.log(x) - psi + b.unary("chlo.digamma", total)
    one, zero = (b.constant(v, "f64", x.shape) for v in (1, 0))

    def unfinished(n: Value, term: Value, gap: Value, sum_: Value) -> Value:
        return _any(b, term > 1e-19) & (n < 10000)

    def body(n: Value, term: Value, gap: Value, sum_: Value) -> list[Value]:
        here, below = total + n, shape + n + 1
        change = 1 / here - b.select(lower, 1 / below, zero)
        return [n + 1, term * z * here / below, gap + change, sum_ + term * gap]

    sum_ = b.while_([b.constant(0, "f64"), one, gap, zero], unfinished, body)[3]
    grad = b.select(lower, -x, x) / shape * sum_
    return b.convert(b.select(b.is_nan(grad), 0, grad), dtype)


# ---- counts --------------------------------------------------------------------------------------


@lowering("poisson")
def _poisson(b: Builder, rate: Value, generator=None) -> Value:
    """Small rates multiply uniforms until they fall below exp(-rate); large ones by transformed
    rejection (Hormann).
    """
    lam = b.convert(rate, _wide(rate))
    large = lam >= 10
    few = _poisson_product(b, b.select(large, 0, lam))
    return b.select(large, _poisson_rejection(b, b.select(large, lam, 1e5), b.not_(large)), few)


def _poisson_product(b: Builder, lam: Value) -> Value:
    if not lam.numel:
        return lam
    zero = b.constant(0, lam.dtype, lam.shape)

    def body(state: Value, fallen: Value, count: Value) -> list[Value]:
        state, u = _units(b, state, lam, 1)
        fallen = fallen - b.log(u)
        return [state, fallen, b.select(fallen < lam, count + 1, count)]

    return b.while_(
        [random_bits.fork(b), zero, zero], lambda state, fallen, count: _any(b, fallen < lam), body
    )[2]


def _poisson_rejection(b: Builder, lam: Value, done: Value) -> Value:
    log_lam = b.log(lam)
    scale = b.sqrt(lam) * 2.53 + 0.931
    shift = scale * 0.02483 - 0.059
    hat = 1.1239 + 1.1328 / (scale - 3.4)
    quick = 0.9277 - 3.6224 / (scale - 2)

    def propose(u: Value, v: Value) -> tuple[Value, Value]:
        u = u - 0.5
        room = 0.5 - b.abs(u)
        k = b.floor((shift * 2 / room + scale) * u + lam + 0.43)
        bound = k * log_lam - lam - b.unary("chlo.lgamma", k + 1)
        below = b.log(v * hat / (shift / (room * room) + scale)) <= bound
        out = (k < 0) | ((room < 0.013) & (v > room))
        return k, ((room >= 0.07) & (v <= quick)) | (b.not_(out) & below)

    return _until_accepted(b, lam, 2, propose, done)


@lowering("binomial")
def _binomial(b: Builder, count: Value, prob: Value, generator=None) -> Value:
    """Few successes by their geometric gaps; many by transformed rejection (Hormann)."""
    dtype = _wide(count)
    n, p = b.broadcast(b.convert(count, dtype), b.convert(prob, dtype))
    flipped = p > 0.5
    q = b.select(flipped, 1 - p, p)
    invalid = b.not_((p >= 0) & (p <= 1) & (n >= 0))
    many = b.not_(invalid) & (n * q >= 10)
    gaps = _binomial_gaps(b, b.select(many | invalid, -1, n), q)
    rejected = _binomial_rejection(b, b.select(many, n, 1000), b.select(many, q, 0.5), b.not_(many))
    k = b.select(many, rejected, gaps)
    k = b.select(flipped, n - k, k)
    return b.select(invalid, float("nan"), k)


def _binomial_gaps(b: Builder, n: Value, q: Value) -> Value:
    if not n.numel:
        return n
    zero = b.constant(0, n.dtype, n.shape)
    rate = b.log1p(-q)

    def body(state: Value, reached: Value, k: Value) -> list[Value]:
        state, u = _units(b, state, n, 1)
        reached = reached + b.ceil(b.log(u) / rate)
        return [state, reached, b.select(reached <= n, k + 1, k)]

    return b.while_(
        [random_bits.fork(b), zero, zero], lambda state, reached, k: _any(b, reached <= n), body
    )[2]


def _binomial_rejection(b: Builder, n: Value, p: Value, done: Value) -> Value:
    spread = b.sqrt(n * p * (1 - p))
    scale = spread * 2.53 + 1.15
    shift = scale * 0.0248 + p * 0.01 - 0.0873
    center = n * p + 0.5
    quick = 0.92 - 4.2 / scale
    hat = (5.1 / scale + 2.83) * spread
    odds = b.log(p / (1 - p))
    mode = b.floor((n + 1) * p)

    def ways(k: Value) -> Value:
        return b.unary("chlo.lgamma", k + 1) + b.unary("chlo.lgamma", n - k + 1)

    at_mode = ways(mode)

    def propose(u: Value, v: Value) -> tuple[Value, Value]:
        u = u - 0.5
        room = 0.5 - b.abs(u)
        k = b.floor((shift * 2 / room + scale) * u + center)
        inside = (k >= 0) & (k <= n)
        held = b.select(inside, k, 0)
        bound = at_mode - ways(held) + (held - mode) * odds
        below = b.log(v * hat / (shift / (room * room) + scale)) <= bound
        return k, inside & (((room >= 0.07) & (v <= quick)) | below)

    return _until_accepted(b, n, 2, propose, done)
