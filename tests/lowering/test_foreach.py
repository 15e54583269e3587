"""The `_foreach_*` operators, fused optimizer steps and gradient scaling against CPU."""

import pytest
import torch

from tests.lowering.harness import check

aten = torch.ops.aten

UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zero",
]  # fmt: skip


def tensors(dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((), (3,), (2, 0), (2, 3))
    return [(torch.rand(s, generator=g) * 0.8 + 0.1).to(dtype) for s in shapes]


def ints(dtype=torch.int64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 9, s, generator=g).to(dtype) for s in ((), (3,), (2, 3))]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(getattr(aten, f"_foreach_{name}").default, tensors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["sqrt", "exp", "neg"])
def test_unary_dtypes(name, dtype):
    check(getattr(aten, f"_foreach_{name}").default, tensors(dtype))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "clamp_min", "clamp_max", "maximum", "minimum", "pow"]
)
@pytest.mark.parametrize("make", [tensors, ints])
def test_binary(name, make):
    op = getattr(aten, f"_foreach_{name}")
    xs = make()
    check(op.List, xs, make(seed=1))
    check(op.Scalar, xs, 2)
    check(op.ScalarList, xs, [float(i) for i in range(1, 1 + len(xs))])


def test_tensor_operand_and_alpha():
    xs, ys = tensors(), tensors(seed=1)
    check(aten._foreach_add.List, xs, ys, alpha=0.5)
    check(aten._foreach_sub.List, xs, ys, alpha=-2)
    check(aten._foreach_add.Tensor, xs, torch.tensor(3.0), alpha=2)
    check(aten._foreach_mul.Tensor, xs, torch.tensor(3.0))
    check(aten._foreach_div.Tensor, xs, torch.tensor(3.0))
    check(aten._foreach_pow.ScalarAndTensor, 2.0, xs)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_ternary(name):
    op = getattr(aten, f"_foreach_{name}")
    xs, ys, zs = (tensors(seed=i) for i in range(3))
    check(op.Scalar, xs, ys, zs, 0.5)
    check(op.ScalarList, xs, ys, zs, [0.5, 1.0, 2.0, -1.0])


def test_lerp():
    xs, ys, ws = (tensors(seed=i) for i in range(3))
    check(aten._foreach_lerp.List, xs, ys, ws)
    check(aten._foreach_lerp.Scalar, xs, ys, 0.3)
    check(aten._foreach_lerp.ScalarList, xs, ys, [0.3, 0.7, 0.0, 1.0])


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norm(order):
    xs = [x for x in tensors() if x.numel()]
    check(aten._foreach_norm.Scalar, xs, order)
    check(aten._foreach_norm.Scalar, [x.bfloat16() for x in xs], order, torch.float32)


def test_copy_casts():
    check(aten._foreach_copy.default, tensors(torch.bfloat16), tensors(torch.float32, seed=1))


# ---- optimizers
# -----------------------------------------------------------------------------------


def state(n, dtype=torch.float32):
    g = torch.Generator().manual_seed(3)
    shapes = ((3,), (2, 3))
    return [[torch.rand(s, generator=g).to(dtype) for s in shapes] for _ in range(n)]


def steps():
    return [torch.tensor(1.0), torch.tensor(7.0)]


ADAM = dict(lr=0.01, beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8)


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_adam(name, amsgrad, maximize):
    p, g, m, v, top = state(5)
    args = (p, g, m, v, top if amsgrad else [], steps())
    check(getattr(aten, name).default, *args, **ADAM, amsgrad=amsgrad, maximize=maximize)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_adam_with_a_gradient_scale(found):
    p, g, m, v = state(4)
    options = dict(grad_scale=torch.tensor(4.0), found_inf=torch.tensor(found))
    check(
        aten._fused_adamw.default,
        p,
        g,
        m,
        v,
        [],
        steps(),
        **ADAM,
        amsgrad=False,
        maximize=False,
        **options,
    )


def test_adam_low_precision_and_tensor_lr():
    p, g, m, v = state(4, torch.bfloat16)
    options = ADAM | dict(lr=torch.tensor(0.01), amsgrad=False, maximize=False)
    check(aten._fused_adam.tensor_lr, p, g, m, v, [], steps(), **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_sgd(momentum, nesterov, first):
    p, g, buf = state(3)
    check(
        aten._fused_sgd.default, p, g, buf if momentum else [], weight_decay=0.1, momentum=momentum,
        lr=0.05, dampening=0.0 if nesterov else 0.2, nesterov=nesterov and momentum > 0,
        maximize=False, is_first_step=first,
    )  # fmt: skip


def test_adagrad():
    p, g, total = state(3)
    options = dict(lr=0.05, lr_decay=0.1, weight_decay=0.1, eps=1e-10, maximize=True)
    check(aten._fused_adagrad.default, p, g, total, steps(), **options)


@pytest.mark.parametrize("bad", [1.0, float("inf"), float("nan")])
def test_unscale(bad):
    grads = [torch.tensor([1.0, bad]), torch.ones(2, 2)]
    check(
        aten._amp_foreach_non_finite_check_and_unscale.default,
        grads,
        torch.zeros(1),
        torch.tensor([0.5]),
    )


@pytest.mark.parametrize(("found", "tracker"), [(0.0, 0), (0.0, 3), (1.0, 2)])
def test_update_scale(found, tracker):
    args = torch.tensor([1024.0]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found])
    check(aten._amp_update_scale.default, *args, 2.0, 0.5, 4)
