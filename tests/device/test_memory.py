"""Memory statistics, through torch.tpu and torch.accelerator, and pinned host memory."""

import gc
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch


def _materialised(nbytes: int) -> torch.Tensor:
    """A tensor whose buffer exists: one copied from the host."""
    tensor = torch.ones(nbytes // 4).to("tpu")
    torch.tpu.synchronize()
    return tensor


def test_keys_are_those_of_cuda():
    stats = torch.tpu.memory_stats()
    for figure in ("allocation", "active", "segment", "inactive_split"):
        for pool in ("all", "small_pool", "large_pool"):
            for reading in ("current", "peak", "allocated", "freed"):
                assert f"{figure}.{pool}.{reading}" in stats
    for key in (
        "allocated_bytes.all.current",
        "active_bytes.all.peak",
        "reserved_bytes.all.peak",
        "requested_bytes.all.allocated",
        "num_alloc_retries",
        "num_ooms",
    ):
        assert isinstance(stats[key], int)
    assert torch.tpu.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] >= 0


def test_counts_follow_tensors():
    gc.collect()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    x = _materialised(1 << 20)
    assert torch.tpu.memory_allocated() - before == 1 << 20
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    y = _materialised(1 << 20)
    del x
    assert torch.tpu.memory_allocated() - before == 1 << 20
    assert torch.tpu.max_memory_allocated() - before >= 2 << 20
    assert torch.accelerator.max_memory_allocated() == torch.tpu.max_memory_allocated()
    del y
    assert torch.tpu.memory_allocated() == before
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == before == torch.tpu.max_memory_reserved()


def test_empty_takes_no_memory_until_written():
    before = torch.tpu.memory_allocated()
    x = torch.empty(1 << 20, device="tpu")
    assert torch.tpu.memory_allocated() == before
    x.fill_(1)  # the value itself may stay on the device as well, for the next time
    assert 4 << 20 <= torch.tpu.memory_allocated() - before < (4 << 20) + 1024


def test_views_share_memory():
    x = _materialised(1 << 16)
    before = torch.tpu.memory_allocated()
    views = [x[:10], x.view(2, -1), x.detach(), x.unsqueeze(0)]
    assert torch.tpu.memory_allocated() == before
    del views


def test_accumulated_statistics_reset():
    _materialised(1 << 12)
    torch.accelerator.reset_accumulated_memory_stats()
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["num_device_alloc"] == 0
    _materialised(1 << 12)
    assert torch.tpu.memory_stats()["allocated_bytes.all.allocated"] >= 1 << 12
    torch.tpu.reset_accumulated_memory_stats()
    torch.accelerator.reset_peak_memory_stats()


def test_info_and_summary():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    assert torch.accelerator.get_memory_info()[1] == total
    assert torch.tpu.device_memory_used() > 0
    summary = torch.tpu.memory_summary()
    assert "Allocated memory" in summary and "Peak" in summary
    assert len(torch.tpu.memory_summary(abbreviated=True)) < len(summary)


def test_caches_can_be_emptied():
    torch.tpu.empty_cache()
    torch.tpu.empty_host_cache()
    torch.tpu.ipc_collect()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()


def test_pinned_memory():
    x = torch.arange(10.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[4:].is_pinned() and torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert not pinned.clone().is_pinned()
    assert not torch.empty(0).is_pinned()


@pytest.mark.parametrize("non_blocking", [False, True])
def test_transfers_of_pinned_memory(non_blocking):
    pinned = torch.arange(1000.0).pin_memory()
    on_device = pinned.to("tpu", non_blocking=non_blocking)
    torch.tpu.synchronize()
    pinned.zero_()
    assert torch.equal(on_device.cpu(), torch.arange(1000.0))
    back = torch.empty(1000, pin_memory=True)
    back.copy_(on_device, non_blocking=non_blocking)
    torch.tpu.synchronize()
    assert torch.equal(back, torch.arange(1000.0))
    assert not on_device.is_pinned()


def test_device_tensors_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(2, device="tpu").pin_memory()


_HEAP = """
import time, torch
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096 >> 20
def settled(seconds, step=lambda: None):
    # buffers are freed on a thread of XLA's, soon
    end = time.monotonic() + seconds
    while resident() > base + 200 and time.monotonic() < end:
        time.sleep(0.05)
        step()
    return resident() - base
torch.ones(1, device="tpu").item()
base = resident()
x = torch.ones(64 << 20, device="tpu") + 1
torch.tpu.synchronize()
del x
print(settled({seconds}), settled(60, torch.tpu.empty_cache))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
@pytest.mark.parametrize("ours", [True, False])
def test_freed_memory_stays_until_the_cache_is_emptied(run_python: Callable[..., str], ours: bool):
    theirs = {} if ours else {"MALLOC_TOP_PAD_": "131072"}
    script = _HEAP.replace("{seconds}", "1" if ours else "60")
    kept, left = map(int, run_python(script, **theirs).split())
    assert (kept > 200) == ours  # of 256 MiB
    assert left < 200


_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HUGE_PAGES = """
import torch

def advised():
    # MiB of memory for which huge pages were asked for
    total = size = 0
    for line in open("/proc/self/smaps"):
        if line.startswith("Size:"):
            size = int(line.split()[1])
        elif line.startswith("VmFlags:") and "hg" in line.split():
            total += size
    return total >> 10

small = [torch.ones(1 << 17).to("tpu") for _ in range(64)]
computed = torch.ones(16 << 20, device="tpu") + 1
torch.tpu.synchronize()
before = advised()
model = torch.nn.Linear(4096, 4096, bias=False)
expected = model.weight.detach().clone()
model.to("tpu")
after = advised()
assert torch.equal(model.weight.detach().cpu(), expected)
weight = model.weight.detach()
allocated = torch.tpu.memory_allocated()
torch.tpu.reset_peak_memory_stats()
weight.mul_(2)  # in place, by donation
torch.tpu.synchronize()
assert torch.equal(weight.cpu(), expected * 2)
assert torch.tpu.max_memory_allocated() - allocated < 1 << 20
print(before, after)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
@pytest.mark.skipif(
    not _POLICY.exists() or "[never]" in _POLICY.read_text(),
    reason="the system has no transparent huge pages",
)
@pytest.mark.parametrize("ours", [True, False])
def test_large_copies_have_huge_pages(run_python: Callable[..., str], ours: bool):
    theirs = {} if ours else {"MALLOC_TOP_PAD_": "131072"}
    before, after = map(int, run_python(_HUGE_PAGES, **theirs).split())
    assert before == 0
    assert after == 0 if not ours else 64 <= after < 80  # of 64 MiB
