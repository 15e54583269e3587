"""The table of lowerings: ATen operator -> function that emits StableHLO.

A lowering is registered by the operator's name without the namespace, for the *functional* overload
(in-place and `out=`
variants follow from it), and gets every argument of the schema: positional ones in order, keyword-
only ones by name (those it
declares). Tensors arrive as Values, optional ones as None, lists as lists; everything else is a
Python object. It returns a Value (Bounded where its size is data: eager mode only), or
a tuple/list as in the schema. Result dtypes are converted to what PyTorch's meta kernels promise,
so a body may compute in a wider type.

    @lowering("add.Tensor", promote=DEFAULT, runtime=("alpha",))
    def _add(b, x, y, *, alpha): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from torchtpu_core.lowering import register_all
from torchtpu_core.lowering.promotion import promote as _promote
from torchtpu_core.stablehlo import Builder, Value

#: keyword arguments that never change a lowering's result
_IGNORABLE = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "dtype", "out",
     "requires_grad")
)  # fmt: skip


@dataclass(frozen=True)
class Bounded:
    """A result whose size along `dim` is data: `value` has as many places there as there can be, of
    which the first `count` (0-d, an integer) are meant. `order`: its dims from slowest to fastest
    in memory; None is row-major.
    """

    value: Value
    count: Value
    dim: int = 0
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Rule:
    """One registered lowering.

    operands: positional arguments that are promoted and broadcast together (all leading tensors and
    scalars by default).
    runtime: Scalar/float arguments that may arrive as 0-d Values (changing them never recompiles).
    mutates: tensor arguments that the op writes although its schema does not say so; the lowering
    returns their new values
        after the results.
    """

    fn: Callable[..., Any]
    promote: str | None
    operands: tuple[str, ...] | None
    upcast: bool
    runtime: tuple[str, ...]
    mutates: tuple[str, ...]
    keywords: frozenset[str]
    var_keywords: bool
    exact: bool


_RULES: dict[str, Rule] = {}


def lowering(
    *names: str,
    promote: str | None = None,
    operands: Sequence[str] | None = None,
    upcast: bool = True,
    runtime: Sequence[str] = (),
    mutates: Sequence[str] = (),
    exact: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a lowering for each of `names` ("add.Tensor"; "relu" is "relu.default";
    "prims::iota" with a namespace).

    promote: DEFAULT, FLOAT or LONG (see promotion.py): the operands are converted to the compute
    dtype and broadcast.
    upcast: low-precision floats are computed in f32 and rounded once (only with `promote`).
    exact: but not where all operands are bf16 tensors: one operation, whose result is the same. A
    compiler keeps f32 between operations where it sees it, at twice the memory.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        params = inspect.signature(fn).parameters.values()
        rule = Rule(
            fn,
            promote,
            tuple(operands) if operands is not None else None,
            upcast,
            tuple(runtime),
            tuple(mutates),
            frozenset(p.name for p in params if p.kind is p.KEYWORD_ONLY),
            any(p.kind is p.VAR_KEYWORD for p in params),
            exact,
        )
        for name in names:
            key = canonical(name)
            if key in _RULES:
                raise ValueError(f"{key} has two lowerings")
            _RULES[key] = rule
        return fn

    return register


def canonical(name: str) -> str:
    """ "add.Tensor" -> "aten::add.Tensor", "relu" -> "aten::relu.default"."""
    space, _, rest = name.rpartition("::")
    return f"{space or 'aten'}::{rest if '.' in rest else rest + '.default'}"


def name_of(op: OpOverload) -> str:
    """The canonical name of an overload."""
    return f"{op.namespace}::{op._opname}.{op._overloadname}"


def find(op: OpOverload) -> Rule | None:
    """The lowering registered for exactly this overload, or None."""
    register_all()
    return _RULES.get(name_of(op))


def rules() -> dict[str, Rule]:
    """Every registered lowering, by canonical name."""
    register_all()
    return dict(_RULES)


def bind(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(schema argument, value) for every argument, defaults filled in."""
    bound = []
    for i, a in enumerate(op._schema.arguments):
        if i < len(args) and not a.kwarg_only:
            bound.append((a, args[i]))
        elif a.name in kwargs:
            bound.append((a, kwargs[a.name]))
        elif a.has_default_value():
            bound.append((a, a.default_value))
        else:
            raise TypeError(f"{name_of(op)}: missing argument {a.name}")
    return bound


def apply(
    rule: Rule, b: Builder, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Calls a lowering with bound, promoted arguments."""
    bound = bind(op, args, kwargs)
    positional = [v for a, v in bound if not a.kwarg_only]
    names = [a.name for a, _ in bound if not a.kwarg_only]
    keywords = {}
    for a, v in bound:
        if not a.kwarg_only:
            continue
        if rule.var_keywords or a.name in rule.keywords:
            keywords[a.name] = v
        elif a.name not in _IGNORABLE and v != a.default_value:
            raise NotImplementedError(f"{name_of(op)}: argument {a.name}={v!r} is not lowered")
    if rule.promote is not None:
        if rule.operands is None:
            where = [i for i, v in enumerate(positional) if _is_operand(bound[i][0], v)]
        else:
            where = [
                names.index(n) for n in rule.operands if positional[names.index(n)] is not None
            ]
        for i, v in zip(
            where, _promote([positional[i] for i in where], rule.promote, rule.upcast, rule.exact)
        ):
            positional[i] = v
    return rule.fn(b, *positional, **keywords)


def _is_operand(arg: Any, value: Any) -> bool:
    if isinstance(value, Value):
        return True
    kind = str(arg.type)
    return kind in ("Tensor", "number", "Scalar") and isinstance(value, (bool, int, float, complex))


def conform(b: Builder, op: OpOverload, out: Any, expected: Any) -> Any:
    """Results converted to the dtypes of `expected` (meta tensors in the same structure); a wrong
    shape is a bug here.
    """
    if expected is None or not isinstance(out, (Value, list, tuple)):
        return out
    if isinstance(out, Value):
        if not isinstance(expected, torch.Tensor):
            return out
        # A few meta kernels say (1,) where the real ones give a 0-d loss.
        if out.shape != tuple(expected.shape) and not (out.shape == () and expected.shape == (1,)):
            raise AssertionError(
                f"lowering of {name_of(op)} gives shape {out.shape}, "
                f"PyTorch says {tuple(expected.shape)}"
            )
        from torchtpu_core.lowering.dtypes import mlir

        return b.convert(out, mlir(expected.dtype))
    if isinstance(expected, torch.Tensor):
        return conform(b, op, out[0], expected)
    # Values beyond the results are those of arguments that the op writes without saying so.
    return [conform(b, op, o, e) for o, e in zip(out, expected)] + list(out[len(expected) :])
