"""One call of each registered lowering in each dtype class, as the program a TPU would run."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.aot import samples
from tests.lowering.opinfo import record
from torchtpu_core.aot.lower import Program, lower_operator
from torchtpu_core.lowering import registry

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
#: OpInfo samples of an entry in a dtype
_SAMPLES = 1


@dataclass(frozen=True)
class Case:
    """A lowering in a dtype class, or a graph (of dtype ""); `error`: why it has no program."""

    op: str
    dtype: str
    program: Program | None
    error: str = ""

    @property
    def key(self) -> str:
        """The identity of its program."""
        text = self.program.stablehlo if self.program else ""
        return hashlib.sha256(text.encode()).hexdigest()


def cases(
    only: str = ".*", dtypes: Iterable[torch.dtype] = DTYPES, entries: Iterable[Any] = op_db
) -> Iterator[Case]:
    """The first call of each lowering whose name matches, in each dtype class."""
    rules = registry.rules()
    seen: set[tuple[str, str]] = set()
    every = list(entries)
    consumed: Counter[tuple[str, torch.dtype]] = Counter()
    for dtype in dtypes:
        for entry in every:
            for func, args, kwargs in _calls(entry, dtype, consumed):
                name = registry.name_of(func)
                kind = _class(args, kwargs, dtype)
                if name not in rules or not re.search(only, name) or (name, kind) in seen:
                    continue
                seen.add((name, kind))
                yield _case(func, kind, args, kwargs)


def unreached(
    found: Iterable[str], only: str = ".*", dtypes: Iterable[torch.dtype] = DTYPES
) -> Iterator[Case]:
    """Calls of the lowerings that are not among `found`; views and allocations are no programs."""
    missing = set(registry.rules()) - set(found)
    for name in sorted(n for n in missing if re.search(only, n)):
        op = samples.operator(name)
        if samples.is_view(op) or samples.allocates(op):
            continue
        for dtype in dtypes:
            call = next(samples.calls(op, dtype), None)
            if call is not None:
                yield _case(op, str(dtype).removeprefix("torch."), *call)


def _case(op: Any, kind: str, args: Any, kwargs: Any) -> Case:
    name = registry.name_of(op)
    try:
        return Case(name, kind, lower_operator(op, args, kwargs))
    except NotImplementedError as e:
        return Case(name, kind, None, f"not lowered: {_line(e)}")
    except Exception as e:
        return Case(name, kind, None, f"{type(e).__name__}: {_line(e)}")


def _calls(
    entry: Any, dtype: torch.dtype, consumed: Counter[tuple[str, torch.dtype]]
) -> Iterator[tuple[Any, Any, Any]]:
    if dtype not in entry.dtypes:
        return
    backward = entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    drawn = entry.sample_inputs("cpu", dtype, requires_grad=backward)
    while True:
        try:
            found = list(islice(drawn, 1))
            if not found or consumed[entry.full_name, dtype] >= _SAMPLES:
                return
            consumed[entry.full_name, dtype] += 1
            calls = record(entry, found[0], backward, random=True)
        except Exception:  # what the CPU refuses is no sample
            continue
        yield from (c for c in calls if c[1] is not None)


def _class(args: Any, kwargs: Any, default: torch.dtype) -> str:
    """The dtype class of a call: that of its first tensor."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return str(leaf.dtype).removeprefix("torch.")
    return str(default).removeprefix("torch.")


def _line(e: BaseException) -> str:
    return " ".join(str(e).split())[:300]
