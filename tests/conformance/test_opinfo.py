"""The fast subset of the operator database, one test an operator, against the list of known
failures.

The operators of all selected tests run in the background in worker processes; a test waits for its
own.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

from tests.conformance import expected
from tests.conformance.check import Result
from tests.conformance.items import FAST, Item, select
from tests.conformance.pool import run_items

_ITEMS: dict[str, list[Item]] = defaultdict(list)
for _item in select(FAST):
    _ITEMS[_item.op].append(_item)


class _Run:
    """A background run; `result` waits for an item."""

    def __init__(self, items: list[Item], device: str) -> None:
        self._results: dict[Item, Result] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._work, args=(items, device), daemon=True)
        self._thread.start()

    def _work(self, items: list[Item], device: str) -> None:
        try:
            run_items(items, device, on_result=self._hear)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hear(self, item: Item, result: Result) -> None:
        with self._changed:
            self._results[item] = result
            self._changed.notify_all()

    def result(self, item: Item) -> Result:
        with self._changed:
            self._changed.wait_for(lambda: item in self._results or self._ended)
        if item not in self._results:
            raise RuntimeError(f"the run ended without {item.name}") from self._error
        return self._results[item]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, device: str) -> _Run:
    """The run of every item that the selected tests ask for."""
    wanted = [
        test.callspec.params["op"]
        for test in request.session.items
        if test.path == request.path and hasattr(test, "callspec")
    ]
    return _Run([item for op in wanted for item in _ITEMS[op]], device)


@pytest.fixture(scope="module")
def known(device: str) -> dict[str, expected.Group]:
    """Known failures by item; they are those of the device tpu."""
    return expected.by_item(expected.load()) if device == "tpu" else {}


@pytest.mark.parametrize("op", _ITEMS)
def test_op(op: str, run: _Run, known: dict[str, expected.Group]) -> None:
    """The operator does what it does on the CPU, except where expected.json says otherwise."""
    problems = [expected.problem(item.name, run.result(item), known) for item in _ITEMS[op]]
    found = [p for p in problems if p is not None]
    assert not found, "\n" + "\n".join(found)


def test_every_expected_failure_exists() -> None:
    """expected.json names nothing that the fast subset does not run, and nothing twice."""
    listed = [item for group in expected.load() for item in group.items]
    names = {item.name for items in _ITEMS.values() for item in items}
    assert set(listed) <= names
    assert len(listed) == len(set(listed))
