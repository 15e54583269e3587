"""Devices: registration, when the client is created, the current device, names and properties."""

import time

import numpy as np
import pytest
import torch

import torchtpu_core


def test_names():
    assert torch.device("tpu").type == "tpu"
    assert torch.device("tpu:1").index == 1
    assert torch.tpu is torchtpu_core.tpu
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch._C._get_privateuse1_backend_name() == "tpu"
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    for cls in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
        assert hasattr(cls, "tpu")
    assert not torch.ones(1).is_tpu
    assert torchtpu_core.__version__


def test_import_and_host_work_create_no_client(run_python):
    out = run_python(
        """
        import sys, torch
        torch.manual_seed(1)
        torch.tpu.manual_seed_all(2)
        torch.Generator("tpu").manual_seed(3)
        torch.tpu.Event(enable_timing=True).record()
        x = torch.ones(3, requires_grad=True)
        (x * x).sum().backward()
        assert torch.tpu.is_available() and torch.accelerator.is_available()
        assert torch.tpu.device_count() == 2
        assert not torch.tpu.is_initialized()
        assert not any(m.startswith(("torchtpu_core.lowering", "rich", "jax")) for m in sys.modules)
        assert "xla_cpu_pjrt.so" not in open("/proc/self/maps").read()
        torch.tpu.init()
        print(torch.tpu.is_initialized(), torch.tpu.device_count())
        """,
        TORCHTPU_CPU_DEVICES="2",
    )
    assert out == "True 2"


@pytest.mark.parametrize("order", ["torch", "torchtpu_core"])
def test_either_import_comes_first(run_python, order):
    script = f"import {order}, torch, torchtpu_core; print(torch.device('tpu'), torch.tpu.__name__)"
    assert run_python(script) == "tpu torchtpu_core.tpu"


def test_without_autoload(run_python):
    script = """
        import torch
        assert not hasattr(torch, "tpu")
        import torchtpu_core
        print(torch.tpu.is_available())
    """
    assert run_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "True"


def test_import_is_cheap(run_python):
    script = """
        import time, resource, torch
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        import torchtpu_core
        took = time.perf_counter() - start
        print(took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    """
    runs = [run_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() for _ in range(3)]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    assert min(float(mib) for _, mib in runs) < 20


def test_several_devices(run_python):
    out = run_python(
        """
        import torch, threading
        assert torch.accelerator.device_count() == 3
        assert torch.tpu.current_device() == 0
        torch.tpu.set_device(2)
        assert torch.accelerator.current_device_index() == 2
        with torch.tpu.device("tpu:1"):
            assert torch.tpu.current_device() == 1
            with torch.tpu.device(None), torch.accelerator.device_index(0):
                assert torch.tpu.current_device() == 0
            assert torch.tpu.current_stream().device == torch.device("tpu:1")
        assert torch.tpu.current_device() == 2
        torch.tpu.set_device(-1)
        assert torch.tpu.current_device() == 2
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_device()))
        thread.start(); thread.join()
        assert seen == [0]
        assert torch.tpu.can_device_access_peer(0, 1) and not torch.tpu.can_device_access_peer(1, 1)
        stream = torch.tpu.Stream(device="tpu:1")
        with torch.tpu.stream(stream):
            assert torch.tpu.current_device() == 1
            assert torch.tpu.current_stream() == stream
        assert torch.tpu.current_device() == 2
        assert torch.tpu.current_stream("tpu:1") == torch.tpu.default_stream(1)
        print([g.device.index for g in torch.tpu.default_generators])
        """,
        TORCHTPU_CPU_DEVICES="3",
    )
    assert out == "[0, 1, 2]"


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.tpu.set_device(99),
        lambda: torch.tpu.synchronize("tpu:99"),
        lambda: torch.tpu.get_device_name(99),
        lambda: torch.tpu.device(99).__enter__(),
        lambda: torch.tpu.mem_get_info(99),
    ],
)
def test_index_out_of_range(use):
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        use()


def test_accelerator_index_out_of_range():
    torch.tpu.init()
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        torch.accelerator.set_device_index(99)


def test_senseless_settings_are_refused(run_python):
    out = run_python(
        """
        import torch
        for use in (torch.tpu.device_count, lambda: torch.ones(1, device="tpu")):
            try:
                use()
            except ValueError as error:
                print("TORCHTPU_CPU_DEVICES" in str(error), end=" ")
        print(torch.tpu.is_available())
        """,
        TORCHTPU_CPU_DEVICES="-3",
    )
    assert out == "True True False"


def test_plugin_that_does_not_load(run_python, tmp_path):
    plugin = tmp_path / "libnothing.so"
    plugin.write_bytes(b"not a library")
    out = run_python(
        """
        import torch
        try:
            torch.ones(1, device="tpu")
        except RuntimeError as error:
            print(error)
        """,
        TORCHTPU_PJRT_PLUGIN=str(plugin),
    )
    assert str(plugin) in out


def test_not_a_tpu():
    with pytest.raises(ValueError, match="Expected a tpu device, but got: cuda:0"):
        torch.tpu.set_device("cuda:0")
    with pytest.raises(TypeError):
        torch.tpu.set_device(1.5)


def test_properties():
    properties = torch.tpu.get_device_properties(0)
    assert properties.name == torch.tpu.get_device_name(0) == torch.tpu.get_device_name("tpu:0")
    assert properties.name.startswith("TPU")
    assert properties.total_memory == torch.tpu.mem_get_info(0)[1] > 0
    capability = torch.tpu.get_device_capability()
    assert capability == (properties.major, properties.minor)
    assert properties.multi_processor_count >= 1
    assert properties.platform in ("cpu", "tpu")


@pytest.mark.parametrize(
    ("kind", "name", "capability"),
    [
        ("TPU v4", "TPU v4", (4, 1)),
        ("TPU v5 lite", "TPU v5e", (5, 0)),
        ("TPU v5", "TPU v5p", (5, 1)),
        ("TPU v6 lite", "TPU v6e", (6, 0)),
        ("TPU7x", "TPU v7x", (7, 1)),
    ],
)
def test_product_names(kind, name, capability):
    assert torch.tpu._device_name(kind, "tpu") == name
    assert torch.tpu._capability(name) == capability


def test_capability_lists_dtypes():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= dtypes
    assert torch.quint8 not in dtypes


def test_synchronize_without_work_is_quick():
    torch.tpu.init()
    start = time.perf_counter()
    for _ in range(100):
        torch.tpu.synchronize()
        torch.accelerator.synchronize()
    assert time.perf_counter() - start < 1


def test_tensors_on_the_device():
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    y = x.to("tpu")
    assert y.is_tpu and y.device == torch.device("tpu:0") and y.get_device() == 0
    assert torch.equal(y.cpu(), x)
    assert torch.equal(x.tpu().cpu(), x)
    assert torch.equal(x.to("tpu", non_blocking=True).cpu(), x)
    assert y.to("tpu") is y
    with torch.tpu.device_of(y):
        assert torch.tpu.current_device() == 0


def test_addresses_tell_tensors_apart():
    a, b = torch.empty(10, device="tpu"), torch.empty(10, device="tpu")
    assert a.data_ptr() != b.data_ptr() and a.data_ptr() != 0
    assert a[3:].data_ptr() == a.data_ptr() + 12
    assert abs(a.data_ptr() - b.data_ptr()) >= 40
    assert torch.empty(0, device="tpu").data_ptr() == 0


def test_default_device():
    with torch.device("tpu"):
        assert torch.zeros(2).is_tpu
    torch.set_default_device("tpu")
    try:
        assert torch.ones(2).is_tpu
        assert torch.nn.Linear(2, 2).weight.is_tpu
    finally:
        torch.set_default_device(None)


def test_modules_move():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    expected = {k: v.clone() for k, v in model.state_dict().items()}
    for moved in (model.to("tpu"), model.tpu()):
        assert all(t.is_tpu for t in moved.state_dict().values())
    assert all(torch.equal(v.cpu(), expected[k]) for k, v in model.state_dict().items())
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(model.state_dict())
    assert all(torch.equal(v, expected[k]) for k, v in other.state_dict().items())


def test_numpy_errors():
    x = torch.ones(2, device="tpu")
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        np.asarray(x)


def test_dlpack():
    x = torch.arange(3.0, device="tpu")
    with pytest.raises(RuntimeError, match="Unsupported device"):
        np.from_dlpack(x)
    same = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    same.add_(1)
    assert x.cpu().tolist() == [1.0, 2.0, 3.0]
    del x
    assert same.cpu().tolist() == [1.0, 2.0, 3.0]
