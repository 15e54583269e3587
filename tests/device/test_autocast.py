"""AMP: autocast's lists and types, GradScaler."""

import pytest
import torch


def test_defaults():
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    assert torch.amp.is_autocast_available("tpu")
    assert torch.tpu.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    assert torch.tpu.is_bf16_supported()
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        with torch.autocast("tpu", enabled=False):
            assert not torch.is_autocast_enabled("tpu")
    assert not torch.is_autocast_enabled("tpu")
    from torch.tpu.amp import GradScaler, autocast

    with autocast(dtype=torch.float16):
        assert torch.get_autocast_dtype("tpu") == torch.float16
    assert issubclass(GradScaler, torch.amp.GradScaler)


def test_unsupported_type_disables_autocast():
    with pytest.warns(UserWarning, match="target dtype is not supported"):
        context = torch.autocast("tpu", dtype=torch.float64)
    with context:
        assert not torch.is_autocast_enabled("tpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_ops(dtype):
    a, w = torch.ones(4, 4, device="tpu"), torch.ones(4, 4, device="tpu")
    with torch.autocast("tpu", dtype=dtype):
        assert torch.mm(a, w).dtype == dtype
        assert torch.nn.functional.linear(a, w).dtype == dtype
        assert (a @ w).dtype == dtype
        assert (a + w).dtype == torch.float32
    assert torch.mm(a, w).dtype == torch.float32


def test_full_precision_and_promoting_ops():
    half = torch.ones(4, 4, device="tpu", dtype=torch.bfloat16)
    with torch.autocast("tpu"):
        assert half.exp().dtype == torch.float32
        assert torch.nn.functional.layer_norm(half, (4,)).dtype == torch.float32
        assert half.sum().dtype == torch.float32
        assert half.softmax(-1).dtype == torch.float32
        assert half.sum(dtype=torch.float64).dtype == torch.float64
        assert half.norm().dtype == torch.float32
        assert torch.addcmul(half.float(), half, half).dtype == torch.float32
        assert torch.cat([half, half.float()]).dtype == torch.float32


def test_binary_cross_entropy_is_refused():
    p, t = torch.full((3,), 0.5, device="tpu"), torch.ones(3, device="tpu")
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(p, t)


def test_training_with_grad_scaler():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0)
    x, y = torch.randn(32, 8).to("tpu"), torch.randn(32, 1).to("tpu")
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("tpu", dtype=torch.float16):
            out = model(x)
        assert out.dtype == torch.float16
        loss = torch.nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 1024.0


def test_grad_scaler_skips_steps_that_overflow():
    w = torch.ones(2, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.tpu.amp.GradScaler(init_scale=8.0)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(w.detach().cpu(), torch.ones(2))
    assert scaler.get_scale() == 4.0
