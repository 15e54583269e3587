"""Operators whose result has a size that is data: values beside the CPU's, whatever is selected,
and how many programs and reads that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchtpu_core

T = torch
DTYPES = (
    T.bool, T.uint8, T.int8, T.int16, T.int32, T.int64, T.uint16,
    T.float16, T.bfloat16, T.float32, T.float64, T.complex64,
)  # fmt: skip

_generator = T.Generator().manual_seed(0)


def made(shape: tuple[int, ...], dtype: T.dtype = T.float32) -> T.Tensor:
    """Small whole numbers: zeros and repeated values among them."""
    return T.randint(-2, 3, shape, generator=_generator).abs_().to(dtype)


def same(fn: Callable[..., Any], *args: T.Tensor, strides: bool = True) -> Any:
    """`fn` on the device beside the CPU: equal, with equal strides; the device's results."""
    want = pytree.tree_leaves(fn(*args))
    own = pytree.tree_leaves(fn(*(a.to("tpu") for a in args)))
    assert len(own) == len(want)
    for x, y in zip(own, want):
        assert x.device.type == "tpu" and x.dtype == y.dtype
        assert x.shape == y.shape
        assert not strides or x.numel() == 0 or x.stride() == y.stride()
        T.testing.assert_close(x.cpu(), y, rtol=0, atol=0, equal_nan=True)
        if not y.is_complex() and y.dtype != T.uint16:  # a program that reads the result
            T.testing.assert_close((x == x).cpu(), y == y, rtol=0, atol=0)
    return own


SHAPES = ((), (0,), (1,), (7,), (4, 5), (0, 3), (2, 3, 4))

SELECTIONS: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x, m: T.nonzero(x),
    "as_tuple": lambda x, m: T.nonzero(x, as_tuple=True),
    "argwhere": lambda x, m: T.argwhere(m),
    "masked_select": lambda x, m: T.masked_select(x, m),
    "index": lambda x, m: x[m],
    "static": lambda x, m: T.nonzero_static(x, size=5),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selections_equal_the_cpus(name: str, shape: tuple[int, ...]):
    fn = SELECTIONS[name]
    x = made(shape)
    for mask in (x > 0, T.zeros(shape, dtype=T.bool), T.ones(shape, dtype=T.bool)):
        # The CPU's nonzero_static does not keep to the strides of its own meta kernel.
        same(fn, x, mask, strides=name != "static")
        same(fn, mask, mask, strides=name != "static")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_selected(dtype: T.dtype):
    x, mask = made((6, 5), dtype), made((6, 5)) > 0
    for name, fn in SELECTIONS.items():
        if dtype != T.uint16 or name == "index":  # the CPU has no more of it
            same(fn, x, mask, strides=name != "static")


def test_masks_among_other_indices_and_views():
    x, rows, last = made((4, 5, 6)), made((4, 5)) > 0, made((6,)) > 0
    same(lambda x, m: x[m], x, rows)
    same(lambda x, m: x[:, :, m], x, last)
    same(lambda x, m: x[:, m], x, made((5,)) > 0)
    same(lambda x, m: x[1, m, 2:], x, made((5,)) > 0)
    same(lambda x, m: x[..., m, None], x, last)
    same(lambda x, m: x[m, T.zeros((), dtype=T.long, device=x.device)], x, made((4,)) > 0)
    same(lambda x, m: x.mT[:, m], x, last)
    same(lambda x, m: T.masked_select(x.mT, m[:, None]), x, last)
    same(lambda x, m: T.masked_select(m, x > 0), x, last)
    same(lambda x: x[x.flatten()[0] > -9], x)
    assert T.equal(x.to("tpu")[rows].cpu(), x[rows])  # a mask on the CPU
    with pytest.raises(IndexError, match="mask"):
        x.to("tpu")[T.ones(3, dtype=T.bool, device="tpu")]
    with pytest.raises(RuntimeError, match="BoolTensor"):
        T.masked_select(x.to("tpu"), T.ones(6, device="tpu"))
    with pytest.warns(UserWarning, match="uint8"):
        own = x.to("tpu")[rows.to(T.uint8).to("tpu")]
    assert T.equal(own.cpu(), x[rows])


def test_a_selected_tensor_is_one_like_any_other():
    x = made((40, 3))
    mask = x[:, 0] > 0

    def use(x: T.Tensor, mask: T.Tensor) -> Any:
        y = x[mask]
        z = y.clone()
        z += 1
        z[0] = 5
        flat = y.view(-1)
        flat.resize_(5)
        return y, z, y.mT.contiguous(), flat, y[1:], y.sum(0), y.view(T.int32), y.repeat(2, 1)

    same(use, x, mask)
    y = x.to("tpu")[mask.to("tpu")]
    assert y.untyped_storage().nbytes() == int(mask.sum()) * 3 * 4
    out = T.empty(0, dtype=T.long, device="tpu")
    T.nonzero(mask.to("tpu"), out=out)
    assert T.equal(out.cpu(), T.nonzero(mask))


UNIQUE: dict[str, Callable[..., Any]] = {
    "unique": lambda x: T.unique(x),
    "unsorted": lambda x: T._unique(x, False, True),
    "inverse": lambda x: T.unique(x, return_inverse=True),
    "counts": lambda x: T.unique(x, return_counts=True),
    "both": lambda x: T.unique(x, return_inverse=True, return_counts=True),
    "consecutive": lambda x: T.unique_consecutive(x),
    "consecutive_both": lambda x: T.unique_consecutive(x, return_inverse=True, return_counts=True),
}
ROWS: dict[str, Callable[..., Any]] = {
    "rows": lambda x: T.unique(x, dim=0, return_inverse=True, return_counts=True),
    "columns": lambda x: T.unique(x, dim=-1, return_inverse=True, return_counts=True),
    "consecutive": lambda x: T.unique_consecutive(x, dim=0, return_counts=True),
    "consecutive_columns": lambda x: T.unique_consecutive(x, dim=1, return_inverse=True),
}


@pytest.mark.parametrize("name", UNIQUE)
def test_unique(name: str):
    for shape in ((), (0,), (1,), (30,), (4, 9)):
        same(UNIQUE[name], made(shape))
    for dtype in DTYPES:
        if not dtype.is_complex:
            same(UNIQUE[name], made((30,), dtype))
    same(UNIQUE[name], T.tensor([2.0, float("nan"), -1, float("nan"), float("inf"), -1]))


@pytest.mark.parametrize("name", ROWS)
def test_unique_rows(name: str):
    fn = ROWS[name]
    for shape in ((5, 3), (40, 2), (1, 1), (2, 3, 2), (6, 20)):
        same(fn, made(shape))
    for dtype in (T.bool, T.int8, T.int64, T.bfloat16, T.float64):
        same(fn, made((20, 2), dtype))


def test_repeats_and_bins():
    repeats = made((20,), T.int64)
    same(lambda r: T.repeat_interleave(r), repeats)
    same(lambda r: T.repeat_interleave(r), repeats.int())
    same(lambda r: T.repeat_interleave(r, output_size=int(r.sum())), repeats)
    same(lambda r: T.repeat_interleave(r * 0), repeats)
    same(lambda r: T.repeat_interleave(r), repeats[:0])
    same(lambda x, r: x.repeat_interleave(r, dim=1), made((3, 20)), repeats)
    with pytest.raises(RuntimeError, match="can not be negative"):
        T.repeat_interleave(T.tensor([1, -1], device="tpu"))
    for dtype in (T.int64, T.uint8, T.int32):
        same(lambda x: (T.bincount(x), T.bincount(x, minlength=9)), made((20,), dtype))
    for dtype in (T.float32, T.float64, T.int32):
        same(T.bincount, made((20,), T.int64), made((20,), dtype))
    same(T.bincount, made((0,), T.int64))
    with pytest.raises(RuntimeError, match="non-negative"):
        T.bincount(T.tensor([1, -1], device="tpu"))


def test_gradients():
    x, mask = T.randn(5, 4, generator=_generator), made((5, 4)) > 0

    def grads(x: T.Tensor, mask: T.Tensor) -> Any:
        x = x.requires_grad_()
        a = T.masked_select(x, mask).square().sum() + (x[mask] ** 3).sum()
        b = (x[mask[:, 0]] ** 2).sum() + (x[:, mask[0]] ** 2).sum()
        return T.autograd.grad(a, x, retain_graph=True)[0], T.autograd.grad(b, x)[0]

    want = grads(x.clone(), mask)
    for own, y in zip(grads(x.to("tpu"), mask.to("tpu")), want):
        T.testing.assert_close(own.cpu(), y)


def _programs(before: dict[str, Any]) -> int:
    now = torchtpu_core.stats()
    return sum(now[k] - before[k] for k in ("programs_compiled", "programs_loaded"))


@pytest.mark.parametrize("name", ("nonzero", "masked_select", "index", "unique"))
def test_any_number_of_selected_elements_is_one_program(name: str):
    fn = (SELECTIONS | {"unique": lambda x, m: T.unique(x * m)})[name]
    x = T.arange(211.0)  # a size of its own: nothing is known of it yet
    given = x.to("tpu")
    masks = [(x < n).to("tpu") for n in range(0, 200, 2)]
    products = [given * m for m in masks]  # not part of what is counted
    before = torchtpu_core.stats()
    results = [
        fn(m if name == "nonzero" else given, m) if name != "unique" else T.unique(p)
        for m, p in zip(masks, products)
    ]
    assert _programs(before) <= 1
    now = torchtpu_core.stats()
    assert now["bytes_device_to_host"] - before["bytes_device_to_host"] == 8 * len(masks)
    assert now["bytes_host_to_device"] == before["bytes_host_to_device"]
    want = [fn(m.cpu() if name == "nonzero" else x, m.cpu()) for m in masks]
    assert all(T.equal(r.cpu(), w) for r, w in zip(results, want))


def test_a_large_buffer_is_cut_to_what_is_selected():
    x = T.arange(1 << 20, dtype=T.float32, device="tpu")
    T.masked_select(x, x < 9)  # programs and caches
    before = torch.tpu.memory_allocated()
    kept = [T.masked_select(x, x < n) for n in range(500, 510)]
    assert torch.tpu.memory_allocated() - before < 100_000
    programs = torchtpu_core.stats()
    kept += [T.masked_select(x, x < n) for n in range(300, 400)]
    assert _programs(programs) == 0
    assert [t.numel() for t in kept[:2]] == [500, 501]
    assert T.equal(kept[3].cpu(), T.arange(503, dtype=T.float32))
    many = T.nonzero(x.view(1024, 1024) < 3000)
    assert many.stride() == T.nonzero(x.view(1024, 1024).cpu() < 3000).stride()
    assert T.equal(many.cpu(), T.nonzero(x.view(1024, 1024).cpu() < 3000))


def test_large_sorts_are_the_same():
    x = T.randint(-50, 50, (5000,), generator=_generator)
    same(lambda x: T.unique(x, return_inverse=True, return_counts=True), x)


def test_what_has_no_bound_in_proportion_is_the_hosts():
    x = T.zeros(1, dtype=T.bool, device="tpu").expand(1 << 20, 1, 1)
    mask = x.expand(1 << 20, 8, 8)  # 1.6 GB of places, of which there are none
    before = torchtpu_core.stats()["bytes_host_to_device"]
    assert T.nonzero(mask).shape == (0, 3)
    assert torchtpu_core.stats()["bytes_host_to_device"] == before  # nothing to copy
