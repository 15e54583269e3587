"""DataLoader: workers that never touch the device, and batches in pinned memory."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


class _Squares(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        assert not torch.tpu.is_initialized() or torch.utils.data.get_worker_info() is None
        return torch.full((2,), float(i)) ** 2


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_batches_reach_the_device(context, pin_memory):
    torch.tpu.init()  # forked workers inherit a client that they must leave alone
    held = torch.ones(3).to("tpu")
    loader = DataLoader(
        _Squares(),
        batch_size=4,
        num_workers=0 if context is None else 2,
        multiprocessing_context=context,
        pin_memory=pin_memory,
    )
    batches = list(loader)
    assert all(batch.is_pinned() == pin_memory for batch in batches)
    on_device = torch.cat([batch.to("tpu", non_blocking=pin_memory) for batch in batches])
    assert on_device.cpu()[:, 0].tolist() == [float(i * i) for i in range(8)]
    assert held.cpu().sum() == 3
