"""The pool of workers: results of every item, also when a worker dies or hangs in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.conformance import pool
from tests.conformance.check import Result
from tests.conformance.items import Item, select

_ITEMS = select([("forward", "float32", 2), ("forward", "int64", 2)], names=["add", "mul", "sub"])


def test_every_item_gets_a_result() -> None:
    heard: dict[Item, Result] = {}
    results = pool.run_items(_ITEMS, "cpu", on_result=heard.__setitem__)
    assert results == heard
    assert {item: r.status for item, r in results.items()} == dict.fromkeys(_ITEMS, "pass")


def _lose_first_worker(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """The first worker gets a signal before it is given anything to do."""
    start, lost = pool._Worker.__init__, threading.Event()

    def starting(self: pool._Worker, *args: object) -> None:
        start(self, *args)
        if not lost.is_set():
            lost.set()
            os.kill(self._process.pid, number)

    monkeypatch.setattr(pool._Worker, "__init__", starting)


def test_a_crash_costs_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    _lose_first_worker(monkeypatch, signal.SIGKILL)
    results = pool.run_items(_ITEMS, "cpu", workers=1)
    assert len(results) == len(_ITEMS)
    lost = [r for r in results.values() if r.status != "pass"]
    assert [(r.status, r.cause) for r in lost] == [("crash", "SIGKILL")]


def test_a_hang_costs_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    _lose_first_worker(monkeypatch, signal.SIGSTOP)
    monkeypatch.setattr(pool, "_START_SECONDS", 8.0)
    began = time.monotonic()
    results = pool.run_items(_ITEMS, "cpu", workers=1, timeout=8.0)
    assert time.monotonic() - began < 60
    assert sorted(r.status for r in results.values()).count("timeout") == 1
    assert len(results) == len(_ITEMS)
