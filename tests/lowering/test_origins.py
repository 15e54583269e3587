"""Products and sums see through the reshape that flattened their operand: the program's text."""

from __future__ import annotations

import re

import pytest

from torchtpu_core.lowering.matmul import dot
from torchtpu_core.stablehlo import Module, TensorType
from torchtpu_core.stablehlo.origins import split

X, W = TensorType("f32", (8, 5, 6)), TensorType("f32", (6, 7))


@pytest.fixture
def b():
    return Module().function("main", [X, W], public=True)


def products(b):
    """The operand types of each dot_general."""
    return re.findall(r'"stablehlo.dot_general".* : \((\S+), (\S+)\)', "\n".join(b._lines))


def test_rows_stay_apart(b):
    x, w = b.args
    out = dot(b, b.reshape(x, (40, 6)), w, ((1,), (0,)))
    assert out.shape == (40, 7)
    assert products(b) == [("tensor<8x5x6xf32>", "tensor<6x7xf32>")]
    assert b.reshape(out, (8, 5, 7)).origin is None  # there and back is the product itself


def test_a_sum_over_merged_rows_contracts_both(b):
    flat = b.reshape(b.args[0], (40, 6))
    out = dot(b, b.transpose(flat, (1, 0)), flat, ((1,), (0,)))
    assert out.shape == (6, 6)
    assert {t for pair in products(b) for t in pair} <= {"tensor<8x5x6xf32>", "tensor<6x8x5xf32>"}


def test_a_product_for_a_tpu_names_the_dimensions_of_what_was_transposed():
    b = Module(target="tpu").function("main", [X, W], public=True)
    flat = b.reshape(b.args[0], (40, 6))
    out = dot(b, b.transpose(flat, (1, 0)), flat, ((1,), (0,)))
    assert out.shape == (6, 6)
    assert products(b) == [("tensor<8x5x6xf32>", "tensor<8x5x6xf32>")]
    # the rows of an outer product have to be in the order of the result
    outer = dot(b, b.transpose(flat, (1, 0)), b.constant(1, "f32", (3,)), ((), ()))
    assert outer.shape == (6, 40, 3)
    assert products(b)[-1] == ("tensor<6x8x5xf32>", "tensor<3xf32>")


def test_what_is_merged_of_other_sizes_stays_merged(b):
    x = b.reshape(b.args[0], (8, 30))
    y = b.reshape(b.args[1], (6, 7))
    out = dot(b, x, b.constant(1, "f32", (30, 3)), ((1,), (0,)))
    assert out.shape == (8, 3) and y is b.args[1]
    assert products(b) == [("tensor<8x30xf32>", "tensor<30x3xf32>")]


@pytest.mark.parametrize("shape", [(8, 5, 6, 1), (1, 8, 5, 6), (8, 5, 2, 3), (240,), (16, 15)])
def test_split_covers_every_dimension_once(b, shape):
    source, groups = split(b.reshape(b.args[0], shape))
    assert [d for g in groups for d in g] == list(range(source.ndim))
    assert len(groups) == len(shape)


def test_sums_of_rows(b):
    flat = b.reshape(b.args[0], (40, 6))
    assert b.reduce_op("add", flat, [0]).shape == (6,)
    assert "dimensions = array<i64: 0, 1>" in "\n".join(b._lines)
