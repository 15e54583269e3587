"""Checks of indices: in debug mode, and with `torch.tpu.set_bounds_checks(True)`, a program that
indexes also returns whether its indices were in range, and the dispatcher raises what the CPU
raises.

Without them an out-of-range index is clamped when read and dropped when written, as XLA does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torchtpu_core import flags
from torchtpu_core.stablehlo import Builder, Value

#: (the error is an IndexError, its text with "{}" for the value)
Check = tuple[bool, str]
#: an index, the least and the greatest value it may have, and the check
_Range = tuple[Value, int, int, Check]
_Rule = Callable[[dict[str, Any]], Iterable[_Range]]


def _size(x: Value, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


def _listed(call: dict[str, Any]) -> Iterable[_Range]:
    """x[indices]: negative ones count from the end."""
    for dim, index in enumerate(call["indices"]):
        if index is not None and index.dtype not in ("i1", "ui8"):
            n = call["self"].shape[dim]
            text = f"index {{}} is out of bounds for dimension {dim} with size {n}"
            yield index, -n, n - 1, (True, text)


def _along(index_error: bool, negative: bool = False, prefix: str = "") -> _Rule:
    """`index` along `dim`."""

    def rule(call: dict[str, Any]) -> Iterable[_Range]:
        x, dim = call["self"], call["dim"]
        n = _size(x, dim)
        text = f"{prefix}index {{}} is out of bounds for dimension {dim} with size {n}"
        yield call["index"], -n if negative else 0, n - 1, (index_error, text)

    return rule


def _flat(call: dict[str, Any]) -> Iterable[_Range]:
    n = call["self"].numel
    text = f"out of range: tried to access index {{}} on a tensor of {n} elements."
    yield call["index"], -n, n - 1, (True, text)


def _rows(call: dict[str, Any]) -> Iterable[_Range]:
    n = call["weight"].shape[0]
    text = f"index out of range in self: index {{}} into {n} rows"
    yield call["indices"], 0, n - 1, (True, text)


def _bag(call: dict[str, Any]) -> Iterable[_Range]:
    n = call["weight"].shape[0]
    text = f"Index of input takes value {{}} which is not in the valid range [0, {n})"
    yield call["indices"], 0, n - 1, (False, text)


def _classes(x: Value) -> int:
    return x.shape[1 if x.ndim > 1 else 0]


def _target(call: dict[str, Any]) -> Iterable[_Range]:
    target, ignore = call["target"], call["ignore_index"]
    target = target.b.select(target.eq(ignore), 0, target)
    yield target, 0, _classes(call["self"]) - 1, (True, "Target {} is out of bounds.")


def _margin_target(least: int) -> _Rule:
    def rule(call: dict[str, Any]) -> Iterable[_Range]:
        x = call["self"]
        n = x.shape[-1] if x.ndim else 1
        yield call["target"], least, n - 1, (False, "target out of range: {}")

    return rule


def _unpool(call: dict[str, Any]) -> Iterable[_Range]:
    n = math.prod(call["output_size"])
    text = f"Found an invalid max index: {{}} (output volumes are of {n} elements)"
    yield call["indices"], 0, n - 1, (False, text)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("index.Tensor", "index_put.default", "_index_put_impl.default"), _listed),
    **dict.fromkeys(
        (
            "gather.default",
            "scatter.src",
            "scatter.value",
            "scatter.reduce",
            "scatter.value_reduce",
            "scatter_add.default",
            "scatter_reduce.two",
            "index_add.default",
        ),
        _along(index_error=False),
    ),
    "index_select.default": _along(True),
    "index_reduce.default": _along(True),
    "index_copy.default": _along(True, prefix="index_copy_(): "),
    "index_fill.int_Scalar": _along(True, negative=True),
    "index_fill.int_Tensor": _along(True, negative=True),
    "take.default": _flat,
    "put.default": _flat,
    "embedding.default": _rows,
    "_embedding_bag.default": _bag,
    "_embedding_bag_forward_only.default": _bag,
    "nll_loss_forward.default": _target,
    "nll_loss2d_forward.default": _target,
    "max_unpool2d.default": _unpool,
    "max_unpool3d.default": _unpool,
    "multi_margin_loss.default": _margin_target(0),
    "multilabel_margin_loss_forward.default": _margin_target(-1),
}


def wanted() -> bool:
    """Whether programs check their indices."""
    return bool(flags.get(flags.BOUNDS))


def names() -> frozenset[str]:
    """The operators whose indices are checked: "gather.default"."""
    return frozenset(_RULES)


def checks(b: Builder, name: str, call: dict[str, Any]) -> tuple[list[Check], Value | None]:
    """The checks of a call of an ATen operator ("gather.default"), whose arguments are `call`, and
    their outcome: i64[2n], for each whether it failed and a value that did.
    """
    rule = _RULES.get(name)
    found: list[Check] = []
    outcome: list[Value] = []
    for index, low, high, check in rule(call) if rule is not None else ():
        if index.numel == 0:
            continue
        index = index.to("i64")
        bad = (index < low) | (index > high)
        dims = list(range(index.ndim))
        # Of several, the one that is furthest out above, else below.
        above = b.reduce_op("maximum", b.select(index > high, index, low - 1), dims)
        below = b.reduce_op("minimum", b.select(index < low, index, high + 1), dims)
        worst = b.select(above > high, above, below)
        outcome.append(b.reduce_op("or", bad, dims).to("i64"))
        outcome.append(worst)
        found.append(check)
    if not found:
        return [], None
    return found, b.concatenate([b.reshape(v, (1,)) for v in outcome], 0)
