"""The persistent program cache: serialized executables in a directory, one file each, shared by any
number of processes. A cache never fails a program: trouble with a file is a miss, trouble with the
directory is counted, and neither raises."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from torchtpu_core import config

_FORMAT = 1  # also part of every key: a new format never meets old entries
_MAGIC = b"TORCHTPU"
_HEADER = struct.Struct("<8sIQ32s")  # magic, format, payload size, payload sha256
_SUFFIX = ".program"
_TEMPORARY = ".tmp"
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

_EVICT_TO = 0.9  # of the limit, so that not every put evicts
_PUTS_PER_SCAN = 100  # other processes write too
_TOUCH_AFTER = 60.0  # seconds: how exact the order of use needs to be
_TEMPORARY_AGE = 3600.0  # seconds after which a temporary file is a dead process's


@dataclass
class CacheStats:
    """What happened to one ProgramCache since it was made."""

    hits: int = 0
    misses: int = 0
    puts: int = 0
    evicted: int = 0
    corrupt: int = 0
    errors: int = 0


def _pack(payload: bytes) -> bytes:
    digest = hashlib.sha256(payload).digest()
    return _HEADER.pack(_MAGIC, _FORMAT, len(payload), digest) + payload


def _unpack(data: bytes) -> bytes | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, size, digest = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or version != _FORMAT or size != len(payload):
        return None
    return payload if hashlib.sha256(payload).digest() == digest else None


class ProgramCache:
    """Payloads by key in the directory `folder`, at most `size` bytes of them (0: no cache); the
    least recently used are evicted first."""

    def __init__(self, folder: str | os.PathLike[str], size: int) -> None:
        self.folder = Path(folder)
        self.size = size
        self.stats = CacheStats()
        self._writable = size > 0
        self._lock = threading.Lock()
        self._total: int | None = None  # bytes in the folder; unknown until the first scan
        self._puts_since_scan = 0

    @staticmethod
    def key(fingerprint: str, options: bytes, program: str | bytes) -> str:
        """The key of a program compiled with `options` by the plugin that has this fingerprint."""
        digest = hashlib.sha256()
        for part in (str(_FORMAT), fingerprint, options, program):
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str | bytes) -> bytes | None:
        """The payload of `key`, or None. An entry that is damaged or not ours is removed."""
        if self.size <= 0:
            return None
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
                age = time.time() - os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            self._miss(key)
            return None
        except OSError:
            self.stats.errors += 1
            self._miss(key)
            return None
        payload = _unpack(data)
        if payload is None:
            self.stats.corrupt += 1
            self._remove(path)
            self._miss(key)
            return None
        if age > _TOUCH_AFTER:
            with contextlib.suppress(OSError):
                os.utime(path)
        self.stats.hits += 1
        self._log("hit", key, len(payload))
        return payload

    def put(self, key: str | bytes, payload: bytes) -> None:
        """Keeps `payload`, visible to other processes all at once."""
        data = _pack(payload)
        if not self._writable or len(data) > self.size:
            return
        path = self._path(key)
        temporary = path.with_name(f".{path.stem[:16]}.{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                os.replace(temporary, path)
            except OSError:
                self._remove(temporary)
                raise
        except OSError as error:
            self.stats.errors += 1
            if error.errno in _READ_ONLY:
                self._writable = False  # a folder that cannot be written serves those who read it
            return
        self.stats.puts += 1
        self._log("put", key, len(payload))
        self._account(len(data))

    def _path(self, key: str | bytes) -> Path:
        name = hashlib.sha256(key).hexdigest() if isinstance(key, bytes) else key
        if not name.isalnum():  # a key that is no digest must not name a file elsewhere
            name = hashlib.sha256(name.encode()).hexdigest()
        return self.folder / (name + _SUFFIX)

    def _miss(self, key: str | bytes) -> None:
        self.stats.misses += 1
        self._log("miss", key, 0)

    def _remove(self, path: str | Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # another process evicts as well
        except OSError:
            self.stats.errors += 1

    def _account(self, added: int) -> None:
        with self._lock:
            self._puts_since_scan += 1
            if self._total is not None:
                self._total += added
                if self._total <= self.size and self._puts_since_scan < _PUTS_PER_SCAN:
                    return
            self._total = self._evict()
            self._puts_since_scan = 0

    def _evict(self) -> int:
        """Looks through the folder, removes what is too much, and returns the bytes that remain."""
        entries: list[tuple[float, int, str]] = []
        try:
            with os.scandir(self.folder) as scan:
                for item in scan:
                    with contextlib.suppress(FileNotFoundError):  # another process evicts as well
                        info = item.stat(follow_symlinks=False)
                        if item.name.endswith(_SUFFIX):
                            entries.append((info.st_mtime, info.st_size, item.path))
                        elif (
                            item.name.endswith(_TEMPORARY)
                            and time.time() - info.st_mtime > _TEMPORARY_AGE
                        ):
                            self._remove(item.path)
        except OSError:
            self.stats.errors += 1
            return 0
        total = sum(size for _, size, _ in entries)
        if total <= self.size:
            return total
        for _, size, path in sorted(entries):
            if total <= self.size * _EVICT_TO:
                break
            self._remove(path)
            self.stats.evicted += 1
            total -= size
        return total

    @staticmethod
    def _log(what: str, key: str | bytes, size: int) -> None:
        if "cache" in config.get("TORCHTPU_LOG"):
            name = key.hex() if isinstance(key, bytes) else key
            print(f"torchtpu cache {what:4} {name[:16]} {size:>10} B", file=sys.stderr)


@functools.cache
def default_cache() -> ProgramCache:
    """The cache that TORCHTPU_CACHE_DIR and TORCHTPU_CACHE_SIZE describe."""
    return ProgramCache(config.get("TORCHTPU_CACHE_DIR"), config.get("TORCHTPU_CACHE_SIZE"))
