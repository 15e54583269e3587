"""What a worker process starts with: torch and the operator database, loaded once and shared by
forking.

Nothing here may touch the device: its client must be made by each worker for itself.
"""

from __future__ import annotations

import torch

# Before anything runs in parallel: a forked child must not inherit a pool of threads it does not
# have.
torch.set_num_threads(1)

from tests.conformance import check, items  # noqa: E402, F401


def describe(device: str) -> dict[str, str]:
    """Which torch and which device results come from; asking makes the device's client."""
    described = {"torch": str(torch.__version__), "device": device, "name": device}
    module = getattr(torch, device.partition(":")[0], None)
    if hasattr(module, "get_device_name"):
        try:
            described["name"] = str(module.get_device_name(0))
        except Exception as error:
            described["name"] = f"unknown ({type(error).__name__}: {error})"
    return described
