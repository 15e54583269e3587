"""In-place and `out=` overloads in terms of their functional one, read off the operator schemas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch._ops import OpOverload

from torchtpu_core.lowering import registry

NONE, OUT_DTYPE = -1, -2
_FACTORY = {
    "dtype": OUT_DTYPE,
    "layout": NONE,
    "device": NONE,
    "pin_memory": NONE,
    "generator": NONE,
}


@dataclass(frozen=True)
class Variant:
    """How an overload maps onto the functional overload that computes its values.

    functional: the overload to lower (the op itself when it mutates nothing, or has its own
    lowering).
    arguments: for each argument of `functional`, the index of the argument in the op's schema; NONE
    for one that the op
        lacks, OUT_DTYPE for the dtype a factory must give its result (that of `out`).
    mutated: indices of the op's arguments that receive results, in result order.
    returns_new: how many results of `functional` come first and are returned as new tensors.
    """

    functional: OpOverload
    arguments: tuple[int, ...]
    mutated: tuple[int, ...]
    returns_new: int


def _writes(arg: torch._C.Argument) -> bool:
    return arg.alias_info is not None and arg.alias_info.is_write


@cache
def variant_of(op: OpOverload) -> Variant | None:
    """None when an op mutates its arguments and no functional overload says with what."""
    args = op._schema.arguments
    mutated = tuple(i for i, a in enumerate(args) if _writes(a))
    every = tuple(range(len(args)))
    rule = registry.find(op)
    if not mutated:
        extra = rule.mutates if rule else ()
        names = [a.name for a in args]
        return Variant(op, every, tuple(names.index(n) for n in extra), len(op._schema.returns))
    new_returns = sum(1 for r in op._schema.returns if r.alias_info is None)
    if rule is not None:
        return Variant(op, every, mutated, new_returns)
    outs = {i for i in mutated if args[i].is_out}
    for candidate in _candidates(op):
        c_args = candidate._schema.arguments
        if any(_writes(a) for a in c_args):
            continue
        by_name = {a.name: i for i, a in enumerate(args) if i not in outs}
        order = [by_name.get(a.name, _FACTORY.get(a.name) if outs else None) for a in c_args]
        if any(i is None for i in order) or sum(i >= 0 for i in order) != len(by_name):
            continue
        if all(i < 0 or _same_type(a, args[i]) for a, i in zip(c_args, order)):
            # A functional overload returns what `out=` receives, then the new values of the other
            # arguments, then those of arguments that only its lowering knows to be written.
            targets = [i for i in mutated if i in outs] + [i for i in mutated if i not in outs]
            n_results = len(candidate._schema.returns)
            if n_results == len(mutated):
                new = 0
            elif n_results == new_returns + len(mutated):
                new = new_returns
            else:
                continue
            c_rule = registry.find(candidate)
            targets += [by_name[n] for n in (c_rule.mutates if c_rule else ())]
            return Variant(candidate, tuple(order), tuple(targets), new)
    return None


def _same_type(a: torch._C.Argument, b: torch._C.Argument) -> bool:
    return str(a.type) == str(b.type)


def _candidates(op: OpOverload):
    name = op._opname
    stems = [name]
    if name.endswith("_") and not name.endswith("__"):
        stems += [name[:-1], name[:-1] + "_functional", name + "functional"]
    if name.startswith("__i") and name.endswith("__"):
        stems.append("__" + name[3:])
    if name.endswith("_out"):
        stems.append(name[: -len("_out")])
    stems.append(name + "_functional")
    space = getattr(torch.ops, op.namespace)
    for stem in stems:
        packet = getattr(space, stem, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            yield getattr(packet, overload)
