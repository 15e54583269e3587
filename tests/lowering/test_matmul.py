"""Matrix products equal CPU: dtypes, empty operands, run-time alpha and beta."""

from __future__ import annotations

import pytest
import torch

from tests.lowering import harness
from tests.lowering.harness import check
from torchtpu_core.lowering import graph
from torchtpu_core.stablehlo import Module, TensorType

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
INTS = [torch.int64, torch.int32, torch.int16, torch.uint8]


def make(shape, dtype=torch.float32):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(0, 20, shape, dtype=dtype)


#: op -> operand shapes
PRODUCTS = {
    aten.mm.default: [((4, 5), (5, 3)), ((0, 5), (5, 3)), ((4, 0), (0, 3))],
    aten.bmm.default: [((2, 4, 5), (2, 5, 3)), ((0, 4, 5), (0, 5, 3)), ((2, 4, 0), (2, 0, 3))],
    aten.mv.default: [((4, 5), (5,)), ((4, 0), (0,))],
    aten.dot.default: [((5,), (5,)), ((0,), (0,))],
    aten.vdot.default: [((5,), (5,))],
}
#: op -> shapes of self and the factors
ADDED = {
    aten.addmm.default: [((4, 3), (4, 5), (5, 3)), ((3,), (4, 5), (5, 3)), ((), (4, 0), (0, 3))],
    aten.baddbmm.default: [((2, 4, 3), (2, 4, 5), (2, 5, 3)), ((4, 1), (2, 4, 5), (2, 5, 3))],
    aten.addbmm.default: [((4, 3), (2, 4, 5), (2, 5, 3))],
    aten.addmv.default: [((4,), (4, 5), (5,)), ((), (4, 5), (5,))],
    aten.addr.default: [((4, 3), (4,), (3,)), ((3,), (4,), (3,))],
}


def cases(table):
    return [(op, shapes) for op, many in table.items() for shapes in many]


@pytest.mark.parametrize("op, shapes", cases(PRODUCTS), ids=str)
@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
def test_product(op, shapes, dtype):
    check(op, *(make(s, dtype) for s in shapes))


@pytest.mark.parametrize("op, shapes", cases(ADDED), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("alpha, beta", [(1, 1), (2, 3), (1, 0)])
def test_added_product(op, shapes, dtype, alpha, beta):
    check(op, *(make(s, dtype) for s in shapes), alpha=alpha, beta=beta)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_scalars_at_run_time(beta):
    """A beta of zero ignores NaN in self, also when it is known only at run time."""
    c, x, y = torch.full((4, 3), float("nan")), torch.randn(4, 5), torch.randn(5, 3)
    if beta:
        c = torch.randn(4, 3)
    inputs = [c, x, y, torch.tensor(beta), torch.tensor(1.5)]
    module = Module()
    b = module.function("main", [TensorType("f32", tuple(t.shape)) for t in inputs], public=True)
    *tensors, vb, va = b.args
    vb.weak = va.weak = True
    out = graph.lower_op(b, aten.addmm.default, tensors, {"beta": vb, "alpha": va})
    b.finish([out])
    want = torch.addmm(c, x, y, beta=beta, alpha=1.5)
    (got,) = harness.run(str(module), inputs, [want.to("meta")])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_low_precision_rounds_once():
    """4096 products near 1: a running bf16 sum would stop at 256."""
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    check(aten.mm.default, x, x.T.contiguous(), rtol=0, atol=0)


def test_nan_and_inf():
    x = torch.randn(3, 4)
    x[0, 1], x[1, 2] = float("nan"), float("inf")
    check(aten.mm.default, x, torch.randn(4, 2))


def test_int8_product_accumulates_in_int32():
    x, y = (torch.randint(-128, 127, s, dtype=torch.int8) for s in ((32, 40), (40, 16)))
    check(aten._int_mm.default, x, y)


@pytest.mark.parametrize("gelu", [False, True])
def test_activation(gelu):
    args = torch.randn(3), torch.randn(4, 5), torch.randn(5, 3)
    check(aten._addmm_activation.default, *args, use_gelu=gelu, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "shapes, expand, sumdim",
    [
        (((2, 3), (5, 3, 4), (2, 4)), ([1, 3], [0], [1, 2]), [2, 3]),
        (((2, 3), (2, 4, 3), (2, 4)), ([1], [], [2]), [2]),
    ],
)
def test_trilinear(shapes, expand, sumdim):
    check(aten._trilinear.default, *(torch.randn(s) for s in shapes), *expand, sumdim)


def test_linear_takes_any_leading_dimensions():
    w, c = torch.randn(3, 5), torch.randn(3)
    for shape in ((5,), (2, 5), (2, 4, 5), (0, 5)):
        check(aten.linear.default, torch.randn(shape), w, c)
        check(aten.linear.default, torch.randn(shape), w)
