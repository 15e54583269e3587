"""Clients, devices, buffers, executables and errors, on the CPU plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.pjrt import programs
from torchtpu_core import _C

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def to_numpy(buffer: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.frombuffer(buffer.to_bytes(), dtype=dtype).reshape(buffer.dims)


def test_plugin(cpu_plugin: Any) -> None:
    assert cpu_plugin.api_version >= (0, 40)
    assert "stablehlo_current_version" in cpu_plugin.attributes
    assert cpu_plugin.fingerprint.startswith("xla_cpu_pjrt.so;")
    assert _C.pjrt.load_plugin(cpu_plugin.path) is cpu_plugin


def test_client_and_device(client: Any) -> None:
    assert client.platform_name == "cpu"
    assert client.num_global_devices == len(client.devices) == 1
    (device,) = client.devices
    assert (device.id, device.process_index, device.kind) == (0, 0, "cpu")
    stats = device.memory_stats()
    assert stats is None or stats["bytes_in_use"] >= 0
    assert client.fingerprint.startswith("xla_cpu_pjrt.so;")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("i1", np.bool_),
        ("i8", np.int8),
        ("i16", np.int16),
        ("i32", np.int32),
        ("i64", np.int64),
        ("ui8", np.uint8),
        ("ui16", np.uint16),
        ("ui32", np.uint32),
        ("ui64", np.uint64),
        ("f16", np.float16),
        ("bf16", np.uint16),  # by its bits
        ("f32", np.float32),
        ("f64", np.float64),
        ("f8E4M3FN", np.uint8),
        ("f8E5M2", np.uint8),
        ("complex<f32>", np.complex64),
        ("complex<f64>", np.complex128),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_round_trip(client: Any, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    value = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    buffer = client.buffer(value, name)
    assert (buffer.type, buffer.dims) == (name, shape)
    assert np.array_equal(to_numpy(buffer, dtype), value)


def test_host_data_is_copied_at_once(client: Any) -> None:
    value = np.ones(1000, np.float32)
    buffer = client.buffer(value, "f32")
    value[:] = 2
    assert to_numpy(buffer).max() == 1


def test_to_host_writes_into_an_array(client: Any) -> None:
    out = np.empty((2, 3), np.float32)
    client.buffer(X, "f32").to_host(out)
    assert np.array_equal(out, X)


def test_execute(client: Any) -> None:
    program = client.compile(programs.TRANSPOSE_AND_SUM)
    assert program.outputs == [("f32", (3, 2)), ("f32", ())]
    transposed, total = program.execute([client.buffer(X, "f32")], device=0)
    transposed.wait()
    assert transposed.is_ready()
    assert np.array_equal(to_numpy(transposed), X.T)
    assert to_numpy(total) == X.sum()


def test_outputs_feed_further_executions(client: Any) -> None:
    program = client.compile(programs.DOUBLE)
    value = client.buffer(X, "f32")
    for _ in range(10):
        (value,) = program.execute([value], device=client.devices[0])
    assert np.array_equal(to_numpy(value), X * 1024)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_program_as_str_or_bytes(client: Any, as_bytes: bool) -> None:
    text = programs.DOUBLE.encode() if as_bytes else programs.DOUBLE
    assert client.compile(text).num_outputs == 1


def test_donation_deletes_the_argument(client: Any) -> None:
    program = client.compile(programs.DOUBLE_DONATED)
    value = client.buffer(X, "f32")
    (out,) = program.execute([value], device=0)
    assert np.array_equal(to_numpy(out), X * 2)
    assert value.is_deleted
    with pytest.raises(RuntimeError):
        value.to_bytes()


def test_donation_can_be_refused_at_the_call(client: Any) -> None:
    program = client.compile(programs.DOUBLE_DONATED)
    value = client.buffer(X, "f32")
    (out,) = program.execute([value], device=0, non_donatable=[0])
    assert np.array_equal(to_numpy(out), X * 2)
    assert not value.is_deleted
    assert np.array_equal(to_numpy(value), X)


def test_no_donation_unless_the_program_says_so(client: Any) -> None:
    value = client.buffer(X, "f32")
    client.compile(programs.DOUBLE).execute([value], device=0)
    assert not value.is_deleted


def test_delete(client: Any) -> None:
    value = client.buffer(X, "f32")
    value.delete()
    assert value.is_deleted
    with pytest.raises(RuntimeError):
        client.compile(programs.DOUBLE).execute([value], device=0)[0].wait()


def test_uninitialized_buffer(client: Any) -> None:
    buffer = client.uninitialized_buffer("f32", [2, 3])
    assert (buffer.type, buffer.dims, len(buffer.to_bytes())) == ("f32", (2, 3), 24)


def test_serialized_executable_runs_again(client: Any) -> None:
    payload = client.compile(programs.DOUBLE_DONATED).serialize()
    program = client.deserialize(payload)
    assert program.outputs == [("f32", (2, 3))]
    value = client.buffer(X, "f32")
    (out,) = program.execute([value], device=0)
    assert np.array_equal(to_numpy(out), X * 2)
    assert value.is_deleted


def test_serialized_executable_runs_in_another_process(
    client: Any, tmp_path: Any, run_python: Callable[..., Any]
) -> None:
    path = tmp_path / "program"
    path.write_bytes(client.compile(programs.DOUBLE).serialize())
    run_python(f"""
        import numpy as np
        from torchtpu_core import _C, plugin
        client = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path())).create_client()
        assert client.fingerprint == {client.fingerprint!r}
        program = client.deserialize(open({str(path)!r}, "rb").read())
        (out,) = program.execute([client.buffer(np.ones((2, 3), np.float32), "f32")], device=0)
        assert out.to_bytes() == np.full((2, 3), 2, np.float32).tobytes()
    """)


def test_damaged_serialized_executable_is_an_error(client: Any) -> None:
    payload = client.compile(programs.DOUBLE).serialize()
    for damaged in (b"", b"nonsense", payload[: len(payload) // 2]):
        with pytest.raises(_C.PjrtError):
            client.deserialize(damaged)


def test_inspection(client: Any) -> None:
    program = client.compile(programs.DOUBLE)
    kind, code = program.optimized_program()
    assert kind.startswith("hlo") and len(code) > 0
    stats = program.memory_stats()
    assert (stats["arguments"], stats["outputs"]) == (24, 24)
    assert program.cost_analysis()["flops"] == 6
    same = client.compile(programs.DOUBLE)
    other = client.compile(programs.TRANSPOSE_AND_SUM)
    assert program.fingerprint == same.fingerprint != other.fingerprint


def test_overrides_reach_the_compiler(client: Any) -> None:
    options = _C.pjrt.CompileOptions(overrides={"xla_cpu_enable_fast_math": True})
    assert client.compile(programs.DOUBLE, options).num_outputs == 1
    with pytest.raises(_C.PjrtError, match="no_such_flag"):
        client.compile(programs.DOUBLE, _C.pjrt.CompileOptions(overrides={"no_such_flag": 1}))


def test_options_are_deterministic() -> None:
    def make(**kwargs: Any) -> bytes:
        return _C.pjrt.CompileOptions(**kwargs).serialize()

    assert make() == make()
    assert make(num_replicas=2) != make()
    assert make(overrides={"a": 1, "b": 2}) == make(overrides={"b": 2, "a": 1})


class TestErrors:
    def test_invalid_program(self, client: Any) -> None:
        with pytest.raises(_C.PjrtError, match="'this' is unknown"):
            client.compile("module { this is no program }")

    def test_code_and_message_are_the_plugin_s(self, client: Any) -> None:
        with pytest.raises(_C.PjrtError) as error:
            client.compile(programs.DOUBLE, format="punched cards")
        assert error.value.code == "InvalidArgument"
        assert str(error.value).startswith("InvalidArgument: ")
        assert "punched cards" in str(error.value)

    def test_wrong_number_of_arguments(self, client: Any) -> None:
        program = client.compile(programs.DOUBLE)
        with pytest.raises(_C.PjrtError):
            program.execute([], device=0)

    def test_wrong_shape_of_argument(self, client: Any) -> None:
        program = client.compile(programs.DOUBLE)
        with pytest.raises(_C.PjrtError):
            program.execute([client.buffer(X.reshape(-1)[:5].copy(), "f32")], device=0)[0].wait()

    def test_unimplemented_is_not_implemented_error(self) -> None:
        assert issubclass(_C.PjrtUnimplementedError, NotImplementedError)
        assert issubclass(_C.PjrtUnimplementedError, _C.PjrtError)
        assert issubclass(_C.PjrtError, RuntimeError)

    def test_device_out_of_range(self, client: Any) -> None:
        with pytest.raises(IndexError) as error:
            client.buffer(X, "f32", 7)
        assert isinstance(error.value, _C.PjrtError)
        assert error.value.code == "OutOfRange"

    def test_out_of_memory(self, client: Any) -> None:
        program = client.compile(programs.huge_iota(2**50))
        with pytest.raises(torch.OutOfMemoryError):
            program.execute([], device=0)[0].wait()

    def test_unknown_element_type(self, client: Any) -> None:
        with pytest.raises(_C.PjrtError, match=r"unknown element type 'float'.*bf16"):
            client.buffer(X, "float")

    def test_host_data_of_the_wrong_size(self, client: Any) -> None:
        with pytest.raises(_C.PjrtError, match=r"24 bytes.*'f64' need 48"):
            client.buffer(X, "f64")

    def test_host_data_must_be_contiguous(self, client: Any) -> None:
        with pytest.raises((BufferError, ValueError)):
            client.buffer(X.T, "f32")

    def test_destination_too_small(self, client: Any) -> None:
        with pytest.raises(_C.PjrtError, match="needs 24 bytes, the destination has 4"):
            client.buffer(X, "f32").to_host(bytearray(4))

    def test_device_assignment_of_the_wrong_size(self) -> None:
        with pytest.raises(_C.PjrtError, match="names 1 devices; 2 replicas"):
            _C.pjrt.CompileOptions(num_replicas=2, device_assignment=[0]).serialize()


def test_two_devices(run_python: Callable[..., Any]) -> None:
    done = run_python(
        """
        import numpy as np
        from tests.pjrt import programs
        from torchtpu_core import _C, plugin
        choice = plugin.find()
        assert choice.options == {"cpu_device_count": 2}
        client = _C.pjrt.load_plugin(choice.path).create_client(choice.options)
        first, second = client.devices
        x = np.arange(6, dtype=np.float32).reshape(2, 3)

        # One portable executable runs on the device that the call names.
        program = client.compile(programs.DOUBLE)
        program = client.deserialize(program.serialize())
        for device in client.devices:
            (out,) = program.execute([client.buffer(x, "f32", device)], device=device)
            assert out.device is device
            assert out.to_bytes() == (x * 2).tobytes()

        # Device to device.
        there = client.buffer(x, "f32", 0).copy_to(1)
        assert there.device is second and there.to_bytes() == x.tobytes()

        # A program for a given device.
        options = _C.pjrt.CompileOptions(device_assignment=[1])
        (out,) = client.compile(programs.DOUBLE, options).execute([there])
        assert out.device is second and out.to_bytes() == (x * 2).tobytes()

        # One launch over both, with a collective.
        options = _C.pjrt.CompileOptions(num_replicas=2)
        total = client.compile(programs.CROSS_REPLICA_SUM, options)
        ones = np.ones(4, np.float32)
        args = [[client.buffer(ones * (i + 1), "f32", i)] for i in range(2)]
        for outs in total.execute_sharded(args):
            assert outs[0].to_bytes() == (ones * 3).tobytes()
    """,
        TORCHTPU_CPU_DEVICES="2",
        TORCHTPU_PJRT_PLUGIN="",
        PYTHONPATH=".",
    )
    assert done.stderr == ""


def test_client_creation_is_quiet_and_leaves_the_environment(
    run_python: Callable[..., Any],
) -> None:
    done = run_python("""
        import os
        os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)  # JAX, which other tests import, sets it
        from torchtpu_core import _C, plugin
        _C.pjrt.load_plugin(str(plugin.cpu_plugin_path())).create_client({"cpu_device_count": 2})
        assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    """)
    assert done.stderr == ""


def test_client_outlives_its_name(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import gc
        import numpy as np
        from tests.pjrt import programs
        from torchtpu_core import _C, plugin
        cpu = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path()))
        client = cpu.create_client({"cpu_device_count": 1})
        program = client.compile(programs.DOUBLE)
        value = client.buffer(np.ones((2, 3), np.float32), "f32")
        (device,) = client.devices
        del client
        gc.collect()
        (out,) = program.execute([value], device=device)
        del program, device
        gc.collect()
        assert out.to_bytes() == np.full((2, 3), 2, np.float32).tobytes()
    """,
        PYTHONPATH=".",
    )
