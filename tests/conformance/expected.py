"""The list of known failures of the fast subset (`expected.json`), grouped by reason.

A group is `{"reason", "status", "items"}`, where status is how the items end ("fail" stands for any
way of not passing) and `"written": "by hand"` marks a reason that an update must keep. An item on
the list that passes is an error as much as one that fails and is not on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.check import Result

PATH = Path(__file__).with_name("expected.json")
_BY_HAND = "by hand"


@dataclass
class Group:
    """Items that are known not to pass for one reason."""

    reason: str
    status: str
    items: list[str] = field(default_factory=list)
    by_hand: bool = False


def load(path: Path = PATH) -> list[Group]:
    """The groups in the file; none where there is no file."""
    if not path.exists():
        return []
    return [
        Group(g["reason"], g["status"], g["items"], g.get("written") == _BY_HAND)
        for g in json.loads(path.read_text())
    ]


def by_item(groups: list[Group]) -> dict[str, Group]:
    """The group of each item name."""
    return {item: group for group in groups for item in group.items}


def problem(name: str, result: Result, known: Mapping[str, Group]) -> str | None:
    """What is unexpected about a result, or None."""
    group = known.get(name)
    if result.status in ("pass", "skip"):
        if group is None:
            return None
        return f"{name}: {result.status}, although expected to be {group.status} ({group.reason})"
    found = f"{name}: {result.status}: {result.cause} {result.detail}"
    if group is None:
        return found
    if group.status not in ("fail", result.status):
        return f"{found} (expected: {group.status}: {group.reason})"
    return None


def updated(groups: list[Group], results: Mapping[str, Result]) -> list[Group]:
    """The groups after a run: items that ran are listed anew, the rest and reasons written by hand
    stay.
    """
    known = by_item(groups)
    kept: dict[tuple[str, str, bool], Group] = {}

    def put(reason: str, status: str, by_hand: bool, name: str) -> None:
        group = kept.setdefault((reason, status, by_hand), Group(reason, status, [], by_hand))
        group.items.append(name)

    for name, group in known.items():
        if name not in results:
            put(group.reason, group.status, group.by_hand, name)
    for name, result in results.items():
        if result.status in ("pass", "skip"):
            continue
        group = known.get(name)
        if group is not None and group.by_hand:
            put(group.reason, group.status, True, name)
        else:
            put(result.cause, result.status, False, name)
    for group in kept.values():
        group.items.sort()
    return sorted(kept.values(), key=lambda g: (not g.by_hand, g.status, g.reason))


def save(groups: list[Group], path: Path = PATH) -> None:
    """Write the groups, one item a line."""
    data = [
        {
            "reason": g.reason,
            "status": g.status,
            **({"written": _BY_HAND} if g.by_hand else {}),
            "items": g.items,
        }
        for g in groups
    ]
    path.write_text(json.dumps(data, indent=1) + "\n")
