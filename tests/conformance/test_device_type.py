"""PyTorch's device-generic tests on `tpu`: PrivateUse1TestBase, @ops, @dtypes, @onlyOn and friends
work as on cuda.
"""

from __future__ import annotations

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    PrivateUse1TestBase,
    dtypes,
    instantiate_device_type_tests,
    onlyPRIVATEUSE1,
    ops,
    tol,
    toleranceOverride,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, parametrize

_SHAPED = {"add", "mul", "matmul", "sum", "softmax", "where", "cat", "transpose"}
_OPS = [op for op in op_db if op.name in _SHAPED and not op.variant_test_name]


class TestDeviceGeneric(TestCase):
    """A handful of tests written as PyTorch writes its own."""

    def test_device_is_tpu(self, device: str) -> None:
        self.assertIsInstance(self, PrivateUse1TestBase)
        self.assertEqual(torch.device(device).type, "tpu")
        self.assertEqual(torch.empty(2, device=device).device, torch.device(device))

    @onlyPRIVATEUSE1
    @dtypes(torch.float32, torch.bfloat16, torch.int64, torch.bool)
    def test_round_trip(self, device: str, dtype: torch.dtype) -> None:
        on_cpu = make_tensor((3, 5), device="cpu", dtype=dtype)
        self.assertEqual(on_cpu.to(device).cpu(), on_cpu, rtol=0, atol=0)

    @dtypes(torch.float32, torch.int32)
    @parametrize("keepdim", [True, False])
    def test_sum(self, device: str, dtype: torch.dtype, keepdim: bool) -> None:
        value = make_tensor((4, 3), device=device, dtype=dtype)
        self.assertEqual(value.sum(1, keepdim=keepdim), value.cpu().sum(1, keepdim=keepdim))

    @ops(_OPS, allowed_dtypes=(torch.float32, torch.int64))
    @toleranceOverride({torch.float32: tol(atol=1e-5, rtol=1e-4)})
    def test_op_against_cpu(self, device: str, dtype: torch.dtype, op) -> None:
        def on_cpu(value: object) -> object:
            return value.cpu() if isinstance(value, torch.Tensor) else value

        for sample in list(op.sample_inputs(device, dtype))[:3]:
            plain = sample.transform(on_cpu)
            actual = op(sample.input, *sample.args, **sample.kwargs)
            expected = op(plain.input, *plain.args, **plain.kwargs)
            self.assertEqual(actual, expected)

    @ops(_OPS, allowed_dtypes=(torch.float32,))
    def test_gradient_reaches_inputs(self, device: str, dtype: torch.dtype, op) -> None:
        sample = next(iter(op.sample_inputs(device, dtype, requires_grad=True)))
        op(sample.input, *sample.args, **sample.kwargs).sum().backward()
        leaf = sample.input if isinstance(sample.input, torch.Tensor) else sample.input[0]
        self.assertEqual(leaf.grad.device, leaf.device)


instantiate_device_type_tests(TestDeviceGeneric, globals(), only_for=("tpu", "privateuse1"))


def test_tests_were_made_for_tpu() -> None:
    """Without the device, PyTorch makes no tests from the class above, and says nothing."""
    made = [name for name in globals() if name.startswith("TestDeviceGeneric")]
    assert made, "PyTorch does not see the device tpu"
