"""Executables in files: what AOT compilation made, to be loaded on a TPU host.

A file is a line that names the format, one line of JSON, and the executable's bytes. The JSON says
what they are for (chip, slice, devices, libtpu) and what they are (libtpu's fingerprint, SHA-256,
inputs and outputs); all of that is checked before a byte reaches a plugin.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtpu_core.aot.errors import AotError, WrongChip
from torchtpu_core.aot.result import Compiled
from torchtpu_core.cache import ProgramCache, default_cache

#: the first line of a file; its number changes with what the JSON means
MAGIC = b"torchtpu executable 2\n"
#: what a file's name ends in
SUFFIX = ".tpuexe"


@dataclass(frozen=True)
class Saved:
    """The content of a file. kind, version: of the devices and the libtpu it was compiled for;
    cache_key: the program's in the program cache of a host that has them.
    """

    name: str
    topology: str
    kind: str
    devices: int
    version: str
    fingerprint: str
    cache_key: str
    sha256: str
    inputs: list[dict[str, Any]]
    outputs: list[Any]
    executable: bytes = field(repr=False)

    def check(self, kind: str, devices: int, version: str) -> None:
        """Raises WrongChip unless a client with `devices` devices of that kind, whose libtpu calls
        itself `version`, can run it.
        """
        what = f"the executable {self.name!r} was compiled for {self.topology} ({self.kind}"
        if kind != self.kind:
            raise WrongChip(
                f"{what}); this host has {kind}. Compile it again with the topology of this host: "
                "torchtpu topologies lists them"
            )
        if devices < self.devices:
            raise WrongChip(f"{what}, {self.devices} devices); this host shows {devices} of them")
        if version != self.version:
            raise WrongChip(
                f"{what}) by another libtpu: {_short(self.version)!r}, this host has "
                f"{_short(version)!r}. Install the same libtpu, or compile it again with this one"
            )

    def load(self, client: Any) -> Any:
        """The program, loaded by a client (_C.pjrt.Client); WrongChip if it is not for that one."""
        self._check(client)
        return client.deserialize(self.executable)

    def install(self, client: Any, cache: ProgramCache | None = None) -> None:
        """Puts the program into a program cache (this process's own, TORCHTPU_CACHE_DIR): whoever
        meets it there finds it compiled. WrongChip if it is not for `client`.
        """
        self._check(client)
        (default_cache() if cache is None else cache).put(self.cache_key, self.executable)

    def _check(self, client: Any) -> None:
        devices = client.devices
        self.check(devices[0].kind, len(devices), client.platform_version)


def save(compiled: Compiled, path: str | os.PathLike[str]) -> Path:
    """Writes a file, replacing one of that name at once; its path, with a suffix if it had none."""
    path = Path(path)
    if not path.suffix:
        path = path.with_suffix(SUFFIX)
    about = {
        "name": compiled.name,
        "topology": compiled.topology.name,
        "kind": compiled.topology.kind,
        "devices": compiled.devices,
        "version": compiled.topology.version,
        "fingerprint": compiled.fingerprint,
        "cache_key": compiled.cache_key,
        "sha256": hashlib.sha256(compiled.executable).hexdigest(),
        "inputs": list(compiled.inputs),
        "outputs": list(compiled.outputs),
    }
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
        f.write(MAGIC + json.dumps(about).encode() + b"\n" + compiled.executable)
    os.chmod(f.name, 0o644)
    os.replace(f.name, path)
    return path


def load(path: str | os.PathLike[str]) -> Saved:
    """Reads a file; AotError says what is wrong with one that is not whole."""
    data = Path(path).read_bytes()
    if not data.startswith(MAGIC):
        first = data.split(b"\n", 1)[0][:40]
        raise AotError(
            f"{path} is not an executable of this version of TorchTPU: it starts with {first!r}, "
            f"not {MAGIC.strip()!r}"
        )
    head, _, body = data[len(MAGIC) :].partition(b"\n")
    try:
        saved = Saved(**json.loads(head), executable=body)
    except (ValueError, TypeError) as e:
        raise AotError(f"{path} is damaged: its description cannot be read ({e})") from e
    if hashlib.sha256(body).hexdigest() != saved.sha256:
        raise AotError(f"{path} is damaged: its {len(body)} bytes do not have the SHA-256 it names")
    return saved


def _short(version: str) -> str:
    return " ".join(version.split())
