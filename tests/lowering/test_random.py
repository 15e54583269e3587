"""Random lowerings: ranges, moments, reproducibility and independence of draws, per distribution
and dtype.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.lowering import harness
from torchtpu_core.lowering import graph, random_bits
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Module, TensorType

aten = torch.ops.aten
N = 20_000


def draw(op, *args, seed: int = 7, offset: int = 0, runtime: set[int] | None = None, **kwargs):
    """The results of a random op's lowering; `runtime`: positions passed as 0-d inputs."""
    if runtime:
        return _draw_runtime(op, args, runtime)
    text, inputs, metas, spec = harness.build(op, args, kwargs)
    inputs[-1] = torch.tensor([seed, offset], dtype=torch.uint64)
    return pytree.tree_unflatten(harness.run(text, inputs, metas), spec)


def _draw_runtime(op, args, runtime):
    expected = op(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))
    module = Module()
    b = module.function("main", [], public=True)
    inputs, values = [], []
    for i, a in enumerate(args):
        if i in runtime or isinstance(a, torch.Tensor):
            inputs.append(a if isinstance(a, torch.Tensor) else torch.tensor(a))
            values.append(b.add_arg(TensorType(mlir(inputs[-1].dtype), tuple(inputs[-1].shape))))
            values[-1].weak = i in runtime
        else:
            values.append(a)
    out = pytree.tree_leaves(graph.lower_op(b, op, values, {}, expected))
    if random_bits.random_input(b) is not None:
        inputs.append(torch.tensor([7, 0], dtype=torch.uint64))
    b.finish(out)
    return pytree.tree_unflatten(
        harness.run(str(module), inputs, pytree.tree_leaves(expected)),
        pytree.tree_structure(expected),
    )


def _x(dtype=torch.float32, shape=(N,)) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def moments(x: torch.Tensor, mean: float, std: float, atol: float = 0.0) -> None:
    x = x.double()
    n = x.numel()
    assert abs(x.mean().item() - mean) <= 5 * std / math.sqrt(n) + atol, (x.mean(), mean)
    assert abs(x.std().item() - std) <= 0.06 * std + atol, (x.std(), std)


# op, arguments, mean, standard deviation, (lowest, highest)
INF = math.inf
_FILLS = [
    (aten.uniform.default, (-2.0, 3.0), 0.5, 5 / math.sqrt(12), (-2, 3)),
    (aten.normal_functional.default, (1.0, 2.0), 1, 2, (-INF, INF)),
    (aten.exponential.default, (0.5,), 2, 2, (0, INF)),
    (aten.random.to, (100,), 49.5, 28.87, (0, 99)),
    (aten.uniform.default, (0.0, 1.0), 0.5, 1 / math.sqrt(12), (0, 1)),
    (aten.log_normal.default, (0.1, 0.2), 1.1275, 0.2278, (0, INF)),
    (aten.geometric.default, (0.25,), 4, math.sqrt(12), (1, INF)),
    (aten.bernoulli.p, (0.3,), 0.3, math.sqrt(0.21), (0, 1)),
    (getattr(aten.random, "from"), (-3, 5), 0.5, 2.29, (-3, 4)),
]
_CASES = [(*c, torch.float32) for c in _FILLS] + [(*c, t) for c in _FILLS[:4] for t in FLOATS[1:]]


@pytest.mark.parametrize("op,args,mean,std,bounds,dtype", _CASES, ids=str)
def test_distributions(op, args, mean, std, bounds, dtype):
    x = draw(op, _x(dtype), *args)
    assert x.dtype == dtype and x.shape == (N,)
    slack = 0.02 * (abs(mean) + std) if dtype.itemsize == 2 else 0.0
    moments(x, mean, std, slack)
    assert x.min() >= bounds[0] and x.max() <= bounds[1]
    if "uniform" in str(op):
        assert x.max() < bounds[1]


def test_normal_tails_and_shape():
    z = draw(aten.randn.default, [400_000]).double()
    assert abs((z**3).mean()) < 0.05 and abs((z**4).mean() - 3) < 0.1
    assert 4 < z.abs().max() < 6
    assert abs((z < -1).double().mean() - 0.1587) < 0.005


def test_cauchy_quartiles():
    x = draw(aten.cauchy.default, _x(), 1.0, 2.0)
    q = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75]))
    assert torch.allclose(q, torch.tensor([-1.0, 1.0, 3.0]), atol=0.1)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex(dtype):
    z = draw(aten.normal_functional.default, _x(dtype), 0.0, 1.0)
    moments(z.real, 0, math.sqrt(0.5))
    moments(z.imag, 0, math.sqrt(0.5))
    u = draw(aten.rand.default, [N], dtype=dtype)
    moments(u.imag, 0.5, 1 / math.sqrt(12))


def test_a_uniform_has_every_bit_of_its_mantissa():
    for dtype, digits in (
        (torch.float32, 24),
        (torch.bfloat16, 8),
        (torch.float16, 11),
        (torch.float64, 53),
    ):
        steps = draw(aten.rand.default, [N], dtype=dtype).double() * 2.0**digits
        assert torch.equal(steps, steps.round()) and bool((steps % 2 == 1).any())


# ---- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype,low,high",
    [
        (torch.int64, 0, 10),
        (torch.int64, -5, 2**40),
        (torch.int64, -(2**63), 2**63 - 1),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.uint8, 0, 256),
        (torch.int8, -128, 128),
        (torch.float32, 3, 9),
    ],
    ids=str,
)
def test_randint(dtype, low, high):
    x = draw(aten.randint.low, low, high, [N], dtype=dtype)
    assert x.dtype == dtype
    moments(x, (low + high - 1) / 2, (high - low) / math.sqrt(12))
    assert (x.double().min() >= low and x.double().max() < high) or high > 2**50
    if high - low < 300:
        assert len(x.unique()) == high - low


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float32],
    ids=str,
)
def test_random_fills_the_whole_range(dtype):
    x = draw(aten.random.default, _x(dtype)).double()
    past = {
        torch.int64: 2**63,
        torch.int32: 2**31,
        torch.uint8: 256,
        torch.bool: 2,
        torch.bfloat16: 257,
        torch.float32: 2**24 + 1,
    }
    assert (x.min() >= 0 and x.max() < past[dtype]) or dtype == torch.int64
    moments(x, (past[dtype] - 1) / 2, math.sqrt((past[dtype] ** 2 - 1) / 12))


def test_bounds_at_run_time():
    x = draw(getattr(aten.random, "from"), _x(torch.int64), -3, 5, runtime={1, 2})
    assert x.min() == -3 and x.max() == 4
    x = draw(aten.uniform.default, _x(), 2.0, 3.0, runtime={1, 2})
    assert x.min() >= 2 and x.max() < 3
    kept, mask = draw(aten.native_dropout.default, torch.ones(N), 0.25, True, runtime={1})
    moments(mask, 0.75, 0.433)
    assert torch.allclose(kept, mask / 0.75)


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 5000])
def test_randperm(n):
    p = draw(aten.randperm.default, n) if n else torch.empty(0)
    assert torch.equal(p.sort().values, torch.arange(n, dtype=p.dtype))
    if n > 2:
        assert abs(torch.corrcoef(torch.stack([p.double(), torch.arange(n).double()]))[0, 1]) < 0.15


# ---- the random state ----------------------------------------------------------------------------


def test_equal_states_give_equal_numbers():
    assert torch.equal(draw(aten.rand.default, [64]), draw(aten.rand.default, [64]))
    assert not torch.equal(draw(aten.rand.default, [64], seed=8), draw(aten.rand.default, [64]))
    assert not torch.equal(draw(aten.rand.default, [64], offset=1), draw(aten.rand.default, [64]))


def test_the_offset_counts_blocks_of_four_words():
    long = draw(aten.rand.default, [64])
    assert torch.equal(draw(aten.rand.default, [32], offset=8), long[32:])


def test_draws_of_one_program_differ_and_are_counted():
    module = Module()
    b = module.function("main", [], public=True)
    outs = [
        graph.lower_op(b, aten.rand.default, [[n]], {}, torch.empty(n, device="meta"))
        for n in (64, 64, 3)
    ]
    assert random_bits.random_blocks(b) == 16 + 16 + 1
    late = b.add_arg(TensorType("f32", ()))  # arguments that come after a draw keep their order
    assert random_bits.random_input(b) is b.args[-1]
    b.finish([*outs, late])
    state = torch.tensor([7, 0], dtype=torch.uint64)
    x, y, z, w = harness.run(
        str(module),
        [torch.tensor(5.0), state],
        [*(torch.empty(n) for n in (64, 64, 3)), torch.empty(())],
    )
    assert not torch.equal(x, y) and w == 5
    assert torch.equal(y, draw(aten.rand.default, [64], offset=16))
    assert torch.equal(z, draw(aten.rand.default, [3], offset=32))


def test_bits_are_philox_4x32_10():
    """The block of key 0, counter 0 is the known answer that was published with the generator."""
    b = (module := Module()).function("main", [], public=True)
    out = random_bits.bits(b, "ui32", (4,))
    random_bits.random_input(b)
    b.finish([out])
    state, like = torch.zeros(2, dtype=torch.uint64), torch.empty(4, dtype=torch.uint32)
    (got,) = harness.run(str(module), [state], [like])
    assert got.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("state", [[0, 0], [3 << 40 | 5, 9], [1 << 63, (1 << 32) - 7]])
@pytest.mark.parametrize("shape", [(2, 8, 40, 50), (1 << 14,), (129, 129), (5, 1, 4, 30, 41)])
def test_bits_for_a_tpu_are_those_of_the_compiler(shape, state):
    b = (module := Module()).function("main", [], public=True)
    out = random_bits.bits(b, "ui32", shape)
    want = b.rng_bit_generator(random_bits.random_input(b), "ui32", shape)[1]
    b.finish([out, want])
    assert str(module).count("rng_bit_generator") == 1
    like = [torch.empty(shape, dtype=torch.uint32) for _ in range(2)]
    got, want = harness.run(str(module), [torch.tensor(state, dtype=torch.uint64)], like)
    assert torch.equal(got, want)


# ---- dropout, choices ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_native_dropout(dtype):
    x = torch.full((N,), 2.0, dtype=dtype)
    kept, mask = draw(aten.native_dropout.default, x, 0.25, True)
    assert kept.dtype == dtype and mask.dtype == torch.bool
    moments(mask, 0.75, 0.433)
    assert torch.allclose(kept.float(), mask * (2 / 0.75), rtol=1e-2)


def test_dropout_at_the_ends():
    x = torch.tensor([1.0, math.nan, 3.0])
    kept, mask = draw(aten.native_dropout.default, x, 1.0, True)
    assert not mask.any() and kept[0] == 0 and kept[1].isnan()
    kept, mask = draw(aten.native_dropout.default, x, 0.0, True)
    assert mask.all() and kept[2] == 3
    harness.check(aten.native_dropout.default, x, 0.5, False)
    harness.check(
        aten.native_dropout_backward.default, torch.ones(3), torch.tensor([True, False, True]), 2.0
    )


def test_bernoulli_of_tensors():
    p = torch.tensor([0.0, 1.0, 0.3]).repeat(N, 1)
    x = draw(aten.bernoulli.default, p)
    assert x[:, 0].sum() == 0 and x[:, 1].all()
    moments(x[:, 2], 0.3, math.sqrt(0.21))
    y = draw(
        aten.bernoulli.Tensor, torch.empty(N, 3, dtype=torch.int64), torch.tensor([0.0, 1.0, 0.3])
    )
    assert y.dtype == torch.int64 and y[:, 1].all() and not y[:, 0].any()


def test_multinomial_with_replacement():
    p = torch.tensor([[1.0, 0.0, 3.0, 0.0], [0.0, 5.0, 5.0, 0.0]])
    x = draw(aten.multinomial.default, p, N, True)
    assert x.dtype == torch.int64 and x.shape == (2, N)
    assert abs((x[0] == 2).double().mean() - 0.75) < 0.02 and set(x[0].tolist()) == {0, 2}
    assert abs((x[1] == 2).double().mean() - 0.5) < 0.02 and set(x[1].tolist()) == {1, 2}


def test_multinomial_without_replacement():
    p = torch.tensor([1.0, 0.0, 3.0, 4.0]).repeat(4000, 1)
    x = draw(aten.multinomial.default, p, 3)
    assert torch.equal(x.sort(1).values, torch.tensor([0, 2, 3]).expand(4000, 3))
    assert abs((x[:, 0] == 3).double().mean() - 0.5) < 0.05
    assert draw(aten.multinomial.default, p[0], 1).item() in (0, 2, 3)


def test_rrelu():
    x = torch.cat([torch.ones(N), -torch.ones(N)])
    out, noise = draw(
        aten.rrelu_with_noise_functional.default, x, torch.zeros(2 * N), 0.1, 0.3, True
    )
    assert torch.equal(out[:N], x[:N]) and bool((noise[:N] == 1).all())
    moments(-out[N:], 0.2, 0.2 / math.sqrt(12))
    assert torch.allclose(noise[N:], -out[N:])
    harness.check(aten.rrelu_with_noise_functional.default, x, torch.zeros(2 * N), 0.1, 0.3, False)


# ---- rejection -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alpha,dtype",
    [(a, torch.float32) for a in (0.1, 0.7, 1.0, 200.0)] + [(4.0, t) for t in FLOATS],
    ids=str,
)
def test_gamma(alpha, dtype):
    x = draw(aten._standard_gamma.default, torch.full((N,), alpha, dtype=dtype))
    assert x.min() > 0
    moments(x, alpha, math.sqrt(alpha), 0.02 * (alpha + 1) if dtype.itemsize == 2 else 0.0)


@pytest.mark.parametrize("rate", [0.0, 0.5, 9.0, 12.0, 1000.0])
def test_poisson(rate):
    x = draw(aten.poisson.default, torch.full((N,), rate))
    moments(x, rate, math.sqrt(rate))
    assert torch.equal(x, x.round())


@pytest.mark.parametrize(
    "n,p", [(0, 0.5), (10, 0.0), (10, 1.0), (10, 0.3), (100, 0.7), (5000, 0.25), (3, 0.9)]
)
def test_binomial(n, p):
    x = draw(aten.binomial.default, torch.full((N,), float(n)), torch.full((N,), p))
    moments(x, n * p, math.sqrt(n * p * (1 - p)))
    assert x.min() >= 0 and x.max() <= n and torch.equal(x, x.round())


def test_dirichlet():
    alpha = torch.tensor([0.5, 2.0, 7.5])
    x = draw(aten._sample_dirichlet.default, alpha.expand(N, 3))
    assert torch.allclose(x.sum(1), torch.ones(N))
    for i, a in enumerate(alpha.tolist()):
        moments(x[:, i], a / 10, math.sqrt(a * (10 - a) / (100 * 11)))


def test_gamma_grad():
    alpha = torch.tensor([0.1, 0.5, 1.0, 3.0, 20.0, 150.0, 2.0, 8.0], dtype=torch.float64)
    x = torch.tensor([0.01, 1.0, 2.0, 0.3, 25.0, 140.0, 9.0, 8.0], dtype=torch.float64)
    harness.check(aten._standard_gamma_grad.default, alpha, x, rtol=2e-3)
    harness.check(aten._standard_gamma_grad.default, alpha.float(), x.float(), rtol=2e-3)


def test_empty():
    for op, args in (
        (aten.uniform.default, ()),
        (aten.normal_functional.default, ()),
        (aten._standard_gamma.default, ()),
        (aten.poisson.default, ()),
    ):
        text, inputs, metas, _ = harness.build(op, (torch.empty(0, 3), *args), {})
        assert harness.run(text, inputs, metas)[0].shape == (0, 3)


def test_randint_like_takes_its_bound_from_a_tensor():
    x = torch.zeros(1000, device="tpu")
    generator = torch.Generator("tpu").manual_seed(3)
    for options in ({}, {"generator": generator}):
        for bound in (torch.tensor(5), torch.tensor(5, device="tpu")):
            drawn = torch.randint_like(x, bound, **options)
            assert drawn.dtype == x.dtype and set(drawn.tolist()) == {0, 1, 2, 3, 4}
