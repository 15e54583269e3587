"""Which plugin is chosen, and what is said of one that does not load."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtpu_core import _C, plugin

pytestmark = pytest.mark.usefixtures("fresh_config")


@pytest.fixture
def no_tpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty /dev, and no plugin named in the environment."""
    monkeypatch.delenv("TORCHTPU_PJRT_PLUGIN", raising=False)
    monkeypatch.setattr(plugin, "_DEV", tmp_path)
    return tmp_path


def test_cpu_plugin_without_a_tpu(no_tpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_CPU_DEVICES", "3")
    choice = plugin.find()
    assert choice.platform == "cpu"
    assert Path(choice.path).name == "xla_cpu_pjrt.so"
    assert choice.options == {"cpu_device_count": 3}


@pytest.mark.parametrize("device", ["accel0", "vfio/0"])
def test_libtpu_where_a_tpu_is_attached(no_tpu: Path, device: str) -> None:
    (no_tpu / device).parent.mkdir(exist_ok=True)
    (no_tpu / device).touch()
    choice = plugin.find()
    assert choice.platform == "tpu"
    assert Path(choice.path).name == "libtpu.so"
    assert device in choice.reason
    assert choice.options == {}


def test_other_device_files_are_no_tpu(no_tpu: Path) -> None:
    (no_tpu / "accel").mkdir()
    (no_tpu / "vfio").mkdir()
    (no_tpu / "vfio" / "vfio").touch()
    assert plugin.find().platform == "cpu"


def test_tpu_without_libtpu_warns(no_tpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_tpu / "accel0").touch()
    monkeypatch.setattr(plugin, "libtpu_path", lambda: None)
    with pytest.warns(UserWarning, match=r"pip install 'torchtpu\[tpu\]'"):
        assert plugin.find().platform == "cpu"


def test_named_plugin(no_tpu: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libother.so"
    path.touch()
    monkeypatch.setenv("TORCHTPU_PJRT_PLUGIN", str(path))
    choice = plugin.find()
    assert (choice.path, choice.platform, choice.options) == (str(path), "custom", {})


def test_named_plugin_that_does_not_exist(no_tpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTPU_PJRT_PLUGIN", "/no/such/plugin.so")
    with pytest.raises(ValueError, match=r"TORCHTPU_PJRT_PLUGIN='/no/such/plugin.so'"):
        plugin.find()


def test_no_plugin_says_what_to_install(no_tpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "cpu_plugin_path", lambda: None)
    with pytest.raises(RuntimeError, match="pip install xla-cpu-pjrt"):
        plugin.find()


def test_load_missing_file() -> None:
    with pytest.raises(_C.PjrtError, match=r"/no/such/plugin.so.*TORCHTPU_PJRT_PLUGIN") as error:
        _C.pjrt.load_plugin("/no/such/plugin.so")
    assert error.value.code == "NotFound"


def test_load_what_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "plugin.so"
    path.write_text("not a shared library")
    with pytest.raises(_C.PjrtError, match=r"plugin.so cannot be loaded: .*reinstall"):
        _C.pjrt.load_plugin(str(path))


def test_load_a_library_that_is_no_plugin() -> None:
    with pytest.raises(_C.PjrtError, match=r"is not a PJRT plugin.*GetPjrtApi"):
        _C.pjrt.load_plugin(_C.__file__)


_HEADER_PROBE = """
#include <pjrt_c_api.h>
static PJRT_Api api;
extern "C" const PJRT_Api* GetPjrtApi() {{
  api.struct_size = sizeof(PJRT_Api);
  api.pjrt_api_version.major_version = {major};
  api.pjrt_api_version.minor_version = {minor};
  return &api;
}}
"""


@pytest.mark.parametrize(("major", "minor"), [(1, 0), (0, 12)])
def test_incompatible_version_is_refused(tmp_path: Path, major: int, minor: int) -> None:
    library = _build(tmp_path, _HEADER_PROBE.format(major=major, minor=minor))
    with pytest.raises(_C.PjrtError, match=rf"speaks version {major}\.{minor} .* needs 0\.40"):
        _C.pjrt.load_plugin(str(library))


# A real plugin behind a shorter function table: what a plugin of an older minor version looks like.
_OLDER = """
#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <string.h>
static PJRT_Api api;
extern "C" const PJRT_Api* GetPjrtApi() {{
  void* handle = dlopen("{path}", RTLD_NOW | RTLD_LOCAL);
  const PJRT_Api* real = ((const PJRT_Api* (*)())dlsym(handle, "GetPjrtApi"))();
  memset(&api, 0x5a, sizeof(api));  // beyond the table is not null, but not to be read
  memcpy(&api, real, offsetof(PJRT_Api, PJRT_Client_CreateUninitializedBuffer));
  api.struct_size = offsetof(PJRT_Api, PJRT_Client_CreateUninitializedBuffer);
  api.pjrt_api_version.minor_version = 68;
  return &api;
}}
"""


def test_older_plugin_works_without_what_it_lacks(
    cpu_plugin: Any, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    library = _build(tmp_path, _OLDER.format(path=cpu_plugin.path))
    run_python(
        f"""
        import numpy as np
        from tests.pjrt import programs
        from torchtpu_core import _C
        plugin = _C.pjrt.load_plugin({str(library)!r})
        assert plugin.api_version == (0, 68)
        client = plugin.create_client()
        program = client.compile(programs.DOUBLE)
        x = np.ones((2, 3), np.float32)
        (out,) = program.execute([client.buffer(x, "f32")], device=0)
        assert out.to_bytes() == (x * 2).tobytes()
        try:
            client.uninitialized_buffer("f32", [2])
        except NotImplementedError as error:
            assert error.code == "Unimplemented"
            assert "PJRT_Client_CreateUninitializedBuffer" in str(error)
        else:
            raise AssertionError("a missing function was called")
    """,
        PYTHONPATH=".",
    )


def _build(folder: Path, source: str) -> Path:
    (folder / "plugin.cc").write_text(source)
    library = folder / "plugin.so"
    cpu = plugin.cpu_plugin_path()
    assert cpu is not None
    subprocess.run(
        ["c++", "-shared", "-fPIC", f"-I{cpu.parent / 'include'}", "-o", library, "plugin.cc"],
        cwd=folder,
        check=True,
    )
    return library
