"""Storage, views and in-place writes: every tensor that shares a storage sees the same bytes, as on
CPU.
"""

import pytest
import torch

VIEWS = {
    "whole": lambda x: x,
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:3],
    "column": lambda x: x[:, 2],
    "step": lambda x: x[::2, 1::2],
    "select": lambda x: x[1],
    "reshape": lambda x: x.view(2, 12),
    "flat": lambda x: x.view(-1)[3:17],
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 3), (7, 2), 1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "narrow of transpose": lambda x: x.t().narrow(0, 1, 3),
    "unsqueeze": lambda x: x[:, None, 1:],
    "split": lambda x: x.split(3, dim=1)[1],
    "permuted view": lambda x: x.view(2, 2, 6).permute(2, 0, 1)[1:4],
}


def pair(*shape, dtype=torch.float32):
    cpu = torch.arange(4 * 6, dtype=dtype).reshape(shape or (4, 6)).clone()
    return cpu, cpu.to("tpu")


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_view_reads(view):
    cpu, tpu = pair()
    want, got = view(cpu), view(tpu)
    assert got.stride() == want.stride() and got.storage_offset() == want.storage_offset()
    assert got.untyped_storage().data_ptr() == tpu.untyped_storage().data_ptr()
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close((got * 2 + 1).cpu(), want * 2 + 1)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.add_(10),
        lambda v: v.zero_(),
        lambda v: v.copy_(torch.full_like(v, 7)),
        lambda v: v.mul_(v),
        lambda v: v.fill_(3.5),
    ],
    ids=["add_", "zero_", "copy_", "mul_self", "fill_"],
)
def test_write_through_view(view, write):
    cpu, tpu = pair()
    other = tpu.view(-1)
    write(view(cpu))
    write(view(tpu))
    torch.testing.assert_close(tpu.cpu(), cpu)
    torch.testing.assert_close(other.cpu(), cpu.view(-1))


def test_two_views_in_one_op():
    cpu, tpu = pair()
    cpu[0].add_(cpu[1])
    tpu[0].add_(tpu[1])
    torch.testing.assert_close(tpu.cpu(), cpu)
    torch.add(cpu[:2], cpu[2:], out=cpu[1:3].clone())
    torch._foreach_add_([tpu[0], tpu[2]], [tpu[1], tpu[3]])
    torch._foreach_add_([cpu[0], cpu[2]], [cpu[1], cpu[3]])
    torch.testing.assert_close(tpu.cpu(), cpu)


def test_out_aliases_and_resizes():
    cpu, tpu = pair()
    out = torch.empty(4, 6, device="tpu")
    result = torch.add(tpu, 1, out=out)
    assert result is out
    torch.testing.assert_close(out.cpu(), cpu + 1)
    small = torch.empty(0, device="tpu")
    torch.add(tpu, 1, out=small)
    assert small.shape == (4, 6)
    torch.testing.assert_close(small.cpu(), cpu + 1)
    strided = torch.zeros(6, 8, device="tpu").t()[:6:2, :]
    want = torch.zeros(6, 8).t()[:6:2, :]
    torch.mul(tpu[:3], 2, out=strided)
    torch.mul(cpu[:3], 2, out=want)
    assert strided.stride() == want.stride()
    torch.testing.assert_close(strided.cpu(), want)


def test_out_of_other_dtype():
    out = torch.empty(3, device="tpu", dtype=torch.float64)
    torch.add(torch.ones(3, device="tpu"), 1, out=out)
    assert out.dtype == torch.float64 and out.cpu().tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(
            torch.ones(3, device="tpu"), 0.5, out=torch.empty(3, device="tpu", dtype=torch.long)
        )


def test_resize():
    cpu, tpu = pair()
    for t in (cpu, tpu):
        t.resize_(2, 3)
    torch.testing.assert_close(tpu.cpu(), cpu)
    tpu.resize_(4, 6)  # within the storage: the old values are still there
    torch.testing.assert_close(tpu.cpu(), torch.arange(24.0).reshape(4, 6))
    view = tpu.view(-1)
    tpu.resize_(8, 6)
    assert tpu.untyped_storage().nbytes() == 8 * 6 * 4
    torch.testing.assert_close(tpu[:4].cpu(), torch.arange(24.0).reshape(4, 6))
    tpu[0, 0] = 99
    assert view[0].item() == 99


def test_storage_resize_to_nothing_and_back():
    t = torch.ones(8, device="tpu")
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(32)
    t.fill_(2)
    assert t.cpu().tolist() == [2.0] * 8


def test_set():
    a = torch.arange(6.0, device="tpu")
    b = torch.empty(0, device="tpu")
    b.set_(a.untyped_storage(), 2, (2, 2), (2, 1))
    assert b.cpu().tolist() == [[2, 3], [4, 5]]
    b.add_(1)
    assert a.cpu().tolist() == [0, 1, 3, 4, 5, 6]
    c = torch.empty(0, device="tpu").set_(a)
    assert c.data_ptr() == a.data_ptr()


@pytest.mark.parametrize("to", [torch.int32, torch.int16, torch.int64, torch.uint8, torch.bfloat16])
def test_dtype_view(to):
    cpu, tpu = pair()
    torch.testing.assert_close(tpu.view(to).cpu(), cpu.view(to))
    cpu.view(to)[1].fill_(3)
    tpu.view(to)[1].fill_(3)
    torch.testing.assert_close(tpu.cpu(), cpu, equal_nan=True)


def test_complex_views():
    cpu = torch.randn(3, 4, dtype=torch.complex64)
    tpu = cpu.to("tpu")
    torch.testing.assert_close(torch.view_as_real(tpu).cpu(), torch.view_as_real(cpu))
    torch.view_as_real(tpu)[..., 0].mul_(2)
    torch.view_as_real(cpu)[..., 0].mul_(2)
    torch.testing.assert_close(tpu.cpu(), cpu)
    tpu.imag.zero_()
    cpu.imag.zero_()
    torch.testing.assert_close(tpu.cpu(), cpu)
    torch.testing.assert_close(tpu.conj().cpu(), cpu.conj())
    torch.testing.assert_close((tpu.conj() * tpu).cpu(), cpu.conj() * cpu)
    pairs = torch.randn(5, 2)
    torch.testing.assert_close(
        torch.view_as_complex(pairs.to("tpu")).cpu(), torch.view_as_complex(pairs)
    )


def test_clone_does_not_alias():
    a = torch.zeros(4, device="tpu")
    b = a.clone()
    b.add_(1)
    assert a.cpu().tolist() == [0] * 4 and b.cpu().tolist() == [1] * 4
    a.add_(5)
    assert a.cpu().tolist() == [5] * 4 and b.cpu().tolist() == [1] * 4


@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format])
def test_memory_format(format):
    cpu = torch.randn(2, 3, 4, 5).contiguous(memory_format=format)
    tpu = cpu.to("tpu")
    assert tpu.stride() == cpu.stride()
    torch.testing.assert_close(tpu.cpu(), cpu)
    assert (tpu + 1).stride() == (cpu + 1).stride()
    back = tpu.contiguous(memory_format=torch.channels_last)
    assert back.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(back.cpu(), cpu)


def test_uninitialised_memory_launches_nothing():
    import torchtpu_core

    before = torchtpu_core.stats()["executions"]
    t = torch.empty(3, 4, device="tpu")
    t.view(-1)[2:5]
    assert torchtpu_core.stats()["executions"] == before
    t[1].fill_(2)
    assert t[1].cpu().tolist() == [2] * 4


def test_in_place_reuses_the_buffer():
    x = torch.ones(1 << 20, device="tpu")
    x.add_(1)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    start = torch.tpu.memory_allocated()
    for _ in range(4):
        x.mul_(2)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == start
    assert x[0].item() == 32


def test_version_counter_and_saved_tensors():
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_autograd_through_views_and_in_place():
    def f(x):
        y = x * 1
        y[1:3].mul_(2)
        y.t()[0].add_(x[:, 1])
        return (y * torch.arange(y.numel(), device=x.device).view_as(y)).sum()

    cpu, tpu = pair()
    cpu.requires_grad_()
    tpu.requires_grad_()
    f(cpu).backward()
    f(tpu).backward()
    torch.testing.assert_close(tpu.grad.cpu(), cpu.grad)


def test_data_ptr_tells_tensors_apart():
    a, b = torch.empty(4, device="tpu"), torch.empty(4, device="tpu")
    assert a.data_ptr() != b.data_ptr() != 0
    assert a[1:].data_ptr() == a.data_ptr() + 4
