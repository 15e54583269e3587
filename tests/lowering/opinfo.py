"""Checks lowerings without the device, on the ATen calls that PyTorch's OpInfo samples make.

    python -m tests.lowering.opinfo softmax 'nn.functional.*pool.*' [--dtype bfloat16] [--samples 4]
    [--verbose]

Each OpInfo entry whose name matches is run on CPU, forward and backward; every ATen operator it
dispatches is lowered through
its functional overload, compiled, run and compared with what CPU computed. Prints the failures by
operator.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import defaultdict
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.lowering import harness
from torchtpu_core.lowering.variants import variant_of

_SKIP = re.compile(
    r"aten::(empty|set_|resize_|_local_scalar_dense|detach|alias|as_strided|new_empty|lift_fresh|is_)"
)
_RANDOM = re.compile(
    r"aten::(rand|normal|bernoulli|uniform|exponential|cauchy|log_normal|geometric|multinomial|native_dropout|random|poisson|binomial|_standard_gamma|_sample_dirichlet|rrelu|_fused_dropout)"
)


class Recorder(TorchDispatchMode):
    """Collects (functional op, args, kwargs) of every call, arguments cloned; `random`: also of
    those that draw random numbers, which cannot be compared.
    """

    def __init__(self, random: bool = False):
        super().__init__()
        self.random = random
        self.calls: list[tuple[Any, list, dict]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name()
        view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        drawn = _RANDOM.match(name) and not self.random
        if not (_SKIP.match(name) or drawn or view):
            v = variant_of(func)
            if v is not None:
                names = [a.name for a in func._schema.arguments]
                given = {
                    a.name: a.default_value for a in func._schema.arguments if a.has_default_value()
                }
                given |= dict(zip(names, args)) | kwargs
                call_args, call_kwargs = [], {}
                for a, i in zip(v.functional._schema.arguments, v.arguments):
                    if names[i] not in given:
                        continue
                    value = pytree.tree_map_only(
                        torch.Tensor, lambda t: t.detach().clone(), given[names[i]]
                    )
                    if a.kwarg_only:
                        call_kwargs[a.name] = value
                    else:
                        call_args.append(value)
                self.calls.append((v.functional, call_args, call_kwargs))
            else:
                self.calls.append((func, None, None))
        return func(*args, **kwargs)


def record(op: Any, sample: Any, backward: bool, random: bool = False) -> list:
    with Recorder(random) as r:
        out = op(sample.input, *sample.args, **sample.kwargs)
        if backward:
            outs = [
                t
                for t in pytree.tree_leaves(out)
                if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            loss = sum((t.abs() if t.is_complex() else t).float().sum() for t in outs)
            if outs:
                loss.backward()
    return r.calls


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("patterns", nargs="+")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--verbose", action="store_true", help="print whole messages with the program")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    dtype = getattr(torch, a.dtype)
    failures: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    passed, total, entries = 0, 0, 0
    for op in op_db:
        if not any(re.fullmatch(x, op.name) for x in a.patterns) or dtype not in op.dtypes:
            continue
        entries += 1
        backward = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        torch.manual_seed(0)
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=backward), a.samples):
            try:
                calls = record(op, sample, backward)
            except Exception as e:
                failures[f"{op.name}: CPU raises"][f"{type(e).__name__}: {str(e)[:120]}"] += 1
                continue
            for func, args, kwargs in calls:
                total += 1
                try:
                    if args is None:
                        raise NotImplementedError("no functional variant")
                    harness.check(func, *args, **kwargs)
                    passed += 1
                except Exception as e:
                    text = str(e) if a.verbose else str(e).split("\nmodule")[0][:400]
                    failures[f"{op.name} -> {func.name()}"][f"{type(e).__name__}: {text}"] += 1
    for key, messages in failures.items():
        print(key)
        for m, n in list(messages.items())[:3]:
            print(f"   x{n} {m}")
    print(f"{entries} entries, {passed} of {total} ATen calls equal CPU")


if __name__ == "__main__":
    main()
