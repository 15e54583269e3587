"""Running many items in worker processes: a crash or a hang costs one item, not the run.

A parent hands each worker one operator at a time and hears of every item as it starts and ends. A
worker that dies or exceeds the time limit is replaced, its item is marked, and the rest of the
operator goes to the replacement.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import re
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.conformance.check import Result
from tests.conformance.items import Item
from tests.conformance.samples import Sample

# Precedes, in a worker's output, the sample that it runs next.
_SAMPLE = "\x1esample "
# A worker is replaced after this many items, so that what its caches hold stays small.
_ITEMS_PER_WORKER = 600
# A worker's first item includes its start: importing torch, making the device's client.
_START_SECONDS = 120.0

Listener = Callable[[Item, Result], None]


def run_items(
    items: Sequence[Item],
    device: str,
    *,
    workers: int = 2,
    timeout: float = 120.0,
    on_result: Listener | None = None,
    on_info: Callable[[dict[str, str]], None] | None = None,
) -> dict[Item, Result]:
    """Run items on `device` in `workers` processes; `on_result` hears each as it ends, in no fixed
    order.
    """
    results: dict[Item, Result] = {}

    def record(item: Item, result: Result) -> None:
        results[item] = result
        if on_result is not None:
            on_result(item, result)

    tasks = deque(list(group) for _, group in itertools.groupby(items, key=lambda i: i.op))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conformance.preload"])
    running: list[_Worker] = []
    try:
        while tasks or running:
            while tasks and len(running) < workers:
                running.append(_Worker(context, device, timeout))
            for worker in running:
                if worker.idle and tasks:
                    worker.give(tasks.popleft())
            ready = connection.wait([w.pipe for w in running], timeout=0.5)
            for worker in list(running):
                rest = worker.hear(worker.pipe in ready, record, on_info)
                if rest:
                    tasks.appendleft(rest)
                if worker.dead or (worker.idle and (worker.tired or not tasks)):
                    worker.stop()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.stop()
    return results


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, context: Any, device: str, timeout: float) -> None:
        self.pipe, child = context.Pipe()
        self.dead = False
        self._timeout = timeout
        handle, log = tempfile.mkstemp(prefix="conformance-", suffix=".log")
        os.close(handle)
        self._log = Path(log)
        self._process = context.Process(
            target=_serve, args=(child, device, str(self._log)), daemon=True
        )
        self._process.start()
        child.close()
        self._pending: deque[Item] = deque()
        self._deadline = float("inf")
        self._done = 0

    @property
    def idle(self) -> bool:
        return not self._pending and not self.dead

    @property
    def tired(self) -> bool:
        return self._done >= _ITEMS_PER_WORKER

    def give(self, task: list[Item]) -> None:
        """Hand over the items of one operator."""
        self._pending.extend(task)
        self._deadline = time.monotonic() + max(
            self._timeout, _START_SECONDS if not self._done else 0
        )
        # It may have died between two operators: hear() finds out.
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def hear(
        self, ready: bool, record: Listener, on_info: Callable[[dict[str, str]], None] | None
    ) -> list[Item]:
        """Take in what the worker said; returns items to hand to another worker when it is lost."""
        try:
            while ready and self.pipe.poll():
                message = self.pipe.recv()
                if isinstance(message, dict):
                    if on_info is not None:
                        on_info(message)
                elif isinstance(message, Result):
                    record(self._pending.popleft(), message)
                    self._done += 1
                    self._deadline = time.monotonic() + self._timeout
        except (EOFError, OSError):
            self._process.join(10)
            return self._lost(record, Result("crash", self._how_it_died(), self._last_sample()))
        if self._pending and time.monotonic() > self._deadline:
            cause = f"no end within {self._timeout:g} s"
            return self._lost(record, Result("timeout", cause, self._last_sample()))
        return []

    def _lost(self, record: Listener, result: Result) -> list[Item]:
        self.dead = True
        if self._pending:
            record(self._pending.popleft(), result)
        return list(self._pending)

    def stop(self) -> None:
        """End the process and free what belongs to it."""
        self.pipe.close()
        self._process.join(0 if self.dead else 5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._log.unlink(missing_ok=True)

    def _how_it_died(self) -> str:
        code = self._process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        words = self._last_words()
        return f"{how}: {words[:100]}" if words else how

    def _last_sample(self) -> str:
        """The sample that the worker was at."""
        text = self._log.read_text(errors="replace")
        sample = text.rpartition(_SAMPLE)[2].partition("\n")[0] if _SAMPLE in text else "..."
        return f"({sample})"

    def _last_words(self) -> str:
        """The line of the worker's output that says most about its end."""
        text = self._log.read_text(errors="replace").rpartition(_SAMPLE)[2]
        for pattern in _TELLING:
            found = pattern.findall(text)
            if found:
                return re.sub(r"0x[0-9a-f]+", "0x..", found[-1].strip())[:200]
        return ""


_TELLING = (
    re.compile(r"^F\d{4} [^\]]*\] (.*)$", re.M),
    re.compile(r"^\s*what\(\):\s*(.*)$", re.M),
    re.compile(r"^(.*(?:[Aa]ssertion|Check failed|terminate called).*)$", re.M),
    re.compile(r'^  File "[^"]*?(torchtpu_core/[^"]*", line \d+ in \w+)', re.M),
)


def _serve(pipe: connection.Connection, device: str, log: str) -> None:
    """A worker: runs the operators it is given until the parent closes the pipe."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()

    from tests.conformance import check, preload

    def note(sample: Sample) -> None:
        os.write(output, f"{_SAMPLE}{sample.describe()}\n".encode())

    pipe.send(preload.describe(device))
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            break
        for item in task:
            pipe.send(check.run(item, device, note))
    # Skips interpreter shutdown: a device that fails there has already given its results.
    os._exit(0)
