"""Which PJRT plugin to load, and why. Looks only: nothing is loaded or imported here, not even
torch."""

from __future__ import annotations

import functools
import importlib.util
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from torchtpu_core import config

_DEV = Path("/dev")

# The environment in which libtpu compiles for TPUs that are not there: no queries of the cloud's
# metadata (minutes of waiting elsewhere), no machine-wide lock, no log files. For processes that
# only compile; never where a TPU is attached and used.
AOT_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any valid one; the topology's name decides
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_LOG_DIR": "disabled",
}


@dataclass(frozen=True)
class PluginChoice:
    """A plugin to load, the platform it is for ("tpu", "cpu", or "custom" where
    TORCHTPU_PJRT_PLUGIN names one that we do not know), why it was chosen, and the options to
    create its client with."""

    path: str
    platform: str
    reason: str
    options: dict[str, int | str | bool | float | list[int]] = field(default_factory=dict)


def _package_file(package: str, file: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the parent package is missing
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / file
        if path.is_file():
            return path
    return None


def libtpu_path() -> Path | None:
    """libtpu's shared library, if the package libtpu is installed."""
    return _package_file("libtpu", "libtpu.so")


def cpu_plugin_path() -> Path | None:
    """XLA's CPU plugin, if the package xla-cpu-pjrt is installed."""
    return _package_file("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so")


def tpu_device_files() -> list[Path]:
    """The device files that a TPU host has: /dev/accelN, or the numbered IOMMU groups of VFIO."""
    accel = [p for p in _DEV.glob("accel*") if re.fullmatch(r"accel\d+", p.name)]
    vfio = [p for p in _DEV.glob("vfio/*") if p.name.isdigit()]
    return sorted(accel or vfio)


def _cpu_options() -> dict[str, int | str | bool | float | list[int]]:
    return {"cpu_device_count": config.get("TORCHTPU_CPU_DEVICES")}


def _chosen_by_user(path: Path) -> PluginChoice:
    reason = "named by TORCHTPU_PJRT_PLUGIN"
    name = path.resolve().name
    if "cpu" in name:
        return PluginChoice(str(path), "cpu", reason, _cpu_options())
    return PluginChoice(str(path), "tpu" if name.startswith("libtpu") else "custom", reason)


@functools.cache
def find() -> PluginChoice:
    """The plugin of TORCHTPU_PJRT_PLUGIN; else libtpu where a TPU is attached; else XLA's CPU
    plugin. Raises RuntimeError, saying what to install, where there is none."""
    config.get("TORCHTPU_CPU_DEVICES")  # a value that makes no sense is refused on a TPU host too
    named = config.get("TORCHTPU_PJRT_PLUGIN")
    if named is not None:
        return _chosen_by_user(named)

    devices = tpu_device_files()
    libtpu = libtpu_path()
    if devices and libtpu is not None:
        return PluginChoice(str(libtpu), "tpu", f"a TPU is attached ({devices[0]})")
    if devices and devices[0].parent == _DEV:  # VFIO groups alone may be any device
        warnings.warn(
            f"{devices[0]} looks like a TPU, but libtpu is not installed, so `tpu` runs on the "
            "CPU. Run: pip install 'torchtpu[tpu]'",
            stacklevel=2,
        )
    cpu = cpu_plugin_path()
    if cpu is not None:
        reason = "no TPU is attached" if not devices else "libtpu is not installed"
        return PluginChoice(str(cpu), "cpu", reason, _cpu_options())
    raise RuntimeError(
        "No PJRT plugin was found, so the device `tpu` cannot run. Install one: "
        "pip install xla-cpu-pjrt (runs on the CPU), or pip install 'torchtpu[tpu]' on a TPU host; "
        "or set TORCHTPU_PJRT_PLUGIN to the path of a plugin's shared library."
    )
