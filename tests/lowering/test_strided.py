"""Any composition of view ops reads and writes what PyTorch reads and writes on CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lowering import harness
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.stablehlo import Module, TensorType, strided

_SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def _base(shape, dtype=torch.float32) -> torch.Tensor:
    n = torch.Size(shape).numel()
    if dtype == torch.bool:
        return (torch.arange(n) % 3 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(torch.arange(n) + 1.0, -torch.arange(n) - 0.5).to(dtype).reshape(shape)
    return (torch.arange(n) % 100 + 1).to(dtype).reshape(shape)


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.dtype != torch.bool:  # of a bool's byte only zero or not matters
        flat = (t.clone(memory_format=torch.contiguous_format).view(-1) for t in (x, y))
        x, y = (t.view(torch.uint8) for t in flat)
    return torch.equal(x, y)


def _geometry(view: torch.Tensor):
    return tuple(view.shape), tuple(view.stride()), view.storage_offset()


def read(base: torch.Tensor, view: torch.Tensor) -> str:
    """Asserts that reading `view` (of `base`'s storage) gives its values; returns the program."""
    module = Module()
    b = module.function("main", [TensorType(mlir(base.dtype), tuple(base.shape))], public=True)
    out = strided.read(b, b.args[0], mlir(view.dtype), *_geometry(view))
    assert (out.dtype, out.shape) == (mlir(view.dtype), tuple(view.shape))
    b.finish([out])
    (got,) = harness.run(str(module), [base], [view.to("meta")])
    assert _same_bits(got, view), f"{_geometry(view)} of {tuple(base.shape)}\n{module}"
    return str(module)


def write(base: torch.Tensor, view_of, initialised: bool = True) -> str:
    """Asserts that writing through `view_of(base)` is as on CPU; returns the program."""
    base = base.clone()
    view = view_of(base)
    value = _base(view.shape, view.dtype)
    value = ~value if value.dtype == torch.bool else -value  # differs from the base everywhere
    args = [TensorType(mlir(t.dtype), tuple(t.shape)) for t in (base, view)]
    module = Module()
    b = module.function("main", args, public=True)
    given = b.args[0] if initialised else None
    out = strided.write(b, given, mlir(base.dtype), tuple(base.shape), b.args[1], *_geometry(view))
    b.finish([out])
    (got,) = harness.run(str(module), [base, value], [base.to("meta")])
    if not initialised:
        base.zero_()
    view.copy_(value)
    assert _same_bits(got, base), f"{_geometry(view)} of {tuple(base.shape)}\n{module}"
    return str(module)


@st.composite
def _steps(draw, overlap: bool):
    """A base shape and a composition of view ops on it."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    kinds = ["slice", "slice", "transpose", "select", "unsqueeze", "view", "split"]
    if overlap:
        kinds += ["expand", "unfold"]
    seeds = draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 10**6)), max_size=5))
    return shape, seeds


def _apply(x: torch.Tensor, steps) -> torch.Tensor:
    for kind, seed in steps:
        d = seed % x.ndim if x.ndim else 0
        r = seed // 7
        if kind == "unsqueeze":
            x = x.unsqueeze(seed % (x.ndim + 1))
        elif not x.ndim:
            continue
        elif kind == "slice":
            start = r % x.shape[d] if x.shape[d] else 0
            x = x[(slice(None),) * d + (slice(start, start + 1 + r // 11 % 6, 1 + r // 5 % 3),)]
        elif kind == "transpose":
            x = x.transpose(d, r % x.ndim)
        elif kind == "select" and x.shape[d]:
            x = x.select(d, r % x.shape[d])
        elif kind == "split" and x.shape[d] % 2 == 0 and x.shape[d]:
            x = x.unflatten(d, (2, x.shape[d] // 2) if r % 2 else (x.shape[d] // 2, 2))
        elif kind == "view" and x.is_contiguous():
            x = x.view(-1)
        elif kind == "expand":
            x = x.unsqueeze(d).expand(*x.shape[:d], 3, *x.shape[d:])
        elif kind == "unfold" and x.shape[d] > 1:
            x = x.unfold(d, 1 + r % x.shape[d], 1 + r // 3 % 2)
        if x.ndim > 6:
            break
    return x


@given(_steps(overlap=True))
@_SETTINGS
def test_read_any_composition(case):
    base = _base(case[0])
    read(base, _apply(base, case[1]))


@given(_steps(overlap=False))
@_SETTINGS
def test_write_any_composition(case):
    write(_base(case[0]), lambda x: _apply(x, case[1]))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=4), st.integers(0, 5),
    st.sampled_from([(7, 23), (161,), (23, 7, 1)]),
)  # fmt: skip
@_SETTINGS
def test_read_any_as_strided(dims, offset, shape):
    base = _base(shape)
    read(base, torch.as_strided(base, [n for n, _ in dims], [s for _, s in dims], offset))


# shape of the base, the view, and whether its program may hold a gather or scatter
_CASES = {
    "whole": ((4, 6), lambda x: x),
    "flat": ((4, 6), lambda x: x.view(24)),
    "transposed": ((4, 6), lambda x: x.t()),
    "channels last": ((2, 3, 4, 5), lambda x: x.permute(0, 3, 1, 2)),
    "row": ((4, 6), lambda x: x[2]),
    "column": ((4, 6), lambda x: x[:, 1]),
    "step": ((4, 7), lambda x: x[:, ::3]),
    "steps": ((9, 7), lambda x: x[1::2, ::3]),
    "heads": ((2, 5, 24), lambda x: x[..., 8:16].view(2, 5, 2, 4).transpose(1, 2)),
    "last of merged": ((3, 4, 16), lambda x: x.view(12, 16)[:, 5]),
    "kv cache": ((2, 3, 8, 4), lambda x: x[:, :, 5:6]),
    "diagonal": ((5, 5), lambda x: x.diagonal()),
    "batch diagonal": ((3, 4, 5), lambda x: x.diagonal(1, 1, 2)),
    "scalar": ((), lambda x: x),
    "element": ((4, 6), lambda x: x[1, 2]),
    "empty": ((4, 6), lambda x: x[2:2]),
    "empty base": ((0, 3), lambda x: x),
    "skewed rows": ((40,), lambda x: x.as_strided((3, 4), (10, 3), 5)),
    "rows across": ((40,), lambda x: x.as_strided((3, 6), (10, 1), 7)),
}


@pytest.mark.parametrize("name", _CASES)
def test_plain_views_need_no_index(name):
    shape, view = _CASES[name]
    assert "stablehlo.gather" not in read(_base(shape), view(_base(shape)))
    assert "stablehlo.scatter" not in write(_base(shape), view)
    write(_base(shape), view, initialised=False)


def test_exact_views_emit_nothing():
    program = read(_base((2, 3, 4)), _base((2, 3, 4)))
    assert "stablehlo" not in program
    assert read(_base((6, 4)), _base((6, 4)).t()).count("stablehlo") == 1


_BITS = [
    (torch.float32, torch.int32, (4, 6)),
    (torch.float32, torch.uint8, (4, 6)),
    (torch.uint8, torch.float32, (4, 8)),
    (torch.int16, torch.int64, (3, 4)),
    (torch.uint8, torch.int16, (7,)),
    (torch.complex64, torch.float32, (3, 4)),
    (torch.float32, torch.complex64, (3, 4)),
    (torch.complex128, torch.int32, (2, 3)),
    (torch.bool, torch.uint8, (3, 4)),
    (torch.uint8, torch.bool, (3, 4)),
    (torch.bfloat16, torch.int16, (3, 4)),
    (torch.float64, torch.float16, (3,)),
]


@pytest.mark.parametrize("source,target,shape", _BITS, ids=str)
def test_views_as_another_dtype(source, target, shape):
    base = _base(shape, source)
    if target == torch.bool:
        base = base % 2
    n = base.numel() * base.element_size() // target.itemsize

    def view(x):
        storage = x.untyped_storage()
        return torch.empty(0, dtype=target).set_(storage, 1, (n - 1,), (1,))

    read(base, view(base))
    write(base, view)


def test_repeated_elements_keep_one_of_the_values():
    module = Module()
    b = module.function("main", [TensorType("f32", (6,)), TensorType("f32", (5, 2))], public=True)
    b.finish([strided.write(b, b.args[0], "f32", (6,), b.args[1], (5, 2), (1, 1), 0)])
    got = harness.run(
        str(module), [torch.zeros(6), torch.arange(1.0, 11).view(5, 2)], [torch.empty(6)]
    )
    assert got[0][0] == 1 and got[0][5] == 10 and got[0][1] in (2, 3)


def test_a_view_must_fit():
    b = Module().function("main", [TensorType("f32", (6,))])
    with pytest.raises(ValueError, match="exceeds its base of 6"):
        strided.read(b, b.args[0], "f32", (4,), (2,), 0)


@pytest.mark.parametrize(
    "sizes,strides,order",
    [
        ((2, 3), (3, 1), (0, 1)),
        ((2, 3), (1, 2), (1, 0)),
        ((2, 3), (4, 1), None),
        ((2, 3), (0, 1), None),
        ((2, 1, 3), (3, 77, 1), (0, 1, 2)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((0, 3), (1, 1), (0, 1)),
        ((), (), ()),
        ((4, 3, 1, 1), (3, 1, 1, 1), (2, 3, 0, 1)),  # sizes of 1 that follow a matrix lead
        ((4, 3, 1, 1), (3, 1, 3, 3), (2, 3, 0, 1)),
        ((4, 3, 1), (3, 1, 7), (2, 0, 1)),
        ((4, 3, 1), (1, 4, 1), (1, 0, 2)),
        ((4, 3, 1), (6, 2, 1), None),
    ],
)
def test_dense_order(sizes, strides, order):
    assert strided.dense_order(sizes, strides) == order
    dims = strided.physical_dims(sizes, strides)
    assert dims == (None if order is None else tuple(sizes[i] for i in order))
