"""Known failures of the tests named after PyTorch's suites: `expected_suites.json`, in the format
of expected.json, with `file::test[id]` as items. They must fail: one that passes is an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import expected

_PATH = Path(__file__).with_name("expected_suites.json")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is listed; names that no longer exist are refused when whole files are run."""
    if config.getoption("--device") != "tpu":
        return
    known = expected.by_item(expected.load(_PATH))
    here = {f"{i.path.name}::{i.name}": i for i in items if i.path.parent == _PATH.parent}
    for name, group in known.items():
        if name in here:
            here[name].add_marker(pytest.mark.xfail(strict=True, reason=group.reason))
    if any("::" in arg for arg in config.args):
        return
    files = {name.partition("::")[0] for name in here}
    gone = [n for n in known if n.partition("::")[0] in files and n not in here]
    if gone:
        raise pytest.UsageError(f"{_PATH.name} lists tests that do not exist: {', '.join(gone)}")
