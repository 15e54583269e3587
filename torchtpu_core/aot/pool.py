"""The compiler's processes as seen from outside: started when needed, kept for the next program,
replaced when libtpu ends one or a time limit stops it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchtpu_core
from torchtpu_core import plugin
from torchtpu_core.aot.errors import CompilerCrash, CompileTimeout, LibtpuMissing
from torchtpu_core.aot.worker import REPLY

#: seconds a worker may take to import torch and load libtpu
START = 120.0
#: characters of a worker's log that an exception shows
_LOG = 4000


def environment() -> dict[str, str]:
    """The environment of a process that only compiles.

    libtpu's machine-wide lock is lifted only where no TPU is attached: elsewhere it protects the
    processes that use one.
    """
    env = {**os.environ, **plugin.AOT_ENVIRONMENT, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if plugin.tpu_device_files():
        env.pop("ALLOW_MULTIPLE_LIBTPU_LOAD")
        if "ALLOW_MULTIPLE_LIBTPU_LOAD" in os.environ:
            env["ALLOW_MULTIPLE_LIBTPU_LOAD"] = os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"]
    root = str(Path(torchtpu_core.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return env


def max_workers() -> int:
    """How many compilers may run at once: one where a TPU is attached, whose lock they take."""
    return 1 if plugin.tpu_device_files() else max(1, len(os.sched_getaffinity(0)))


class Worker:
    """One process. Raises CompilerCrash and CompileTimeout, after which it is of no use."""

    def __init__(self) -> None:
        if plugin.libtpu_path() is None:
            raise LibtpuMissing(
                "compiling for a TPU needs libtpu, which is not installed. Run: "
                "pip install 'torchtpu[tpu]' (it needs no TPU)"
            )
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._replies, theirs = os.pipe()
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchtpu_core.aot.worker"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs,),
            env={**environment(), REPLY: str(theirs)},
        )
        os.close(theirs)
        self._receive(START, "loading libtpu")

    @property
    def alive(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to one request."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is noticed where the answer is missing
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._receive(timeout, f"{request['do']} for {request['topology']}")

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1

    def _receive(self, timeout: float, what: str) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self.close()
                raise CompileTimeout(f"{what} took more than {timeout:g} s and was stopped")
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                code = self._process.wait()
                log = self._tail()
                self.close()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise CompilerCrash(f"libtpu ended its process ({how}) while {what}", log)
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-_LOG:].strip()


_idle: list[Worker] = []
_lock = threading.Lock()


@contextlib.contextmanager
def worker() -> Iterator[Worker]:
    """A worker of one's own for a while."""
    with _lock:
        found = _idle.pop() if _idle else None
    if found is None or not found.alive:
        found = Worker()
    try:
        yield found
    except BaseException:  # an answer may be under way that nobody waits for any more
        found.close()
        raise
    with _lock:
        keep = found.alive and len(_idle) < max_workers()
        if keep:
            _idle.append(found)
    if not keep:
        found.close()


@atexit.register
def close() -> None:
    """Ends the idle workers."""
    with _lock:
        while _idle:
            _idle.pop().close()


def _forget() -> None:
    """A forked child does not own its parent's workers."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
