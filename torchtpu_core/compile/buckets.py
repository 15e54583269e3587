"""Which sizes share a program: the buckets of open sizes (`torch.tpu.set_shape_buckets`)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

#: the policy: "pow2", "off", or the greatest sizes of the buckets, ascending
_policy: str | tuple[int, ...] = "pow2"


def set_shape_buckets(buckets: Iterable[int] | str | None = None) -> None:
    """How compiled graphs round sizes that vary from call to call.

    None or "pow2": up to powers of two. A list: up to the next of its sizes, beyond the last one to
    powers of two. "off": not at all, so that each set of sizes is a program of its own. Programs
    that exist are kept and found again. Raises ValueError for anything else.
    """
    global _policy
    if buckets is None or buckets == "pow2":
        _policy = "pow2"
    elif buckets == "off":
        _policy = "off"
    elif isinstance(buckets, str):
        raise ValueError(f"shape buckets are 'pow2', 'off' or a list of sizes, got {buckets!r}")
    else:
        given = list(buckets)
        sizes = sorted(set(given))
        if not sizes or any(not isinstance(n, int) or n < 1 for n in sizes):
            raise ValueError(f"shape buckets must be positive sizes, got {given!r}")
        _policy = tuple(sizes)


def get_shape_buckets() -> list[int] | str:
    """The policy in force: "pow2", "off" or the list."""
    return _policy if isinstance(_policy, str) else list(_policy)


def enabled() -> bool:
    """Whether sizes are rounded at all."""
    return _policy != "off"


def bucket(n: int, limit: int | None = None) -> tuple[int, int]:
    """The least and the greatest size that share a program with `n`; none is above `limit`, the
    most that the size can be (`mark_dynamic(max=)`).
    """
    if n < 1:
        return n, n
    low, high = 1 << (n - 1).bit_length() - 1 if n > 1 else 0, 1 << (n - 1).bit_length()
    if not isinstance(_policy, str):
        i = bisect.bisect_left(_policy, n)
        if i < len(_policy):
            low, high = _policy[i - 1] if i else 0, _policy[i]
        else:
            low = max(low, _policy[-1])
    if limit is not None and n <= limit < high:
        high = limit
    return low + 1, high
