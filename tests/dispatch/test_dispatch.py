"""The dispatcher: programs by key, run-time numbers, errors, modes, counters."""

import threading

import pytest
import torch

import torchtpu_core


def compiled():
    s = torchtpu_core.stats()
    return s["programs_compiled"] + s["programs_loaded"]


def test_numbers_never_recompile():
    x = torch.ones(5, device="tpu")
    for warm in (x + 0.5, x * 0.5, x.add(x, alpha=0.5), x.clamp(0.5, 2.5), x.pow(2), x == 0.5):
        del warm
    x.clone().fill_(0.5)
    x.clone().mul_(0.5)
    n = compiled()
    for v in (1.5, 2.25, -3.0):
        torch.testing.assert_close((x + v).cpu(), torch.ones(5) + v)
        torch.testing.assert_close((x * v).cpu(), torch.ones(5) * v)
        torch.testing.assert_close(x.add(x, alpha=v).cpu(), torch.ones(5) * (1 + v))
        torch.testing.assert_close(x.clamp(v, v + 1).cpu(), torch.ones(5).clamp(v, v + 1))
        torch.testing.assert_close(x.clone().fill_(v).cpu(), torch.full((5,), v))
        assert not (x == v).any().item()
    assert compiled() == n + 1  # `any` is the one new program


def test_number_precision():
    x = torch.ones(2, dtype=torch.float64, device="tpu")
    assert (x * 0.1).cpu()[0].item() == 0.1
    big = torch.zeros(2, dtype=torch.int64, device="tpu")
    assert (big + (2**53 + 1)).cpu()[0].item() == 2**53 + 1
    half = torch.ones(2, dtype=torch.bfloat16, device="tpu")
    assert (half * 0.1).dtype == torch.bfloat16
    assert (torch.ones(2, dtype=torch.int32, device="tpu") * 1.5).dtype == torch.float32


def test_cpu_scalar_tensors_mix():
    x = torch.ones(3, device="tpu")
    torch.testing.assert_close((x * torch.tensor(3.0)).cpu(), torch.full((3,), 3.0))
    assert (x * torch.tensor(3.0, dtype=torch.float64)).dtype == torch.float32


def test_mixed_devices_name_both():
    with pytest.raises(RuntimeError, match=r"same device.*tpu:0.*cpu"):
        torch.ones(3, device="tpu") + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.linear(torch.ones(2, 3, device="tpu"), torch.ones(4, 3))


def test_shape_errors_name_shapes():
    with pytest.raises(RuntimeError, match="4"):
        torch.ones(3, device="tpu") + torch.ones(4, device="tpu")
    with pytest.raises(RuntimeError):
        torch.ones(2, 3, device="tpu") @ torch.ones(2, 3, device="tpu")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(3, device="tpu", dtype=torch.int64).add_(1.5)
    with pytest.raises(IndexError):
        torch.ones(3, device="tpu").sum(dim=4)


def test_unsupported_op_is_named():
    x = torch.randn(4, 4, device="tpu")
    with pytest.raises(NotImplementedError, match="aten::_cudnn_rnn_flatten_weight"):
        torch.ops.aten._cudnn_rnn_flatten_weight([x], 1, 1, 0, 1, 0, 1, False, False)


def test_cpu_fallback_is_opt_in_and_counted():
    x = torch.randn(3, 3, device="tpu")
    assert torch.tpu.get_cpu_fallback() is False
    lib = torch.library.Library("torchtpu_test", "DEF")
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda t: t * 2, "CPU")
    with pytest.raises(NotImplementedError, match="torchtpu_test::twice"):
        torch.ops.torchtpu_test.twice(x)
    torch.tpu.set_cpu_fallback(True)
    try:
        before = torchtpu_core.stats()["fallbacks"]
        y = torch.ops.torchtpu_test.twice(x)
        assert y.device.type == "tpu"
        torch.testing.assert_close(y.cpu(), x.cpu() * 2)
        stats = torchtpu_core.stats()
        assert stats["fallbacks"] == before + 1
        assert stats["fallbacks_by_op"]["torchtpu_test::twice"] >= 1
    finally:
        torch.tpu.set_cpu_fallback(False)
        lib._destroy()


def test_no_hidden_host_transfers():
    x = torch.randn(8, 8, device="tpu")
    w = torch.randn(8, 8, device="tpu", requires_grad=True)
    before = torchtpu_core.stats()
    y = torch.nn.functional.gelu(x @ w).sum()
    y.backward()
    w.grad.mul_(0.5)
    after = torchtpu_core.stats()
    assert after["device_to_host"] == before["device_to_host"]
    assert after["host_to_device"] == before["host_to_device"]
    y.item()
    assert torchtpu_core.stats()["device_to_host"] == before["device_to_host"] + 1


def test_data_dependent_shapes():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]], device="tpu")
    assert x.nonzero().cpu().tolist() == [[0, 0], [1, 1]]
    assert x[x > 0].cpu().tolist() == [1.0, 2.0]
    assert torch.masked_select(x, x > 1).cpu().tolist() == [2.0]
    values, counts = torch.tensor([3, 1, 3], device="tpu").unique(return_counts=True)
    assert values.cpu().tolist() == [1, 3] and counts.cpu().tolist() == [1, 2]
    y = x.clone()
    y[y == 0] = 9
    assert y.cpu().tolist() == [[1, 9], [9, 2]]


def test_debug_mode_waits_and_gives_the_same():
    x = torch.randn(16, 16, device="tpu")
    want = (x @ x).relu().cpu()
    torch.tpu.set_mode("debug")
    try:
        assert torch.tpu.get_mode() == "debug"
        torch.testing.assert_close((x @ x).relu().cpu(), want, rtol=0, atol=0)
    finally:
        torch.tpu.set_mode("strict")
    with pytest.raises(ValueError, match="strict"):
        torch.tpu.set_mode("fast")


def test_threads_share_programs():
    results, errors = [], []

    def work(k):
        try:
            x = torch.full((7, 3), float(k), device="tpu")
            for _ in range(20):
                x = x * 1.0 + 1.0
            results.append((k, x.cpu()[0, 0].item()))
        except Exception as e:  # pragma: no cover - the assertion below shows it
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert sorted(results) == [(k, k + 20.0) for k in range(8)]


def test_device_index_out_of_range():
    with pytest.raises(RuntimeError):
        torch.ones(2, device="tpu:99")


def test_numpy_and_dlpack_refuse_like_cuda():
    x = torch.ones(2, device="tpu")
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_train_in_16_bits(dtype):
    """Their statistics are saved in f32, which the CPU's own backward kernels refuse."""
    functional = torch.nn.functional
    norms = (
        lambda x, w: functional.layer_norm(x, (8,), w, w),
        lambda x, w: functional.rms_norm(x, (8,), w),
        lambda x, w: functional.group_norm(x.transpose(1, 2), 2, w, w),
        lambda x, w: functional.batch_norm(x.transpose(1, 2), None, None, w, w, training=True),
        lambda x, w: functional.batch_norm(
            x.transpose(1, 2), w.detach().float() * 0, w.detach().float() * 0 + 1
        ),
        lambda x, w: functional.instance_norm(x.transpose(1, 2), weight=w),
    )
    for norm in norms:
        x = torch.randn(2, 4, 8, dtype=dtype)
        w = torch.rand(8, dtype=dtype)
        grads = []
        for device, wide in (("tpu", dtype), ("cpu", torch.float32)):
            xs, ws = (t.to(device, wide).requires_grad_() for t in (x, w))
            (norm(xs, ws) ** 2).sum().backward()
            grads.append([t.grad.float().cpu() for t in (xs, ws) if t.grad is not None])
        torch.testing.assert_close(grads[0], grads[1], rtol=0.05, atol=0.1)
