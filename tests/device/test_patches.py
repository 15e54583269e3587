"""What is replaced in PyTorch is still there to be replaced, and does what it is for."""

import torch

import torchtpu_core


def test_printing_compiles_nothing():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    before = torchtpu_core.stats()
    text = repr(x)
    after = torchtpu_core.stats()
    assert text == repr(x.cpu())[:-1] + ", device='tpu:0')"
    for key in ("programs_compiled", "programs_loaded", "executions"):
        assert after[key] == before[key]


def test_summary_of_a_large_tensor():
    x = torch.zeros(5000, device="tpu")
    assert repr(x) == "tensor([0., 0., 0.,  ..., 0., 0., 0.], device='tpu:0')"
