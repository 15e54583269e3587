"""Gathers, scatters, embeddings, bags and segments against CPU."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness
from torchtpu_core.lowering import host, program

aten = torch.ops.aten
NAN = float("nan")


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (torch.rand(shape, generator=g) * 8 - 4).to(dtype)


def i(*values, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


MASK = torch.tensor([[True, False, True], [False, False, True]])

INDEX = {
    "one": (f(4, 3), [i(2, 0, -1)]),
    "inner": (f(4, 3, 2), [None, i(2, -3)]),
    "0-d index": (f(4, 3), [None, torch.tensor(1)]),
    "two adjacent": (f(2, 4, 3), [None, i(0, 1, 3), i(2, -1, 0)]),
    "two separated": (f(2, 4, 3), [i(0, 1), None, i(2, -1)]),
    "broadcast": (f(4, 5), [torch.tensor([[0], [3]]), i(1, 2, 4)]),
    "int32": (f(4, 5), [i(1, -1, dtype=torch.int32), i(2, 0)]),
    "bf16": (f(4, 3, dtype=torch.bfloat16), [i(1, 1)]),
    "complex": (torch.complex(f(4, 3), f(4, 3)), [i(3, 0)]),
    "bool": (f(4, 3) > 0, [i(1, 2), i(0, 2)]),
    "empty index": (f(4, 3), [torch.empty(0, dtype=torch.int64)]),
    "empty tensor": (f(4, 0), [i(1, 2)]),
}


@pytest.mark.parametrize("name", INDEX)
def test_index(name):
    harness.check(aten.index.Tensor, *INDEX[name])


def test_index_by_a_mask_beside_an_index_is_refused():
    with pytest.raises(NotImplementedError, match="mask beside"):
        harness.build(aten.index.Tensor, (f(2, 3, 4), [MASK, i(0, 1, 2)]), {})


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("x", "indices", "values"),
    [
        (f(4, 3), [i(2, -1)], f(2, 3)),
        (f(4, 3), [i(2, -1)], torch.tensor(1.5)),
        (f(2, 4, 3), [i(0, 1), None, i(2, -1)], f(2, 4)),
        (f(2, 4, 3), [None, i(0, 1), i(2, -1)], f(1, 2)),
        (f(4, 3, dtype=torch.bfloat16), [i(1, 0)], f(3, dtype=torch.bfloat16)),
        (i(1, 2, 3), [i(2, 0)], i(7, 8)),
        (f(4, 3) > 0, [i(2, 0)], torch.tensor(True)),
        (f(4, 3), [torch.empty(0, dtype=torch.int64)], f(0, 3)),
        (f(2, 3), [MASK], torch.tensor(9.0)),
        (f(2, 3), [MASK], f(3)),
        (f(2, 3, 4), [MASK], f(3, 4)),
        (f(2, 3, 4), [MASK], f(4)),
        (f(5, 3), [None, i(1, 0, 1).bool()], f(5, 2)),
        (f(5, 3), [None, i(1, 0, 1).bool()], f(5, 1)),
        (f(2, 3), [torch.zeros(2, dtype=torch.bool)], f(0, 3)),
    ],
)
def test_index_put(x, indices, values, accumulate):
    harness.check(aten.index_put.default, x, indices, values, accumulate)


def test_accumulated_duplicates_round_once():
    x = torch.zeros(2, dtype=torch.bfloat16)
    values = torch.full((300,), 1.0, dtype=torch.bfloat16)
    text, inputs, metas, _ = harness.build(
        aten.index_put.default, (x, [torch.zeros(300, dtype=torch.int64)], values, True), {}
    )
    assert harness.run(text, inputs, metas)[0][0] == 300


ALONG = torch.tensor([[0, 2, 1], [2, 0, 0]])


@pytest.mark.parametrize(
    ("x", "dim", "index"),
    [
        (f(4, 3), 0, ALONG),
        (f(4, 3), -1, ALONG[:, :2]),
        (f(4, 3, dtype=torch.bfloat16), 1, ALONG),
        (i(3, 1, 2), 0, torch.tensor(1)),
        (torch.tensor(2.0), 0, i(0, 0)),
        (torch.tensor(2.0), 0, torch.tensor(0)),
        (f(4, 3), 1, torch.empty(4, 0, dtype=torch.int64)),
    ],
)
def test_gather(x, dim, index):
    harness.check(aten.gather.default, x, dim, index)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.float64])
def test_scatter(dim, dtype):
    x, src = f(4, 3, dtype=dtype), f(5, 4, dtype=dtype)
    index = torch.tensor([[0, 2, 1], [2, 0, 0]]) if dim == 1 else torch.tensor([[0, 3], [2, 1]])
    unique = torch.tensor([[0, 2, 1], [2, 0, 1]]) if dim == 1 else index
    harness.check(aten.scatter.src, x, dim, unique, src)
    harness.check(aten.scatter.value, x, dim, index, 3)
    harness.check(aten.scatter_add.default, x, dim, index, src)
    for reduce in ("add", "multiply"):
        harness.check(aten.scatter.reduce, x, dim, index, src, reduce=reduce)
        harness.check(aten.scatter.value_reduce, x, dim, index, 2, reduce=reduce)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_scatter_reduce(reduce, include_self, dtype):
    x, src, index = f(4, 3, dtype=dtype), f(2, 3, dtype=dtype), torch.tensor([[0, 2, 1], [0, 3, 3]])
    if dtype.is_floating_point:
        src[1, 2] = NAN
    harness.check(aten.scatter_reduce.two, x, 0, index, src, reduce, include_self=include_self)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
def test_index_reduce(reduce, include_self):
    harness.check(
        aten.index_reduce.default,
        f(3, 4),
        1,
        i(1, 3, 1),
        f(3, 3),
        reduce,
        include_self=include_self,
    )


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.index_select.default, (f(4, 3), -1, i(2, 0, 0)), {}),
        (aten.index_select.default, (f(4, 3), 0, torch.tensor(1)), {}),
        (aten.index_select.default, (torch.tensor(3.0), 0, i(0)), {}),
        (aten.index_add.default, (f(4, 3), 0, i(1, 1, 3), f(3, 3)), {"alpha": 2}),
        (aten.index_add.default, (torch.tensor(3.0), 0, i(0), torch.tensor(2.0)), {}),
        (aten.index_add.default, (f(4) > 0, 0, i(1, 1), i(0, 1).bool()), {}),
        (aten.index_copy.default, (f(4, 3), 1, i(2, 0), f(4, 2)), {}),
        (aten.index_copy.default, (f(4), 0, torch.tensor(2), torch.tensor(5.0)), {}),
        (aten.index_fill.int_Scalar, (f(4, 3), 1, i(-1, 0), 2), {}),
        (aten.index_fill.int_Tensor, (f(4, 3), 0, i(1), torch.tensor(7.0)), {}),
        (aten.index_fill.int_Scalar, (torch.tensor(3.0), 0, i(0), 2), {}),
        (aten.take.default, (f(4, 3), torch.tensor([[0, -1], [5, 5]])), {}),
        (aten.put.default, (f(4, 3), i(0, -1), f(2)), {}),
        (aten.put.default, (f(4, 3), i(5, 5), f(2), True), {}),
        (aten.masked_scatter.default, (f(2, 3), MASK, f(5)), {}),
        (aten.masked_scatter.default, (f(2, 3, dtype=torch.int64), MASK[:1], f(4).long()), {}),
        (aten.masked_scatter_backward.default, (f(2, 3), MASK, [2, 3]), {}),
        (aten.nonzero_static.default, (MASK, ), {"size": 5}),
        (aten.nonzero_static.default, (MASK, ), {"size": 2, "fill_value": 9}),
        (aten._unsafe_masked_index.default, (f(3, 3), MASK, [i(0, 5)[:, None], i(1, 2, 7)], 0), {}),
    ],
)  # fmt: skip
def test_slices_and_positions(op, args, kwargs):
    harness.check(op, *args, **kwargs)


# ---- embeddings ----------------------------------------------------------------------------------

WORDS = torch.tensor([[1, 2, 2], [5, 1, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding(dtype):
    table = f(6, 4, dtype=dtype)
    harness.check(aten.embedding.default, table, WORDS)
    harness.check(aten.embedding.default, table, torch.tensor(3))
    harness.check(aten.embedding.default, table, torch.empty(0, 2, dtype=torch.int64))
    harness.check(aten.embedding_renorm.default, table.clone(), WORDS.flatten(), 1.5, 2.0)


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding_gradient(padding, by_frequency):
    op = aten.embedding_dense_backward.default
    harness.check(op, f(2, 3, 4), WORDS, 6, padding, by_frequency)


OFFSETS = i(0, 0, 3, 6)
BAG = i(1, 2, 2, 5, 4, 3, 1, 2)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode, padding, last):
    """The bags and their gradient; the other results are bookkeeping that CPU does differently."""
    offsets = torch.cat([OFFSETS, i(8)]) if last else OFFSETS
    table = f(6, 4)
    args = (table, BAG, offsets, False, mode, False, None, last, padding)
    text, inputs, metas, _ = harness.build(aten._embedding_bag.default, args, {})
    out, _, size, best = harness.run(text, inputs, metas)
    want = aten._embedding_bag.default(*args)
    torch.testing.assert_close(out, want[0])
    grad = f(4, 4)
    gradient = aten._embedding_bag_dense_backward.default
    want_grad = gradient(
        grad, BAG, want[1] if want[1].numel() else i(1, 1, 1, 2, 2, 2, 3, 3), want[2], want[3], 6,
        False, mode, None, padding,
    )  # fmt: skip
    bwd = (grad, BAG, offsets, want[1], size, best, 6, False, mode, False, None, padding)
    text, inputs, metas, _ = harness.build(aten._embedding_bag_backward.default, bwd, {})
    torch.testing.assert_close(harness.run(text, inputs, metas)[0], want_grad)


def test_weighted_bag():
    table, weights = f(6, 4), f(8)
    args = (table, BAG, OFFSETS, False, 0, False, weights)
    text, inputs, metas, _ = harness.build(aten._embedding_bag.default, args, {})
    torch.testing.assert_close(
        harness.run(text, inputs, metas)[0], aten._embedding_bag.default(*args)[0]
    )
    bag = i(1, 1, 1, 2, 2, 2, 3, 3)
    harness.check(
        aten._embedding_bag_per_sample_weights_backward.default,
        f(4, 4),
        table,
        BAG,
        OFFSETS,
        bag,
        0,
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segments(reduce, initial):
    x = f(7, 3)
    x[1, 1] = 0
    lengths = i(2, 0, 4)
    kwargs = {"lengths": lengths, "unsafe": True, "initial": initial}
    harness.check(aten.segment_reduce.default, x, reduce, **kwargs)
    out = aten.segment_reduce(x, reduce, **kwargs)
    harness.check(
        aten._segment_reduce_backward.default, torch.ones_like(out), out, x[:6], reduce,
        lengths=lengths, initial=initial,
    )  # fmt: skip


# ---- the host's table ----------------------------------------------------------------------------


def test_host_table_names_operators():
    for name, reason in host.REASONS.items():
        op, _, overload = name.rpartition(".")
        assert reason and program.resolve(op, "" if overload == "default" else overload)
