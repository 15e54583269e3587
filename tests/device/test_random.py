"""Generators: seeding, state, reproducibility."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _keep_state():
    with torch.random.fork_rng(devices=range(torch.tpu.device_count()), device_type="tpu"):
        yield


def test_manual_seed_seeds_the_device():
    torch.manual_seed(11)
    assert torch.tpu.initial_seed() == 11
    torch.tpu.manual_seed(12)
    assert torch.tpu.initial_seed() == 12
    torch.tpu.manual_seed_all(13)
    assert torch.tpu.initial_seed() == torch.tpu.default_generators[0].initial_seed() == 13
    torch.tpu.seed()
    assert torch.tpu.initial_seed() != 13
    torch.tpu.seed_all()
    torch.tpu.manual_seed(-1)
    assert torch.tpu.initial_seed() == torch.Generator().manual_seed(-1).initial_seed()


def test_seed_reaches_devices_used_later(run_python):
    out = run_python(
        """
        import torch
        torch.manual_seed(5)
        assert not torch.tpu.is_initialized()
        print([g.initial_seed() for g in torch.tpu.default_generators])
        """,
        TORCHTPU_CPU_DEVICES="3",
    )
    assert out == "[5, 5, 5]"


def test_state_layout_and_round_trip():
    torch.tpu.manual_seed(0x1122334455667788)
    state = torch.tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    assert state[:8].view(torch.int64).item() == 0x1122334455667788
    assert state[8:].view(torch.int64).item() == 0
    state[8] = 40
    torch.tpu.set_rng_state(state, "tpu:0")
    assert torch.equal(torch.tpu.get_rng_state(0), state)
    generator = torch.tpu.default_generators[0]
    assert generator.get_offset() == 40
    generator.set_offset(44)
    assert torch.tpu.get_rng_state()[8] == 44
    torch.tpu.set_rng_state_all([state])
    assert torch.equal(torch.tpu.get_rng_state_all()[0], state)


def test_bad_states_are_refused():
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.tpu.set_rng_state(torch.zeros(7, dtype=torch.uint8))
    with pytest.raises((RuntimeError, TypeError), match="ByteTensor"):
        torch.tpu.set_rng_state(torch.zeros(16))


def test_own_generators():
    generator = torch.Generator("tpu")
    assert generator.device.type == "tpu"
    generator.manual_seed(7)
    copy = generator.clone_state()
    assert copy.initial_seed() == 7
    other = torch.Generator("tpu")
    other.set_state(generator.get_state())
    assert other.initial_seed() == 7


def test_fork_rng_restores():
    torch.tpu.manual_seed(21)
    before = torch.tpu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.manual_seed(99)
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_numbers_are_reproducible():
    torch.manual_seed(3)
    first = torch.rand(100, device="tpu")
    second = torch.rand(100, device="tpu")
    assert not torch.equal(first.cpu(), second.cpu())
    torch.manual_seed(3)
    assert torch.equal(torch.rand(100, device="tpu").cpu(), first.cpu())
    state = torch.tpu.get_rng_state()
    third = torch.randn(50, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.randn(50, device="tpu").cpu(), third.cpu())


def test_own_generators_draw_their_own_numbers():
    a, b = (torch.Generator("tpu").manual_seed(5) for _ in range(2))
    before = torch.tpu.get_rng_state()
    x = torch.rand(10, device="tpu", generator=a)
    assert torch.equal(torch.rand(10, device="tpu", generator=b).cpu(), x.cpu())
    assert torch.equal(torch.tpu.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(10, device="tpu", generator=torch.Generator("cpu"))


def test_checkpoint_replays_dropout():
    layer = torch.nn.Dropout(0.5)
    x = torch.ones(200, device="tpu", requires_grad=True)
    torch.utils.checkpoint.checkpoint(
        lambda t: layer(t) * 1.0, x, use_reentrant=False, preserve_rng_state=True
    ).sum().backward()
    grad = x.grad.cpu()
    assert set(grad.tolist()) == {0.0, 2.0}


def test_checkpoint_recomputes_what_it_computed():
    layer = torch.nn.Dropout(0.5)
    x = torch.ones(200, device="tpu", requires_grad=True)
    for reentrant in (True, False):
        x.grad = None
        out = torch.utils.checkpoint.checkpoint(lambda t: layer(t) ** 2, x, use_reentrant=reentrant)
        kept = out.detach().cpu() != 0
        out.sum().backward()
        assert torch.equal(x.grad.cpu() != 0, kept)
