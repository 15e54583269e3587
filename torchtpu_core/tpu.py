"""The module torch.tpu: devices, streams and events, memory, random state, AMP and the switches of
the device, with the names and meanings of torch.cuda. What the functions do lives in C++
(csrc/device, csrc/dispatch); the conversion of arguments and results lives here."""

from __future__ import annotations

import atexit
import dataclasses
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import torchtpu_core._C as _C
from torchtpu_core import flags
from torchtpu_core.precision import emulate_precision as emulate_precision
from torchtpu_core.precision import precision as precision

_DeviceLike = torch.device | str | int | None

# What libtpu calls a device, and what its users call it.
_PRODUCT_NAMES = {
    "TPU v2": "TPU v2",
    "TPU v3": "TPU v3",
    "TPU v4": "TPU v4",
    "TPU v4 lite": "TPU v4i",
    "TPU v5": "TPU v5p",
    "TPU v5p": "TPU v5p",
    "TPU v5 lite": "TPU v5e",
    "TPU v5e": "TPU v5e",
    "TPU v6 lite": "TPU v6e",
    "TPU v6e": "TPU v6e",
    "TPU v7": "TPU v7",
    "TPU7x": "TPU v7x",
    "TPU v7x": "TPU v7x",
}
_EMULATED_NAME = "TPU emulated on CPU (XLA)"


def _index(device: _DeviceLike = None) -> int:
    """The index of `device`; of the current device where it names none."""
    if device is None:
        return _C.current_device()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {device}")
        return _C.current_device() if device.index is None else device.index
    if isinstance(device, int):
        return _C.current_device() if device < 0 else device
    raise TypeError(f"Expected a device, a string or an index, but got {type(device).__name__}")


# --- Initialisation -----------------------------------------------------------------------------


def is_available() -> bool:
    """Whether there is a device to use. Loads no plugin and creates no client."""
    return _C.is_available()


def is_initialized() -> bool:
    """Whether the PJRT client exists."""
    return _C.is_initialized()


def init() -> None:
    """Creates the PJRT client now; the first use of the device does it otherwise."""
    _C.init()


_lazy_init = init


def _lazy_call(callable: Callable[[], Any], **_: Any) -> None:
    """Runs `callable`. No state of this module needs the client, so nothing has to be deferred."""
    callable()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def _is_compiled() -> bool:
    return True


# --- Devices ------------------------------------------------------------------------------------


def device_count() -> int:
    """The number of devices this process can use; 0 where there is no plugin to load."""
    from torchtpu_core import plugin

    try:
        plugin.find()
    except RuntimeError:
        return 0
    return _C.device_count()


def current_device() -> int:
    """The index of the calling thread's current device."""
    return _C.current_device()


def set_device(device: _DeviceLike) -> None:
    """Makes `device` the calling thread's current device; no-op for a negative index."""
    if isinstance(device, int) and device < 0:
        return
    _C.exchange_device(_index(device))


def _exchange_device(device: int) -> int:
    return _C.exchange_device(device)


_maybe_exchange_device = _exchange_device


class device:
    """Context manager that changes the current device; a no-op for None or a negative index."""

    def __init__(self, device: _DeviceLike) -> None:
        none = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if none else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self.idx >= 0:
            _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


def synchronize(device: _DeviceLike = None) -> None:
    """Waits for all work of a device; raises the first failure not reported before."""
    _C.synchronize(_index(device))


@dataclasses.dataclass(frozen=True)
class _DeviceProperties:
    """What torch.cuda.get_device_properties tells, and what PJRT knows besides."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    platform: str
    platform_version: str
    device_kind: str
    device_id: int
    process_index: int
    local_hardware_id: int
    attributes: dict[str, Any]


def get_device_properties(device: _DeviceLike = None) -> _DeviceProperties:
    """The properties of a device."""
    info = _C.device_info(_index(device))
    name = _device_name(info["kind"], info["platform"])
    major, minor = _capability(name)
    return _DeviceProperties(
        name=name,
        major=major,
        minor=minor,
        total_memory=info["total_memory"],
        multi_processor_count=int(info["attributes"].get("num_cores", 1)),
        platform=info["platform"],
        platform_version=info["platform_version"],
        device_kind=info["kind"],
        device_id=info["id"],
        process_index=info["process_index"],
        local_hardware_id=info["local_hardware_id"],
        attributes=info["attributes"],
    )


def _device_name(kind: str, platform: str) -> str:
    if platform != "tpu":
        return _EMULATED_NAME if platform == "cpu" else f"{kind} ({platform})"
    return _PRODUCT_NAMES.get(kind, kind)


def _capability(name: str) -> tuple[int, int]:
    """(generation, 1 for the larger chip of a generation that has two)."""
    if not name.startswith("TPU v"):
        return (0, 0)
    generation = name.removeprefix("TPU v")
    digits = generation.rstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(digits), 0 if generation[len(digits) :] in ("e", "i") else 1)


def get_device_name(device: _DeviceLike = None) -> str:
    """The name of a device, such as 'TPU v5e'."""
    return get_device_properties(device).name


def get_device_capability(device: _DeviceLike = None) -> tuple[int, int]:
    """(generation, variant) of a TPU; (0, 0) where it is emulated."""
    properties = get_device_properties(device)
    return (properties.major, properties.minor)


def can_device_access_peer(device: _DeviceLike, peer_device: _DeviceLike) -> bool:
    """Whether one device can copy to another without the host: any two different devices."""
    first, second = _index(device), _index(peer_device)
    count = device_count()
    for index in (first, second):
        if not 0 <= index < count:
            raise ValueError(f"Invalid device index {index}: there are {count} tpu devices")
    return first != second


# --- Streams and events -------------------------------------------------------------------------


class Stream(torch.Stream):
    """A stream of a tpu device. Work is ordered by the data it touches, whatever its stream."""

    def __new__(cls, device: _DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device("tpu", _index(device)), priority=priority)

    def __repr__(self) -> str:
        return f"<torch.tpu.Stream device={self.device} stream_id={self.stream_id}>"


class _EventType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) is torch.Event and instance.device.type == "tpu"


class Event(torch.Event, metaclass=_EventType):
    """A mark in a device's queue of work: can be waited for, asked for, and timed. Calling this
    makes a plain torch.Event of tpu: PyTorch's own streams and events refuse subclasses."""

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            "tpu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def _wrap_stream(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: _DeviceLike = None) -> Stream:
    """The calling thread's current stream of a device."""
    return _wrap_stream(torch._C._accelerator_getStream(_index(device)))


def default_stream(device: _DeviceLike = None) -> Stream:
    """The default stream of a device."""
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current stream of its device, and its device the current one."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that selects a stream; a no-op for None."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[Stream] = []

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._previous = [current_stream(self.stream.device), current_stream()]
        set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        for previous in self._previous:  # of the stream's device, then of the device before
            set_stream(previous)
        self._previous = []


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager in which `stream` is the current stream."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Whether the current stream records a graph: never, there are no graphs to record."""
    return False


# --- Memory -------------------------------------------------------------------------------------


def memory_stats_as_nested_dict(device: _DeviceLike = None) -> dict[str, Any]:
    """The memory statistics of a device, nested."""
    return _C.memory_stats(_index(device))


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, int]]:
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flatten(f"{prefix}.{key}" if prefix else key, inner)


def memory_stats(device: _DeviceLike = None) -> OrderedDict[str, int]:
    """The memory statistics of a device, with torch.cuda.memory_stats' keys."""
    return OrderedDict(sorted(_flatten("", memory_stats_as_nested_dict(device))))


def _bytes(figure: str, reading: str, device: _DeviceLike) -> int:
    return memory_stats_as_nested_dict(device)[figure]["all"][reading]


def memory_allocated(device: _DeviceLike = None) -> int:
    """Bytes that tensors occupy now."""
    return _bytes("allocated_bytes", "current", device)


def max_memory_allocated(device: _DeviceLike = None) -> int:
    """The most bytes that tensors occupied since the start or the last reset."""
    return _bytes("allocated_bytes", "peak", device)


def memory_reserved(device: _DeviceLike = None) -> int:
    """Bytes taken from the device now; nothing is cached, so the same as memory_allocated."""
    return _bytes("reserved_bytes", "current", device)


def max_memory_reserved(device: _DeviceLike = None) -> int:
    """The most bytes taken from the device since the start or the last reset."""
    return _bytes("reserved_bytes", "peak", device)


def reset_peak_memory_stats(device: _DeviceLike = None) -> None:
    """Restarts the `peak` readings from the current ones."""
    _C.reset_peak_memory_stats(_index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: _DeviceLike = None) -> None:
    """Sets the `allocated` and `freed` readings, and the counters, to zero."""
    _C.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: _DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of a device; of the host where the device is emulated."""
    return _C.memory_info(_index(device))


def device_memory_used(device: _DeviceLike = None) -> int:
    """Bytes of the device in use, by any process."""
    free, total = mem_get_info(device)
    return total - free


def _human(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{nbytes} B"
        size /= 1024
    return f"{size:.1f} TiB"


def memory_summary(device: _DeviceLike = None, abbreviated: bool = False) -> str:
    """The memory statistics of a device as a table."""
    index = _index(device)
    stats = memory_stats_as_nested_dict(index)
    readings = ("current", "peak", "allocated", "freed")
    rows: list[tuple[str, str, Callable[[int], str]]] = [
        ("Allocated memory", "allocated_bytes", _human),
        ("Reserved memory", "reserved_bytes", _human),
    ]
    if not abbreviated:
        rows += [("Active memory", "active_bytes", _human), ("Allocations", "allocation", str)]
    lines = [
        f"torch.tpu memory summary, device {index} "
        f"(out-of-memory errors: {stats['num_ooms']}, retries: {stats['num_alloc_retries']})",
        f"{'':<18}" + "".join(f"{r.capitalize():>14}" for r in readings),
    ]
    lines += [
        f"{title:<18}" + "".join(f"{show(stats[key]['all'][r]):>14}" for r in readings)
        for title, key, show in rows
    ]
    return "\n".join(lines)


def empty_cache() -> None:
    """Gives memory that is free back to the system, where the device's memory is the host's (XLA's
    CPU plugin): there it stays in the process otherwise. On a TPU it does nothing: a buffer goes
    back to the device with the last tensor that uses it."""
    if is_initialized():
        _C.empty_cache()


def empty_host_cache() -> None:
    """Does nothing: pinned memory goes back to the system with its last tensor."""


def ipc_collect() -> None:
    """Does nothing: tpu memory is not shared between processes through handles."""


# --- Random numbers -----------------------------------------------------------------------------


def _generator(device: _DeviceLike = None) -> torch.Generator:
    return _C.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. Creates no client."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator. Creates no client."""
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise RuntimeError(f"Overflow when unpacking long long: seed {seed} is not a 64-bit value")
    _C.seed_default_generators(seed % 2**64)


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    _generator().seed()


def seed_all() -> None:
    """Seeds every device's generator with the same random number."""
    manual_seed_all(torch.Generator("cpu").seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: _DeviceLike = "tpu") -> torch.Tensor:
    """The state of a device's generator: seed and offset as 16 bytes."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: _DeviceLike = "tpu") -> None:
    """Sets the state of a device's generator."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


# --- AMP ----------------------------------------------------------------------------------------


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether tensors can be bfloat16: always."""
    return True


def is_tf32_supported() -> bool:
    """Whether matmuls can use TF32: never, a TPU's fast float32 products are of bfloat16."""
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that autocast can use."""
    return [torch.bfloat16, torch.float16]


class _Autocast(torch.amp.autocast_mode.autocast):
    """torch.autocast('tpu'), with torch.cuda.amp.autocast's arguments."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("tpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class _GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for tpu, with torch.cuda.amp.GradScaler's arguments."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("tpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def _amp_module() -> types.ModuleType:
    """torch.tpu.amp, a module so that `from torch.tpu.amp import autocast` works."""
    module = types.ModuleType("torch.tpu.amp", "Automatic mixed precision on tpu.")
    _Autocast.__name__ = _Autocast.__qualname__ = "autocast"
    _GradScaler.__name__ = _GradScaler.__qualname__ = "GradScaler"
    for cls in (_Autocast, _GradScaler):
        cls.__module__ = module.__name__
        setattr(module, cls.__name__, cls)
    sys.modules[module.__name__] = module
    return module


amp = _amp_module()

# --- Switches -----------------------------------------------------------------------------------


def set_cpu_fallback(enabled: bool) -> None:
    """Whether ops that are not lowered run on the CPU (each is counted) instead of raising."""
    _C.set_cpu_fallback(bool(enabled))


def get_cpu_fallback() -> bool:
    """Whether ops that are not lowered run on the CPU."""
    return _C.get_cpu_fallback()


def set_bounds_checks(enabled: bool) -> None:
    """Whether indices are checked on the device (gather, scatter, indexing, embedding, the targets
    of losses): those out of range then raise what they raise on the CPU, and every such operator
    waits for its result. Debug mode always checks. Without checks, indices out of range are clamped
    when read and dropped when written."""
    flags.put(flags.BOUNDS, flags.BOUNDS if enabled else 0)


def get_bounds_checks() -> bool:
    """Whether indices are checked: by `set_bounds_checks`, or since the mode is debug."""
    return bool(flags.get(flags.BOUNDS))


def set_mode(mode: str) -> None:
    """'strict': asynchronous, op by op. 'debug': waits for each op; errors point at its line."""
    _C.set_mode(mode)


def get_mode() -> str:
    """The execution mode."""
    return _C.get_mode()


def set_shape_buckets(buckets: Iterable[int] | str | None = None) -> None:
    """How torch.compile rounds sizes that vary from call to call, so that they share a program.

    None or "pow2" (the default): up to powers of two. A list: up to the next of its sizes, beyond
    the last one to powers of two. "off": each set of sizes is a program of its own.
    """
    from torchtpu_core.compile import buckets as policy

    policy.set_shape_buckets(buckets)


def get_shape_buckets() -> list[int] | str:
    """The rounding in force: "pow2", "off" or the list."""
    from torchtpu_core.compile import buckets as policy

    return policy.get_shape_buckets()


def __getattr__(name: str) -> Any:
    if name == "_initialized":
        return _C.is_initialized()
    if name == "default_generators":
        return tuple(_generator(i) for i in range(device_count()))
    raise AttributeError(f"module 'torch.tpu' has no attribute '{name}'")


# Work in flight while the interpreter tears down the plugin's libraries ends in a crash, and so do
# threads that want the GIL of an interpreter that is finalizing. The last registered runs first.
atexit.register(_C.drain)
atexit.register(_C.forget_ahead)
atexit.register(_C.settle_backward)
