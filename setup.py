"""Build of the C++ extension torchtpu_core._C; the rest of the metadata is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup

# An extension that was built from other sources must not stop the build of its successor.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
CSRC = Path("torchtpu_core") / "csrc"


def pjrt_include_dir() -> str:
    """The folder of pjrt_c_api.h, taken from the installed package xla-cpu-pjrt."""
    try:
        spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    except ModuleNotFoundError:
        spec = None
    for location in (spec.submodule_search_locations or []) if spec else []:
        include = Path(location) / "include"
        if (include / "pjrt_c_api.h").is_file():
            return str(include)
    sys.exit(
        "torchtpu: pjrt_c_api.h was not found; it comes with the package xla-cpu-pjrt. "
        "Run: pip install 'xla-cpu-pjrt>=0.0.1,<0.1'"
    )


def packages() -> tuple[list[str], dict[str, str]]:
    """torchtpu_core with its subpackages, and integrations/<name> as torchtpu_<name>."""
    names = find_packages(include=["torchtpu_core", "torchtpu_core.*"])
    folders: dict[str, str] = {}
    for init in sorted(ROOT.glob("integrations/*/__init__.py")):
        folder = init.parent.relative_to(ROOT)
        top = f"torchtpu_{folder.name}"
        folders[top] = str(folder)
        names += [top, *(f"{top}.{sub}" for sub in find_packages(str(folder)))]
    return names, folders


class IncrementalBuild(BuildExtension):
    """Builds with ninja, always in the same folder: an editable install by pip would take a
    temporary one and compile everything anew."""

    def finalize_options(self) -> None:
        """Settle the folder of the object files."""
        super().finalize_options()
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        self.build_temp = str(Path("build") / f"temp.{tag}")


def sources() -> list[str]:
    """The translation units: one a room of csrc, parsing torch's headers once for all its files
    and so builds in a third of the time; with TORCHTPU_BUILD_UNITY=0 one a file, which rebuilds
    less after an edit."""
    rooms = ("pjrt", "kernels", "device", "dispatch", "layouts")
    files = {room: sorted((CSRC / room).glob("*.cc")) for room in rooms}
    for room in rooms:
        bindings = CSRC / "python" / f"{room}_bindings.cc"
        files[room] += [bindings] if bindings.is_file() else []
    files["pjrt"].append(CSRC / "python" / "module.cc")
    if os.environ.get("TORCHTPU_BUILD_UNITY", "1") == "0":
        return sorted(str(f) for room in rooms for f in files[room])
    folder = Path("build") / "unity"
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    for room in rooms:
        text = "".join(f'#include "{f.relative_to(CSRC).as_posix()}"\n' for f in files[room])
        unit = ROOT / folder / f"{room}.cc"
        if not unit.is_file() or unit.read_text() != text:
            unit.write_text(text)
    return [str(folder / f"{room}.cc") for room in rooms]


# torch's headers take about 1 GB a compiler process: two are what a small machine's memory bears.
os.environ.setdefault("MAX_JOBS", "2")

_packages, _package_dir = packages()
_headers = sorted(str(p.relative_to(ROOT)) for p in (ROOT / CSRC).rglob("*.*"))

setup(
    packages=_packages,
    package_dir=_package_dir,
    ext_modules=[
        CppExtension(
            "torchtpu_core._C",
            sources(),
            include_dirs=[str(ROOT / CSRC), pjrt_include_dir()],
            extra_compile_args=[
                "-std=c++20",
                "-O2",
                "-fvisibility=hidden",
                "-Wall",
                "-g0",
                f"-ffile-prefix-map={ROOT}/=",
            ],
            libraries=["dl"],
            depends=_headers,  # which puts them into a source distribution
        )
    ],
    cmdclass={"build_ext": IncrementalBuild},
)
