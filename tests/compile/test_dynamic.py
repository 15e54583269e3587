"""Open sizes: what padded programs compute beside the CPU at lengths inside and at the edges of
buckets, forward and backward, and how many programs that takes.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import torchtpu_core
from tests.compile.common import compiled_since
from tests.compile.models import GPT

T = torch

#: two buckets, the second length being the edge of the first
LENGTHS = (5, 8, 9)
BUCKETS = 2

_generator = torch.Generator().manual_seed(0)
WEIGHT = T.randn(16, 16, generator=_generator)
KERNEL1 = T.randn(5, 16, 3, generator=_generator)
KERNEL1T = T.randn(16, 5, 3, generator=_generator)
KERNEL2 = T.randn(4, 3, 3, 3, generator=_generator)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.tpu.set_shape_buckets()
    yield
    torch.tpu.set_shape_buckets()


def steps(x: T.Tensor, period: int = 16) -> T.Tensor:
    """0, 1, .. along the open dimension."""
    return T.arange(x.shape[1], device=x.device) % period


def along(x: T.Tensor, period: int = 16) -> T.Tensor:
    """The same as an index of the shape of `x`."""
    return steps(x, period)[None, :, None].expand(3, -1, 16)


def zeros(x: T.Tensor, *sizes: int) -> T.Tensor:
    return T.zeros(sizes, device=x.device)


def index(x: T.Tensor, first: int, last: int) -> T.Tensor:
    """Two indices, made without a constant."""
    return T.arange(2, device=x.device) * (last - first) + first


def _set_slices(x: T.Tensor) -> T.Tensor:
    y = x.clone()
    y[:, 1:] = 0
    y[:, -1] = 5
    y[:, : x.shape[1] // 2] += 1
    return y


# Each takes x [3, n, 16] with n open.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: (x.sum(1), x.sum(), x.sum(-1), x.sum((0, 1), keepdim=True)),
    "mean": lambda x: (x.mean(1), x.mean(), x.mean((0, 1), keepdim=True)),
    "prod": lambda x: x.prod(1),
    "var": lambda x: (x.var(1), x.std(), x.var((0, 1), correction=0), *T.var_mean(x, 1)),
    "amax": lambda x: (x.amax((0, 1)), x.amin(1, keepdim=True)),
    "max": lambda x: (*x.max(1), x.max(), *x.min(1), x.min()),
    "argmax": lambda x: (x.argmax(1), x.argmax(), x.transpose(0, 1).argmin()),
    "any": lambda x: ((x > 2).any(1), (x > -2).all(1), (x > -9).all(), T.count_nonzero(x > 0, 1)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 1))),
    "norm": lambda x: (x.norm(dim=1), T.linalg.vector_norm(x, 3), x.norm(float("-inf"), dim=1)),
    "softmax": lambda x: (x.softmax(1), x.softmax(-1)),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: (F.layer_norm(x, (16,), WEIGHT[0].to(x.device)), F.rms_norm(x, (16,))),
    "layer_norm_open": lambda x: F.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda x: F.batch_norm(x.mT.contiguous(), None, None, training=True),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 4),
    "reduce_bf16": lambda x: x.bfloat16().mean(1),
    "reduce_int": lambda x: ((x * 9).int().sum(1), (x * 9).int().amax(1), (x > 0).sum()),
}

PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x: x @ WEIGHT.to(x.device),
    "contracted": lambda x: x.transpose(1, 2) @ x,
    "all_pairs": lambda x: x @ x.transpose(1, 2),
    "linear": lambda x: F.linear(x, WEIGHT.to(x.device), WEIGHT[0].to(x.device)),
    "einsum": lambda x: (T.einsum("bnd,bmd->bnm", x, x), T.einsum("bnd,cnd->bc", x, x)),
    "vectors": lambda x: (x[0] @ WEIGHT[0].to(x.device), x[0, :, 0] @ x[0, :, 1]),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "causal": lambda x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], is_causal=True
    ),
    "conv1d": lambda x: F.conv1d(x.transpose(1, 2), KERNEL1.to(x.device), padding=1),
    "conv1d_strided": lambda x: F.conv1d(
        x.transpose(1, 2), KERNEL1.to(x.device), padding=2, stride=2, dilation=2
    ),
    "conv2d": lambda x: F.conv2d(x[None], KERNEL2.to(x.device), WEIGHT[0, :4].to(x.device)),
    "conv_transpose": lambda x: F.conv_transpose1d(
        x.transpose(1, 2), KERNEL1T.to(x.device), stride=2
    ),
    "max_pool1d": lambda x: F.max_pool2d(x.mT[:, :, None], (1, 2)),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2, padding=1),
    "max_pool2d_index": lambda x: F.max_pool2d(x.transpose(1, 2)[None], 2, 1, return_indices=True),
    "avg_pool": lambda x: (
        F.avg_pool2d(x[None], 2, padding=1),
        F.avg_pool1d((x * 1).mT.contiguous(), 2),
    ),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x[None], 1),
}

ORDERS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: (*x.sort(1), *x.sort(1, descending=True)),
    "sort_nan": lambda x: x.masked_fill(x > 1, float("nan")).sort(1).indices,
    "argsort": lambda x: (
        (x * 2).int().argsort(dim=1, stable=True),
        (x > 0).sort(dim=1, stable=True)[1],
    ),
    "topk": lambda x: (*x.topk(2, dim=1), *x.topk(2, dim=1, largest=False)),
    "topk_all": lambda x: (*x.topk(5, dim=1), *x.topk(5, dim=1, largest=False)),
    "cumsum": lambda x: (x.cumsum(1), x.detach().cumprod(1), x.logcumsumexp(1)),
    "cummax": lambda x: (*x.cummax(1), *x.cummin(1)),
    "flat_cumsum": lambda x: x.transpose(0, 1).flatten().cumsum(0),
    "median": lambda x: (*x.median(1), x.median(), (x * 3).int().median(1)[0]),
    "median_nan": lambda x: (
        (y := x.masked_fill(x > 1, float("nan"))).median(1)[0].nan_to_num(9),
        y.median(1)[1],
        *y.nanmedian(1),
        y.nanmedian(),
        y.median().isnan(),
    ),
    "kthvalue": lambda x: (*x.kthvalue(3, 1), (x * 3).int().kthvalue(2, 1, True)[0]),
    "mode": lambda x: (*(x * 2).round().mode(1), (x * 2).int().mode(1, True)[0]),
    "searchsorted": lambda x: (
        T.searchsorted(x[0, :, 0].sort()[0], x),
        T.searchsorted(x.mT.contiguous().sort(-1)[0], x.mT.contiguous(), right=True),
        T.searchsorted((x[0, :, 0] * 2).int().sort()[0], (x * 2).int(), right=True),
        T.bucketize(x, x[0, :, 0].sort()[0]),
        T.bucketize(x, WEIGHT[0].to(x.device).sort()[0], out_int32=True),
    ),
    "histc": lambda x: x.detach().histc(8, -1, 1),
    "tril": lambda x: ((x @ x.mT).tril(), (x @ x.mT).triu(1), (x @ x.mT).triu(x.shape[1] // 2)),
}

MOVEMENT: dict[str, Callable[..., Any]] = {
    "cat": lambda x: (T.cat([x, x * 2], 1), T.cat([x[:, :2], x], 1), T.cat([x, x[:, :2]], 1)),
    "stack": lambda x: T.stack([x, -x], 1),
    "flip": lambda x: (x.flip(1), x.flip(0, 1)),
    "roll": lambda x: (x.roll(3, 1), x.roll((-2, 1), (1, 2)), x.roll(5)),
    "pad": lambda x: (F.pad(x, (0, 0, 2, 3), value=2.0), F.pad(x, (0, 1, 1, -1))),
    "pad_to": lambda x: F.pad(x, (0, 0, 0, 20 - x.shape[1])),
    "pad_front": lambda x: F.pad(x, (0, 0, 20 - x.shape[1], 0)),
    "pad_replicate": lambda x: F.pad(x.transpose(1, 2), (1, 1), mode="replicate").detach(),
    "arange": lambda x: x + T.arange(x.shape[1] - 1, -1, -1, device=x.device)[None, :, None],
    "arange_float": lambda x: x * T.arange(0.0, x.shape[1] * 0.5, 0.5, device=x.device)[:, None],
    "factories": lambda x: (
        x.new_ones(x.shape[1] + 1),
        T.full((x.shape[1], 2), 1.5, device=x.device),
        T.zeros_like(x),
        T.eye(x.shape[1], device=x.device),
    ),
    "split": lambda x: (*(x * 1).split([x.shape[1] - 1, 1], 1), *(x * 1).chunk(2, 2)),
    "expand": lambda x: (x * 1)[:, :, None].expand(-1, -1, 4, -1) + 0,
    "repeat": lambda x: (x.repeat(1, 2, 1), x.repeat_interleave(2, 1)),
    "merge": lambda x: (
        x.reshape(-1, 16).sum(0),
        (x * 1).reshape(-1),
        (x * 1).transpose(0, 1).reshape(-1, 16),
    ),
    "heads": lambda x: (x * 1).view(3, -1, 4, 4).transpose(1, 2).reshape(12, -1, 4).softmax(1),
    "unmerge": lambda x: (x.reshape(-1, 16) * 2).view(x.shape[1], 3, 16).cumsum(0),
    "slice": lambda x: ((x * 1)[:, 1:] + 0, (x * 1)[:, -2:] + 0, (x * 1)[:, ::2] + 0),
    "slice_open": lambda x: (x[:, x.shape[1] // 2 :] + 1, x[:, : x.shape[1] // 2] * 2),
    "unfold": lambda x: ((x * 1).unfold(1, 3, 2).sum(-1), (x * 1).unfold(2, 4, 4).exp().sum(2)),
    "im2col": lambda x: F.unfold(x[None], (2, 3), padding=1, stride=(2, 1)),
    "fft": lambda x: (T.fft.rfft(x, dim=-1).abs(), T.fft.fft(x, dim=0).real, T.fft.irfft(x, dim=2)),
    "select": lambda x: (x[:, -1] * 1, x[:, -3] * 1, x[:, 1] * 1),
    "unbind": lambda x: sum(x.unbind(2)),
    "where": lambda x: (T.where(x > 0, x, 0.0), x.masked_fill(x > 0, -1)),
    "sizes": lambda x: x * x.shape[1] + x.shape[1] / 3 + x.shape[1] ** 0.5,
    "in_place": lambda x: x.clone().add_(1).mul_(2),
    "set_slices": _set_slices,
    "dtypes": lambda x: (x.bfloat16().float(), ~(x > 0), x.to(T.int8)),
    "upsample": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2),
}

INDEXING: dict[str, Callable[..., Any]] = {
    "index_select": lambda x: x.index_select(1, index(x, 2, 0)),
    "index": lambda x: (x[:, index(x, -1, 0)], WEIGHT.to(x.device)[steps(x)] * x),
    "index_put": lambda x: x.index_put((index(x, 0, 1), index(x, -1, 0)), zeros(x, 2, 16)),
    "accumulate": lambda x: zeros(x, 4, 16).index_put((steps(x, 4),), x[0], accumulate=True),
    "put_rows": lambda x: (zeros(x, 20, 16) + 1).index_put((steps(x, 20),), x[0]),
    "mask_put": lambda x: x.clone().index_put_((x > 0,), zeros(x)),
    "mask_put_values": lambda x: x.index_put((x > -9,), (x * 2).detach().flatten()),
    "masked_scatter": lambda x: (
        x.masked_scatter(x > 0, x.detach().flip(1)),
        x.detach().masked_scatter(x > 0, (x * 2)[:, :, :8].repeat(1, 2, 2)),
    ),
    "index_reduce": lambda x: zeros(x, 4, 16).index_reduce(
        0, steps(x, 4), x[1].detach(), "amax", include_self=False
    ),
    "index_add": lambda x: (
        zeros(x, 4, 16).index_add(0, steps(x, 4), x[1]),
        zeros(x, 20, 16).index_copy(0, steps(x, 20), x[1]),
        (x * 1).index_fill(1, steps(x, 2), 3.0),
    ),
    "gather": lambda x: (x.gather(1, along(x).flip(1)), x.gather(2, along(x)[:, :, :4])),
    "scatter": lambda x: (
        (zeros(x, 3, 16, 16) + 1).scatter(1, along(x), x),
        zeros(x, 3, 4, 16).scatter_add(1, along(x, 4), x),
        zeros(x, 3, 4, 16).scatter_reduce(1, along(x, 4), x.detach(), "amax"),
    ),
    "scatter_reduce": lambda x: tuple(
        (zeros(x, 3, 4, 16) + 2).scatter_reduce(
            1, along(x, 4), x.detach(), how, include_self=how == "sum"
        )
        for how in ("sum", "prod", "mean", "amin")
    ),
    "embedding": lambda x: F.embedding(steps(x), WEIGHT.to(x.device)) * x,
    "cross_entropy": lambda x: F.cross_entropy(
        x.flatten(0, 1), T.arange(3 * x.shape[1], device=x.device) % 16
    ),
    "cross_entropy_ignored": lambda x: F.cross_entropy(
        x.transpose(1, 2), along(x)[:, :, 0], ignore_index=3, label_smoothing=0.1
    ),
    "losses": lambda x: (
        F.mse_loss(x, x.detach() * 2 + 1),
        F.smooth_l1_loss(x, x.detach() * 2 + 1),
        F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean"),
    ),
}

CASES = {**REDUCTIONS, **PRODUCTS, **ORDERS, **MOVEMENT, **INDEXING}


def tensors(x: Any) -> list[T.Tensor]:
    return [t for t in pytree.tree_leaves(x) if isinstance(t, T.Tensor)]


def assert_like_cpu(
    fn: Callable[..., Any], compiled: Callable[..., Any], x: T.Tensor, open_dims: tuple[int, ...]
) -> tuple[int, int]:
    """Compares results and gradients; (programs of the forward call, of the backward call).

    Tolerance: float32 sums in another order, values of order 10.
    """
    given = x.clone().requires_grad_()
    device = x.to("tpu").requires_grad_()
    for d in open_dims:
        torch._dynamo.mark_dynamic(device, d)
    expected = tensors(fn(given))
    before = torchtpu_core.stats()
    actual = tensors(compiled(device))
    forward = compiled_since(before)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert a.shape == e.shape and a.dtype == e.dtype
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if e.dtype == T.bfloat16 else {}
        torch.testing.assert_close(
            a.detach().cpu(), e.detach(), **(tolerance or {"rtol": 1e-4, "atol": 1e-4})
        )
    pairs = [(a, e) for a, e in zip(actual, expected) if e.requires_grad]
    if not pairs:
        return forward, 0
    weights = [(e.detach() * (i + 1)).cos() for i, (_, e) in enumerate(pairs)]
    (wanted,) = T.autograd.grad([e for _, e in pairs], given, weights)
    # in the layout of the results, so that autograd has nothing to copy
    sent = [
        T.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(w).to("tpu")
        for (a, _), w in zip(pairs, weights)
    ]
    before = torchtpu_core.stats()
    (got,) = T.autograd.grad([a for a, _ in pairs], device, sent)
    backward = compiled_since(before)
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-3, atol=1e-4)
    return forward, backward


def has_exact_programs(record: list[warnings.WarningMessage]) -> bool:
    return any("padding its open sizes would not be exact" in str(w.message) for w in record)


@pytest.mark.parametrize("name", CASES)
def test_like_cpu_with_a_program_a_bucket(name):
    fn = CASES[name]
    compiled = torch.compile(fn, fullgraph=True)
    forward = backward = 0
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for n in LENGTHS:
            counts = assert_like_cpu(fn, compiled, T.randn(3, n, 16), (1,))
            forward, backward = forward + counts[0], backward + counts[1]
    assert not has_exact_programs(record)
    assert forward <= BUCKETS and backward <= BUCKETS


@pytest.mark.filterwarnings("ignore:.*padding its open sizes would not be exact")
@pytest.mark.parametrize("way", ["buckets", "off", "specialised"])
def test_views_of_arguments(way):
    def fn(x):
        views = x[:, x.shape[1] // 2 :], x[:, ::2], x.transpose(0, 1), x[:, -1]
        return (*views, T.fft.rfft(x, dim=1).abs()) if way == "specialised" else views

    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    torch.tpu.set_shape_buckets("off" if way == "off" else None)
    try:
        for n in LENGTHS:
            x = T.randn(3, n, 16)
            device = x.to("tpu")
            got, want = compiled(device), fn(x)
            for a, e in zip(got, want):
                torch.testing.assert_close(a.cpu(), e)
            for a, e in zip(got[:4], want):
                assert a.stride() == e.stride()
                assert a.untyped_storage().data_ptr() == device.data_ptr()
    finally:
        torch.tpu.set_shape_buckets(None)


#: two open dimensions, or all of them
SEVERAL = {
    "attention": lambda x: (x @ x.mT).softmax(-1).mean((1, 2)),
    "merged": lambda x: x.reshape(-1, 16).log_softmax(0),
    "flattened": lambda x: x.flatten().cumsum(0)[-1],
    "swapped": lambda x: (x.reshape(-1, 16) * 2).view(x.shape[1], x.shape[0], 16).cumsum(1),
    "linear": lambda x: F.linear(x, WEIGHT.to(x.device), WEIGHT[0].to(x.device)).relu(),
    "cat": lambda x: T.cat([x, x], 0).sum(0),
    "loss": lambda x: F.cross_entropy(x.flatten(0, 1), (x[..., 0] > 0).long().flatten()),
    "argmax": lambda x: (x.argmax(), x.flatten(0, 1).argmax(0)),
    "conv": lambda x: F.conv1d(x.transpose(1, 2), KERNEL1.to(x.device), padding=1),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_two_open_dimensions(name):
    fn = SEVERAL[name]
    compiled = torch.compile(fn, fullgraph=True)
    counts = [
        assert_like_cpu(fn, compiled, T.randn(b, n, 16), (0, 1))
        for b, n in ((3, 6), (4, 7), (6, 5), (7, 8), (3, 8))
    ]
    assert sum(c[0] for c in counts) <= 2 and sum(c[1] for c in counts) <= 2


@pytest.mark.parametrize(
    "name", ["softmax", "var", "all_pairs", "cumsum", "merge", "gather", "cat"]
)
def test_every_size_open(name):
    fn = CASES[name]
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in (5, 7, 1):
        if n > 1 or name != "var":
            assert_like_cpu(fn, compiled, T.randn(3, n, 16), ())


# ---- which sizes share a program -----------------------------------------------------------------


def programs_of(compiled: Callable[..., Any], lengths: Any, **mark: Any) -> int:
    before = torchtpu_core.stats()
    for n in lengths:
        x = T.randn(n, 3)
        device = x.to("tpu")
        if mark:
            torch._dynamo.mark_dynamic(device, 0, **mark)
        torch.testing.assert_close(compiled(device).cpu(), x.softmax(0))
    return compiled_since(before)


def softmax(x: T.Tensor) -> T.Tensor:
    return x.softmax(0)


def test_powers_of_two():
    compiled = torch.compile(softmax, dynamic=True)
    assert programs_of(compiled, range(1, 34)) == 7  # 1, 2, 4, 8, 16, 32, 64
    assert programs_of(compiled, range(33, 0, -1)) == 0


def test_buckets_of_the_user():
    torch.tpu.set_shape_buckets([6, 20])
    assert torch.tpu.get_shape_buckets() == [6, 20]
    compiled = torch.compile(softmax, dynamic=True)
    assert programs_of(compiled, range(2, 21)) == 2
    assert programs_of(compiled, range(21, 33)) == 1  # beyond the list: powers of two


def test_buckets_off():
    torch.tpu.set_shape_buckets("off")
    compiled = torch.compile(softmax, dynamic=True)
    assert programs_of(compiled, (40, 41, 42, 41)) == 3


def test_policies_change_between_calls():
    compiled = torch.compile(softmax, dynamic=True)
    assert programs_of(compiled, (50, 51)) == 1
    torch.tpu.set_shape_buckets("off")
    assert programs_of(compiled, (50, 51)) == 2
    torch.tpu.set_shape_buckets("pow2")
    assert programs_of(compiled, (52, 53)) == 0


@pytest.mark.parametrize("wrong", [[], [0, 4], ["8"], "log", [4.0]])
def test_wrong_buckets_are_refused(wrong):
    with pytest.raises(ValueError, match="shape buckets"):
        torch.tpu.set_shape_buckets(wrong)


def test_mark_dynamic_limits_the_room():
    compiled = torch.compile(softmax)
    shapes: list[tuple[int, ...]] = []
    before = torch.tpu.memory_allocated()
    for n in (70, 99, 100):
        x = T.randn(n, 3).to("tpu")
        torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
        y = compiled(x)
        shapes.append(tuple(y.shape))
        assert torch.tpu.memory_allocated() - before < 2 * 104 * 3 * 4
        del x, y
    assert shapes == [(70, 3), (99, 3), (100, 3)]


def test_automatic_dynamic():
    compiled = torch.compile(softmax)
    assert programs_of(compiled, (9, 10, 11, 12, 13)) == 2  # 9 itself, then the bucket of 16


def test_counts_its_programs():
    from torchtpu_core.compile.bucketed import BucketedGraph

    graphs: list[BucketedGraph] = []
    original = BucketedGraph.__init__

    def spy(self: BucketedGraph, *args: Any) -> None:
        original(self, *args)
        graphs.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketedGraph, "__init__", spy)
        compiled = torch.compile(softmax, dynamic=True)
        programs_of(compiled, (5, 6, 7, 12, 30))
    assert [g.programs for g in graphs] == [3]


# ---- what is not padded --------------------------------------------------------------------------


def test_specialises_and_says_so_once():
    compiled = torch.compile(lambda x: T.fft.fft(x, dim=0).abs(), dynamic=True, fullgraph=True)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for n in (5, 6, 7):
            x = T.randn(n, 3)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), T.fft.fft(x, dim=0).abs())
    said = [str(w.message) for w in record if "padding its open sizes" in str(w.message)]
    assert len(said) == 1 and "_fft_r2c" in said[0]


def test_a_number_is_no_size():
    compiled = torch.compile(lambda x, k: x * k + k / 2, dynamic=True, fullgraph=True)
    x = T.randn(4)
    before = torchtpu_core.stats()
    for k in (3, 700, -5):
        torch.testing.assert_close(compiled(x.to("tpu"), k).cpu(), x * k + k / 2)
    assert compiled_since(before) == 1


# ---- tensors whose buffers are larger than they are ----------------------------------------------


@pytest.fixture(params=["result", "argument", "transposed"])
def padded(request) -> tuple[T.Tensor, T.Tensor]:
    """A tensor in a padded buffer, and the same on the CPU."""
    compiled = torch.compile(lambda x: (x * 2, x.transpose(0, 1) + 1), dynamic=True)
    x = T.randn(5, 6)
    device = x.to("tpu")
    twice, turned = compiled(device)
    return {
        "result": (twice, x * 2),
        "argument": (device, x),
        "transposed": (turned, x.transpose(0, 1) + 1),
    }[request.param]


READS: dict[str, Callable[[T.Tensor], T.Tensor]] = {
    "op": lambda v: v + 1,
    "clone": lambda v: v.clone(),
    "clone_op": lambda v: v.clone() * 2,
    "contiguous": lambda v: v.contiguous(),
    "slice": lambda v: v[1:, ::2],
    "flat": lambda v: v.reshape(-1),
    "bits": lambda v: v.view(T.int32),
    "item": lambda v: v[1, 2].item() + T.zeros(1),
    "cat": lambda v: T.cat([v, v]),
    "copy": lambda v: T.empty_like(v).copy_(v),
    "deepcopy": lambda v: copy.deepcopy(v),
    "add_": lambda v: v.clone().add_(1),
    "set_slice": lambda v: v.clone().index_fill_(0, T.tensor([1], device=v.device), 7.0),
    "resize": lambda v: v.clone().contiguous().resize_(20, 6)[:5],
}


@pytest.mark.parametrize("read", READS)
def test_eager_reads_padded_tensors(padded, read):
    device, cpu = padded
    assert device.stride() == cpu.stride()
    assert device.untyped_storage().nbytes() == cpu.untyped_storage().nbytes()
    wanted = READS[read](cpu)
    torch.testing.assert_close(READS[read](device).cpu()[: len(wanted)], wanted)
    torch.testing.assert_close(device.cpu(), cpu)
    assert torch.equal(device, device.clone())


def test_eager_writes_padded_tensors(padded):
    device, cpu = padded
    for v in (device, cpu):
        v.detach()[1:, 0] = 7
        v.mul_(3)
    torch.testing.assert_close(device.cpu(), cpu)


def test_padded_tensors_are_saved(padded):
    device, cpu = padded
    file = io.BytesIO()
    torch.save(device, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file).cpu(), cpu)


def test_results_feed_the_next_graph_as_they_are():
    double = torch.compile(lambda x: x * 2, dynamic=True)
    x = T.randn(5, 6)
    device = double(x.to("tpu"))
    before = torchtpu_core.stats()
    again = double(device)
    after = torchtpu_core.stats()
    assert after["device_to_host"] == before["device_to_host"]
    assert after["host_to_device"] == before["host_to_device"]
    torch.testing.assert_close(again.cpu(), x * 4)


def test_written_arguments():
    def update(x, y):
        x.add_(y.mean())
        y[:, 1:] = 0
        return x.sum()

    compiled = torch.compile(update, dynamic=True, fullgraph=True)
    for n in (5, 7, 9):
        x, y, wide = T.randn(n, 6), T.randn(n, n + 3), T.randn(n, 12)
        dx, dy, dwide = (t.to("tpu") for t in (x, y, wide))
        for a, b in ((x, dx), (x, dx), (wide[:, 3:9], dwide[:, 3:9])):
            torch.testing.assert_close(compiled(b, dy).cpu(), update(a, y), rtol=1e-4, atol=1e-4)
        for a, b in ((x, dx), (y, dy), (wide, dwide)):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-4)


# ---- random numbers ------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[T.Tensor], T.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_turned": lambda x: F.dropout(x.transpose(0, 1), 0.5),
    "bernoulli": lambda x: T.bernoulli(x.sigmoid()),
    "randint": lambda x: x + T.randint(3, 90, (x.shape[1], 16), device=x.device),
    "several": lambda x: (
        F.dropout(F.dropout(x, 0.5) + T.rand_like(x), 0.2)
        + T.randn(x.shape[1], device=x.device)[None, :, None]
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_eager(name):
    fn = DRAWS[name]
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in (5, 8, 9):
        x = T.randn(3, n, 16, device="tpu")
        results = []
        for f in (compiled, fn):
            torch.tpu.manual_seed_all(n)
            results.append((f(x), T.rand(4, device="tpu")))
        torch.testing.assert_close(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])  # as much was drawn


# ---- a model -------------------------------------------------------------------------------------


def test_decoder_trains_like_cpu():
    torch.manual_seed(0)
    cpu = GPT(layers=1, context=64)
    device = copy.deepcopy(cpu).to("tpu")

    def loss(model, ids):
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    compiled = torch.compile(lambda ids: loss(device, ids), dynamic=True, fullgraph=True)
    before = torchtpu_core.stats()
    for b, n in ((3, 10), (4, 17), (4, 9), (3, 12)):
        ids = T.randint(0, 64, (b, n))
        cpu.zero_grad()
        device.zero_grad()
        expected, actual = loss(cpu, ids), compiled(ids.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
        expected.backward()
        actual.backward(T.ones(()).to("tpu"))
        for p, q in zip(cpu.parameters(), device.parameters()):
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-5)
    assert compiled_since(before) <= 4
