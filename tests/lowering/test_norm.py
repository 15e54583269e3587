"""Normalisation layers equal CPU, forward and backward, with and without parameters.

CPU keeps the statistics of low-precision inputs in the input's dtype and returns none in inference;
other devices return what the meta kernels say. Results are compared where both have them.
"""

from __future__ import annotations

import pytest
import torch

from tests.lowering.harness import TOLERANCE, build, check, run

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def results(op, *args):
    """What the program of `op` returns, beyond the schema's results too."""
    text, inputs, metas, _ = build(op, args, {})
    return run(text, inputs, metas)


def check_norm(op, *args):
    want = op(*args)
    for got, w in zip(results(op, *args), want):
        if w.shape == got.shape:
            rtol, atol = TOLERANCE[w.dtype]
            torch.testing.assert_close(
                got.to(w.dtype), w.contiguous(), rtol=rtol, atol=atol, equal_nan=True
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape, inner", [((4, 6), [6]), ((2, 3, 4), [3, 4]), ((0, 4), [4])])
def test_layer_norm(dtype, affine, shape, inner):
    x = (torch.randn(shape) * 3 + 1).to(dtype)
    w, c = (torch.randn(inner).to(dtype), torch.randn(inner).to(dtype)) if affine else (None, None)
    check_norm(aten.native_layer_norm.default, x, inner, w, c, 1e-5)
    if x.numel():
        _, mean, rstd = aten.native_layer_norm(x, inner, w, c, 1e-5)
        mask = [True, affine, affine]
        check_norm(
            aten.native_layer_norm_backward.default,
            torch.randn(shape).to(dtype),
            x,
            inner,
            mean,
            rstd,
            w,
            c,
            mask,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_rms_norm(dtype, eps):
    x, w = torch.randn(2, 3, 8).to(dtype), torch.randn(8).to(dtype)
    check_norm(aten._fused_rms_norm.default, x, [8], w, eps)


def test_rms_norm_backward():
    """CPU has no fused gradient: autograd's, through the composite, is the reference."""
    x, w = torch.randn(2, 3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    grad = torch.randn(2, 3, 8)
    torch.nn.functional.rms_norm(x, [8], w, 1e-6).backward(grad)
    rstd = (x.detach().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    call = (grad, x.detach(), [8], rstd, w.detach(), [True, True])
    got = results_as(aten._fused_rms_norm_backward.default, call, [(2, 3, 8), (8,)])
    torch.testing.assert_close(got, [x.grad, w.grad], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(dtype, groups):
    x, w, c = torch.randn(2, 6, 3, 4).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    check_norm(aten.native_group_norm.default, x, w, c, 2, 6, 12, groups, 1e-5)
    _, mean, rstd = aten.native_group_norm(x, w, c, 2, 6, 12, groups, 1e-5)
    grad = torch.randn(2, 6, 3, 4).to(dtype)
    check_norm(
        aten.native_group_norm_backward.default,
        grad,
        x,
        mean,
        rstd,
        w,
        2,
        6,
        12,
        groups,
        [True] * 3,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, training):
    x, w, c = torch.randn(3, 4, 5).to(dtype), torch.randn(4).to(dtype), torch.randn(4).to(dtype)
    stats = torch.randn(4).to(dtype), (torch.rand(4) + 0.5).to(dtype)
    check_norm(
        aten.native_batch_norm.default,
        x,
        w,
        c,
        stats[0].clone(),
        stats[1].clone(),
        training,
        0.1,
        1e-5,
    )
    _, mean, invstd = aten.native_batch_norm(
        x, w, c, stats[0].clone(), stats[1].clone(), training, 0.1, 1e-5
    )
    check_norm(
        aten.native_batch_norm_backward.default,
        torch.randn(3, 4, 5).to(dtype),
        x,
        w,
        *stats,
        mean,
        invstd,
        training,
        1e-5,
        [True] * 3,
    )


def test_batch_norm_updates_its_running_statistics():
    x, mean, var = torch.randn(3, 4, 5), torch.randn(4), torch.rand(4)
    text, inputs, metas, _ = build(
        aten.native_batch_norm.default,
        (x, None, None, mean.clone(), var.clone(), True, 0.3, 1e-5),
        {},
    )
    got = run(text, inputs, [*metas, torch.empty(4), torch.empty(4)])
    aten.native_batch_norm(x, None, None, mean, var, True, 0.3, 1e-5)
    torch.testing.assert_close(got[3], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[4], var, rtol=1e-4, atol=1e-5)


def test_functional_batch_norm():
    x, mean, var = torch.randn(3, 4, 5), torch.randn(4), torch.rand(4)
    check(
        aten._native_batch_norm_legit_functional.default, x, None, None, mean, var, True, 0.3, 1e-5
    )
    check(aten._native_batch_norm_legit.no_stats, x, None, None, True, 0.3, 1e-5)
    w = torch.randn(4)
    check(aten._batch_norm_with_update_functional.default, x, w, w, mean, var, 0.3, 1e-5)


def test_statistics_of_replicas_make_those_of_the_whole_batch():
    """The pieces of SyncBatchNorm, on two shards of one batch, against batch norm of the batch."""
    x, w, grad = torch.randn(5, 4, 6), torch.randn(4), torch.randn(5, 4, 6)
    shards, grads = x.split([2, 3]), grad.split([2, 3])
    stats = [batch_stats(s) for s in shards]
    counts = torch.tensor([12.0, 18.0])
    means, invstds = (torch.stack(s) for s in zip(*stats))
    call = (x, means, invstds, None, None, 0.1, 1e-5, counts)
    mean, invstd = results_as(aten.batch_norm_gather_stats_with_counts.default, call, [(4,), (4,)])
    out, want_mean, want_invstd = aten.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)
    torch.testing.assert_close(mean, want_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(invstd, want_invstd, rtol=1e-4, atol=1e-5)
    call = (x, w, None, mean, invstd, 1e-5)
    torch.testing.assert_close(
        results_as(aten.batch_norm_elemt.default, call, [x.shape])[0], out, rtol=1e-4, atol=1e-5
    )
    parts = []
    for g, s in zip(grads, shards):
        call = (g, s, mean, invstd, w, True, True, True)
        parts.append(results_as(aten.batch_norm_backward_reduce.default, call, [(4,)] * 4))
    sum_dy, sum_dy_xmu, grad_w, grad_c = (sum(p) for p in zip(*parts))
    call = (grad, x, mean, invstd, w, sum_dy, sum_dy_xmu, counts.int())
    got = results_as(aten.batch_norm_backward_elemt.default, call, [x.shape])[0]
    want = aten.native_batch_norm_backward(
        grad, x, w, None, None, mean, invstd, True, 1e-5, [True] * 3
    )
    for g, v in zip((got, grad_w, grad_c), want):
        torch.testing.assert_close(g, v, rtol=1e-4, atol=1e-5)


def batch_stats(x):
    return results_as(aten.batch_norm_stats.default, (x, 1e-5), [(4,), (4,)])


def results_as(op, args, shapes):
    """Runs an op that CPU lacks; its f32 results have these shapes."""
    from torchtpu_core.lowering import graph
    from torchtpu_core.lowering.dtypes import mlir
    from torchtpu_core.stablehlo import Module, TensorType, Value

    module, inputs = Module(), [a for a in args if isinstance(a, torch.Tensor)]
    b = module.function(
        "main", [TensorType(mlir(t.dtype), tuple(t.shape)) for t in inputs], public=True
    )
    feed = iter(b.args)
    out = graph.lower_op(
        b, op, [next(feed) if isinstance(a, torch.Tensor) else a for a in args], {}
    )
    out = [out] if isinstance(out, Value) else [v for v in out if v is not None]
    b.finish(out)
    return run(str(module), inputs, [torch.empty(s, device="meta") for s in shapes])


@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm(dim):
    v = torch.randn(4, 5)
    g = torch.randn(4, 1) if dim == 0 else torch.randn(1, 5)
    check(aten._weight_norm_interface.default, v, g, dim)
    _, norm = aten._weight_norm_interface(v, g, dim)
    check(aten._weight_norm_interface_backward.default, torch.randn(4, 5), v, g, norm, dim)
