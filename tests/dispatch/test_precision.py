"""Precision modes of eager products, and a TPU's numerics emulated on XLA's CPU plugin."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch.nn import functional as F

import torchtpu_core
from tests.common.programs import built_texts
from torchtpu_core import flags, precision

MODES = ("default", "high", "highest")


@pytest.fixture(autouse=True)
def _as_it_was():
    before = flags.get(flags.PRECISION | flags.EMULATE)
    yield
    torch.set_float32_matmul_precision("highest")
    assert flags.put(flags.PRECISION | flags.EMULATE, before) & flags.PRECISION == before


@pytest.fixture
def emulated():
    with torch.tpu.emulate_precision():
        yield


@pytest.fixture
def texts(monkeypatch):
    """The text of every program built in the test."""
    return built_texts(monkeypatch)


def mode_in_force():
    return precision.MODES[flags.get(flags.PRECISION)]


def of_mode(mode, fn, *args):
    with torch.tpu.precision(mode):
        return fn(*args)


# ---- what the setting is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "mode"), [("medium", "default"), ("high", "high"), ("highest", "highest")]
)
def test_the_setting_of_torch(setting, mode):
    torch.set_float32_matmul_precision(precision=setting)
    assert torch.get_float32_matmul_precision() == setting
    assert mode_in_force() == mode


def test_a_setting_that_torch_refuses_changes_nothing():
    torch.set_float32_matmul_precision("high")
    with pytest.warns(UserWarning, match="low"):
        torch.set_float32_matmul_precision("low")
    assert torch.get_float32_matmul_precision() == "high"
    assert mode_in_force() == "high"


def test_regions_nest_and_end_with_exceptions():
    region = torch.tpu.precision("high")
    with region:
        assert mode_in_force() == "high"
        with pytest.raises(KeyError), torch.tpu.precision("default"):
            assert mode_in_force() == "default"
            with region:
                assert mode_in_force() == "high"
            assert mode_in_force() == "default"
            raise KeyError
        torch.set_float32_matmul_precision("medium")
        assert mode_in_force() == "high"  # the setting counts outside of regions
    assert mode_in_force() == "default"


def test_decorator():
    @torch.tpu.precision("high")
    def within(x, *, y):
        """Doc."""
        return x, y, mode_in_force()

    assert within(1, y=2) == (1, 2, "high")
    assert (within.__name__, within.__doc__) == ("within", "Doc.")
    assert mode_in_force() == "highest"


def test_what_makes_no_sense():
    with pytest.raises(ValueError, match=r"unknown mode 'medium'.*'default', 'high', 'highest'"):
        torch.tpu.precision("medium")

    def generator():
        yield

    async def coroutine():
        pass

    for fn in (generator, coroutine, torch.nn.Linear):
        with pytest.raises(TypeError, match="inside it"):
            torch.tpu.precision("high")(fn)


def test_regions_of_threads_overlap():
    """The process owns the mode: the region entered last counts, in whichever order they end."""
    entered, leave = threading.Event(), threading.Event()
    region = torch.tpu.precision("high")

    def other():
        with torch.tpu.precision("default"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with region:
        thread.start()
        assert entered.wait(10)
        assert mode_in_force() == "default"
    assert mode_in_force() == "default"
    leave.set()
    thread.join()
    assert mode_in_force() == "highest"


def test_emulation_as_a_function_and_as_a_context_manager():
    torch.tpu.emulate_precision(True)
    assert flags.get(flags.EMULATE)
    with torch.tpu.emulate_precision(False):
        assert not flags.get(flags.EMULATE)
    assert flags.get(flags.EMULATE)
    torch.tpu.emulate_precision(False)
    assert not flags.get(flags.EMULATE)


def test_a_mode_met_before_is_not_built_again():
    x = torch.randn(5, 7, device="tpu")
    for mode in MODES:
        of_mode(mode, torch.mm, x, x.T)
    before = torchtpu_core.stats()
    for mode in MODES:
        of_mode(mode, torch.mm, x, x.T)
    after = torchtpu_core.stats()
    for key in ("programs_compiled", "programs_loaded"):
        assert after[key] == before[key]


# ---- what programs say ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_dots_and_convolutions_carry_the_mode(texts, mode):
    x, w = torch.randn(3, 2, 19, device="tpu"), torch.randn(4, 2, 3, device="tpu")
    with torch.tpu.precision(mode):
        x[0].T @ x[1]
        F.conv1d(x, w)
    marks = f"#stablehlo<precision {mode.upper()}>, #stablehlo<precision {mode.upper()}>"
    products = [t for t in texts if "dot_general" in t or "stablehlo.convolution" in t]
    assert len(products) == 2
    assert all(f"precision_config = [{marks}]" in t for t in products)
    assert not any("reduce_precision" in t for t in products)  # f32, unless it is emulated


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32])
def test_other_types_have_no_modes(texts, emulated, dtype):
    x = torch.ones(3, 23, device="tpu", dtype=dtype)
    with torch.tpu.precision("high"):
        torch.einsum("ik,jk->ij", x, x)
    (text,) = (t for t in texts if "dot_general" in t)
    own = "DEFAULT" if dtype == torch.bfloat16 else "HIGHEST"
    assert f"precision {own}" in text
    assert "reduce_precision" not in text


# ---- a TPU's numerics ----------------------------------------------------------------------------

# The relative error of a sum of products, over the norm of the result: the pieces left out are
# below 2^-8 (default), 2^-16 (high) and 2^-24 (highest, where f32's sums leave more).
BANDS = {"default": (-12, -7), "high": (-22, -15), "highest": (-27, -19)}


def error(actual, expected):
    """log2 of the relative error over all of (a tuple of) results."""
    actual, expected = (x if isinstance(x, (tuple, list)) else (x,) for x in (actual, expected))
    actual, expected = (
        torch.cat([t.cpu().double().flatten() for t in x]) for x in (actual, expected)
    )
    return math.log2(float((actual - expected).norm() / expected.norm()))


def gradients(fn):
    def run(*args):
        args = [a.detach().requires_grad_() for a in args]
        out = fn(*args)
        return torch.autograd.grad(out, args, torch.ones_like(out) + out.detach())

    return run


def lstm(x, w, r):
    weights = [w, r, w[:, 0].contiguous(), r[:, 0].contiguous()]
    h = x.new_zeros(1, x.shape[1], r.shape[1])
    return torch.lstm(x, (h, h), weights, True, 1, 0.0, False, False, False)[0]


PRODUCTS = {
    "mm": (torch.mm, (32, 64), (64, 24)),
    "bmm": (torch.bmm, (3, 16, 48), (3, 48, 16)),
    "baddbmm": (torch.baddbmm, (3, 16, 16), (3, 16, 48), (3, 48, 16)),
    "linear": (F.linear, (5, 7, 48), (16, 48), (16,)),
    "mv": (torch.mv, (32, 48), (48,)),
    "einsum": (lambda x, y: torch.einsum("bik,kj->jbi", x, y), (3, 8, 32), (32, 8)),
    "bilinear": (F.bilinear, (6, 12), (6, 12), (4, 12, 12)),
    "conv1d": (F.conv1d, (2, 8, 20), (6, 8, 3)),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (2, 8, 9, 9), (6, 8, 3, 3)),
    "grouped conv": (lambda x, w: F.conv2d(x, w, groups=2), (2, 8, 9, 9), (6, 4, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 8, 6, 6), (8, 6, 3, 3)),
    "attention": (F.scaled_dot_product_attention, (2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16)),
    "lstm": (lstm, (4, 3, 16), (32, 16), (32, 8)),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_errors_of_the_modes(emulated, name, backward):
    fn, *shapes = PRODUCTS[name]
    fn = gradients(fn) if backward else fn
    args = [torch.randn(s) for s in shapes]
    expected = fn(*(a.double() for a in args))
    for mode, (low, high) in BANDS.items():
        actual = of_mode(mode, fn, *(a.to("tpu") for a in args))
        assert low <= error(actual, expected) <= high, mode


def test_default_multiplies_what_bfloat16_rounds_to(emulated):
    """Operands whose rounded products have exact sums: the result is bit for bit that of bf16."""
    a, b = (torch.randint(-200, 200, (40, 40)) * (1 + 2.0**-11) for _ in range(2))
    rounded = a.bfloat16().float() @ b.bfloat16().float()
    assert not torch.equal(rounded, a @ b)
    assert torch.equal(of_mode("default", torch.mm, a.to("tpu"), b.to("tpu")).cpu(), rounded)
    a, b = torch.randn(40, 300), torch.randn(300, 40)  # and others up to the order of summation
    rounded = a.bfloat16().double() @ b.bfloat16().double()
    actual = of_mode("default", torch.mm, a.to("tpu"), b.to("tpu"))
    bound = 300 * 2.0**-24 * (a.bfloat16().double().abs() @ b.bfloat16().double().abs())
    assert ((actual.cpu().double() - rounded).abs() <= bound).all()


def pieces(x, n):
    """The bf16 pieces of `x` in float64, by PyTorch's own conversion."""
    found = []
    for _ in range(n):
        found.append(x.bfloat16().float())
        x = x - found[-1]
    return [p.double() for p in found]


@pytest.mark.parametrize("mode", ["high", "highest"])
def test_products_of_pieces(emulated, mode):
    a, b = torch.randn(16, 32) * 3, torch.randn(32, 16)
    n = {"high": 2, "highest": 3}[mode]
    kept = [(i, j) for i in range(n) for j in range(n) if i + j < n]
    assert len(kept) == {"high": 3, "highest": 6}[mode]
    p, q = pieces(a, n), pieces(b, n)
    expected = sum(p[i] @ q[j] for i, j in kept)
    actual = of_mode(mode, torch.mm, a.to("tpu"), b.to("tpu")).cpu().double()
    bound = 40 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((actual - expected).abs() <= bound).all()


def test_complex_products(emulated):
    a, b = (torch.randn(24, 24, dtype=torch.complex64) for _ in range(2))
    expected = torch.view_as_real(a.to(torch.complex128) @ b.to(torch.complex128))
    for mode, (low, high) in BANDS.items():
        actual = torch.view_as_real(of_mode(mode, torch.mm, a.to("tpu"), b.to("tpu")).cpu())
        assert low <= error(actual, expected) <= high, mode


@pytest.mark.parametrize("mode", ["high", "highest"])
def test_infinities_nans_and_large_values(emulated, mode):
    large = torch.finfo(torch.float32).max * (1 - 2.0**-12)  # bf16 would round it to infinity
    special = [math.inf, -math.inf, math.nan, large, -large, 1e-20, 1.0, 0.0]
    x = torch.tensor(special).unsqueeze(1)
    y = torch.tensor([[1.0, 1 / 3, -2.0, 0.0, 1e-3, -math.inf, math.nan]])
    expected = x @ y
    actual = of_mode(mode, torch.mm, x.to("tpu"), y.to("tpu")).cpu()
    tolerance = {"high": 2.0**-15, "highest": 2.0**-22}[mode]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0, equal_nan=True)


def test_default_rounds_large_values_as_bfloat16_does(emulated):
    x = torch.tensor([[math.inf], [math.nan], [torch.finfo(torch.float32).max]])
    actual = of_mode("default", torch.mm, x.to("tpu"), torch.ones(1, 1, device="tpu"))
    torch.testing.assert_close(actual.cpu(), x.bfloat16().float(), equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_products(emulated, shape):
    m, k, n = shape
    for mode in MODES:
        x, y = torch.ones(m, k, device="tpu"), torch.ones(k, n, device="tpu")
        assert torch.equal(of_mode(mode, torch.mm, x, y).cpu(), torch.zeros(m, n))


def spread(n=24):
    """A matrix of condition 100, where a rough product inside of an algorithm would show."""
    q, r = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for _ in range(2))
    return (q * torch.logspace(0, -2, n, dtype=torch.float64) @ r).float()


@pytest.mark.parametrize(
    "fn",
    [
        torch.linalg.inv,
        lambda a: torch.linalg.solve(a, torch.ones_like(a)),
        lambda a: torch.linalg.cholesky(a * 0.01 + torch.eye(len(a), device=a.device)),
        torch.linalg.matrix_exp,
        torch.linalg.pinv,
        torch.linalg.svdvals,
        lambda a: torch.linalg.qr(a)[1].abs(),
        lambda a: torch.cdist(a, a + 1, compute_mode="use_mm_for_euclid_dist"),
    ],
    ids=["inv", "solve", "cholesky", "matrix_exp", "pinv", "svd", "qr", "cdist"],
)
def test_linear_algebra_keeps_its_accuracy(emulated, fn):
    a = spread()
    actual = of_mode("default", fn, a.to("tpu"))
    assert error(actual, fn(a.double())) < -14


def test_autocast_is_not_affected(emulated):
    x, w = torch.randn(8, 32, device="tpu"), torch.randn(16, 32, device="tpu")
    results = []
    for mode in MODES:
        with torch.autocast("tpu", dtype=torch.bfloat16), torch.tpu.precision(mode):
            results.append(F.linear(x, w))
    assert results[0].dtype == torch.bfloat16
    assert all(torch.equal(r, results[0]) for r in results)
    with torch.autocast("tpu", enabled=False), torch.tpu.precision("default"):
        rough = F.linear(x, w)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, F.linear(x, w))
