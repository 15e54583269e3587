"""One eager operator call as one program: what the dispatcher asks for when it meets a key for the
first time.

`route` says once for each operator how it runs; `build` turns a described call into StableHLO text
and the plan by which the
dispatcher feeds it and wraps its results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchtpu_core import precision, programs
from torchtpu_core.lowering import (
    bounds,
    decompose,
    graph,
    host,
    registry,
    unsupported,
    variants,
)
from torchtpu_core.lowering.dtypes import mlir
from torchtpu_core.lowering.infer import argument, infer, is_out, note_resized, verdict
from torchtpu_core.lowering.pointwise import conj
from torchtpu_core.lowering.random_bits import random_blocks, random_input
from torchtpu_core.lowering.specs import ScalarSpec, TensorSpec, map_specs, tensor_specs
from torchtpu_core.plans import Plan
from torchtpu_core.stablehlo import Builder, Module, TensorType, Value, strided
from torchtpu_core.stablehlo import types as T
from torchtpu_core.stablehlo.value import broadcast_shapes

# How an operator runs (the values are the dispatcher's, csrc/dispatch/op_record.h).
LOWER, COMPOSITE, HOST, UNSUPPORTED = range(4)


def resolve(name: str, overload: str) -> OpOverload:
    """The operator of a schema name ("aten::add", "Tensor")."""
    space, _, op = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), op), overload or "default")


def route(name: str, overload: str) -> tuple[int, list[int], str]:
    """(route, arguments whose numbers are run-time inputs, why it is unsupported)."""
    op = resolve(name, overload)
    variant = variants.variant_of(op)
    functional = variant.functional if variant else op
    rule = registry.find(functional)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeExplicitAutograd"
    )
    if rule is not None and variant is not None:
        names = [a.name for a in op._schema.arguments]
        return LOWER, [names.index(n) for n in rule.runtime if n in names], ""
    if registry.name_of(op) in host.REASONS or registry.name_of(functional) in host.REASONS:
        return HOST, [], ""
    decomposed = variant is not None and decompose.find(functional) is not None
    if decomposed and not (composite and _is_factory(op)):
        return LOWER, [], ""
    if composite:
        return COMPOSITE, [], ""
    return UNSUPPORTED, [], unsupported.reason(f"{name}.{overload}" if overload else name)


def _is_factory(op: OpOverload) -> bool:
    """Takes no tensors. As a composite it is `empty` and a fill: no decomposition is better."""
    return not any("Tensor" in str(a.type) for a in op._schema.arguments)


class Inputs:
    """The arguments of @main while it grows: one per slot, run-time number and the random state."""

    def __init__(self, b: Builder):
        self.b = b
        self.order: list[tuple] = []
        self._values: dict[tuple, Value] = {}

    def get(self, key: tuple, t: TensorType) -> Value:
        if key not in self._values:
            self._values[key] = self.b.add_arg(t)
            self.order.append(key)
        return self._values[key]

    def position(self, key: tuple) -> int | None:
        return self.order.index(key) if key in self._values else None


def build(name: str, overload: str, args: Sequence[Any]) -> Plan:
    """The plan for one call. `args`: every schema argument, tensors as TensorSpec, run-time numbers
    as ScalarSpec.

    Raises what PyTorch raises for wrong arguments (from the operator's meta kernel) and
    NotImplementedError for an
    operator, overload or dtype that is not lowered.
    """
    op = resolve(name, overload)
    variant = variants.variant_of(op)
    if variant is None:
        raise NotImplementedError(f"{op.name()} has no functional overload to lower")
    metas, expected, resize = infer(op, variant, args)
    if resize:
        return Plan(resize=resize)
    module = Module(_module_name(op), **precision.of_products())
    b = module.function("main", [], public=True)
    inputs = Inputs(b)
    wide = _is_wide(args)
    bases: dict[int, Value] = {}

    def value_of(x: Any) -> Any:
        if isinstance(x, ScalarSpec):
            dtype = scalar_dtype(x.value, wide)
            v = inputs.get(("scalar", x.index, dtype), TensorType(mlir(dtype), ()))
            v.weak = True
            return v
        if x.host:
            dtype = scalar_dtype(x.value, wide) if x.weak else x.dtype
            v = inputs.get(("host", x.index, dtype), TensorType(mlir(dtype), ()))
            v.weak = x.weak
            return v
        return read(b, inputs, bases, x)

    f_args, f_kwargs = [], {}
    for a, i in zip(variant.functional._schema.arguments, variant.arguments):
        x = map_specs(value_of, argument(variant, args, i))
        if a.kwarg_only:
            f_kwargs[a.name] = x
        else:
            f_args.append(x)
    try:
        out = graph.lower_op(b, variant.functional, f_args, f_kwargs, expected)
        if variant.mutated and any(_is_bounded(v) for v in pytree.tree_leaves(out)):
            raise host.OnHost(f"{op.name()}: writes a result whose size is data")
    except host.OnHost:
        return Plan(host=True)
    except NotImplementedError:
        raise
    except Exception:
        verdict(op, metas)
        raise
    checks = None
    if bounds.wanted():
        name = registry.name_of(variant.functional).removeprefix("aten::")
        bound = registry.bind(variant.functional, f_args, f_kwargs)
        checks = bounds.checks(b, name, {a.name: v for a, v in bound})
    plan = _finish(op, variant, args, metas, b, module, inputs, bases, out, expected, checks)
    if programs.logged():
        _log(op, args, plan)
    return plan


def _log(op: OpOverload, args: Sequence[Any], plan: Plan) -> None:
    """One aligned line for a program that was built: operator, arguments, results, size."""
    shown = " ".join(f"{mlir(t.dtype)}{list(t.sizes)}" for t in tensor_specs(list(args)))
    results = " ".join(f"{mlir(o[0])}{list(o[1])}" for o in plan.outputs)
    ops = plan.text.count(" = ")
    text = f"{op.name():<40} {ops:>5} ops  {shown} -> {results}"
    path = programs.write(plan.text, _module_name(op))
    print(f"torchtpu program {text}  {path}", file=sys.stderr)


def _module_name(op: OpOverload) -> str:
    return f"{op._opname}_{op._overloadname}".replace(".", "_")


def _is_wide(args: Sequence[Any]) -> bool:
    """Whether numbers must keep double precision: some tensor or requested dtype is f64 or c128."""
    wide = (torch.float64, torch.complex128)
    return (
        any(
            x in wide or (isinstance(x, TensorSpec) and not x.weak and x.dtype in wide)
            for x in pytree.tree_leaves(list(args))
            if isinstance(x, (torch.dtype, TensorSpec))
        )
        or torch.get_default_dtype() in wide
    )


def scalar_dtype(value: Any, wide: bool) -> torch.dtype:
    """The dtype in which a run-time number travels."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex128 if wide else torch.complex64
    return torch.float64 if wide else torch.float32


def read(b: Builder, inputs: Inputs, bases: dict[int, Value], x: TensorSpec) -> Value:
    """The logical value of a tensor argument, through its view of its base."""
    if not x.initialised:
        return b.constant(0, mlir(x.dtype), x.sizes)
    if x.slot not in bases:
        bases[x.slot] = _base(b, inputs, x)
    return _lazy(b, x, strided.read(b, bases[x.slot], mlir(x.dtype), x.sizes, x.strides, x.offset))


def _base(b: Builder, inputs: Inputs, x: TensorSpec) -> Value:
    """The base of a tensor argument: its slot's buffer without padding."""
    buffer = inputs.get(("slot", x.slot), TensorType(mlir(x.base_dtype), x.room or x.base_dims))
    return b.slice(buffer, [0] * buffer.ndim, x.base_dims)


def _lazy(b: Builder, x: TensorSpec, v: Value) -> Value:
    """Between what a tensor means and what its storage holds, either way."""
    if x.neg:
        v = b.negate(v)
    return conj(b, v) if x.conj else v


# ---- results -------------------------------------------------------------------------------------


def _finish(
    op: OpOverload,
    variant: variants.Variant,
    args: Sequence[Any],
    metas: Sequence[Any],
    b: Builder,
    module: Module,
    inputs: Inputs,
    bases: dict[int, Value],
    out: Any,
    expected: Any,
    checks: tuple[list[bounds.Check], Value | None] | None = None,
) -> Plan:
    plan = Plan()
    results: list[Value] = []
    values = list(out) if isinstance(out, (list, tuple)) else [out]
    single_list = len(op._schema.returns) == 1 and str(op._schema.returns[0].type) == "List[Tensor]"
    new_values: list[Any] = (
        [values] if single_list and not variant.mutated else values[: variant.returns_new]
    )
    if variant.returns_new == 1 and isinstance(expected, (list, tuple)) and not single_list:
        expected = expected if variant.mutated else [expected]
    targets = _targets(variant, args, values)
    # What meta kernels could not tell: out= tensors of another size than the values they receive.
    outs = {t.index for i in variant.mutated if is_out(op, i) for t in tensor_specs(args[i])}
    fresh = [(t, v) for t, v in targets if t.index in outs]
    note_resized(plan.resize, [t for t, _ in fresh], [v for _, v in fresh])
    if plan.resize:
        return plan
    hints = _hints(expected, new_values, single_list)
    returns_new: list[tuple] = []
    counts: list[Value] = []
    for v, hint in zip(new_values, hints):
        if isinstance(v, list):
            where = []
            for w, h in zip(v, hint):
                where.append(len(results))
                new_output(b, plan, results, w, h)
            returns_new.append(("outs", where))
        elif v is None:
            returns_new.append(("none",))
        elif isinstance(v, int):
            returns_new.append(("value", v))
        elif _is_bounded(v):
            returns_new.append(("out", len(results)))
            counts.append(_new_bounded(b, plan, results, v))
        else:
            returns_new.append(("out", len(results)))
            new_output(b, plan, results, v, hint)
    write_all(b, plan, results, inputs, bases, targets)
    feed = iter(returns_new)
    for r in op._schema.returns:
        if r.alias_info is not None and r.alias_info.is_write:
            plan.returns.append(("arg", _same_alias(op, r)))
        else:
            plan.returns.append(next(feed, ("none",)))
    if counts:
        results.append(b.concatenate(counts, 0))
    if checks is not None and checks[1] is not None:
        plan.checks = checks[0]
        results.append(checks[1])
    seal(b, module, plan, results, inputs)
    return plan


def seal(
    b: Builder,
    module: Module,
    plan: Plan,
    results: list[Value],
    inputs: Inputs,
    annotate: Callable[[Module, Builder, Plan], None] | None = None,
) -> None:
    """Completes the plan and its text: the order of the inputs, the random state, what is donated
    to which result; `annotate` may add attributes before the text is printed.
    """
    plan.random_blocks = random_blocks(b)
    key = random_input(b)
    plan.inputs = list(inputs.order)
    if key is not None:
        plan.inputs.append(("random",))
    for i in plan.donate:
        n = next(j for j, o in enumerate(plan.outputs) if o[4] >= 0 and o[4] == plan.inputs[i][1])
        b.arg_attrs[i] = f"tf.aliasing_output = {n} : i32"
    if annotate is not None:
        annotate(module, b, plan)
    b.finish(results)
    plan.text = str(module)


def _same_alias(op: OpOverload, returned: torch._C.Argument) -> int:
    """The argument that a result is the same tensor as."""
    wanted = returned.alias_info.before_set
    return next(
        i
        for i, a in enumerate(op._schema.arguments)
        if a.alias_info is not None and a.alias_info.before_set == wanted
    )


def _hints(expected: Any, new_values: Sequence[Any], single_list: bool) -> list[Any]:
    """Meta tensors (for strides) beside each new value; None where unknown."""
    if single_list:
        return (
            [list(expected) if expected is not None else [None] * len(new_values[0])]
            if new_values
            else []
        )
    if expected is None:
        return [[None] * len(v) if isinstance(v, list) else None for v in new_values]
    flat = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    return flat[: len(new_values)]


def new_output(b: Builder, plan: Plan, results: list[Value], v: Value, hint: Any) -> None:
    """Adds a result that becomes a new tensor, with the strides of `hint` if they are dense."""
    from torchtpu_core.lowering.dtypes import torch_dtype

    sizes = tuple(v.shape)
    strides = (
        tuple(hint.stride())
        if isinstance(hint, torch.Tensor) and hint.shape == sizes
        else strided.contiguous_strides(sizes)
    )
    order = strided.dense_order(sizes, strides)
    if order is None:
        strides = strided.contiguous_strides(sizes)
        order = tuple(range(len(sizes)))
    physical = b.transpose(v, order)
    results.append(physical)
    plan.outputs.append((torch_dtype(v.dtype), physical.shape, sizes, strides, -1))


def _is_bounded(v: Any) -> bool:
    return isinstance(v, registry.Bounded)


def _new_bounded(b: Builder, plan: Plan, results: list[Value], v: registry.Bounded) -> Value:
    """Adds a result at its bound; its size as i64[1]."""
    from torchtpu_core.lowering.dtypes import torch_dtype

    order = v.order or tuple(range(v.value.ndim))
    sizes = v.value.shape
    strides = [0] * len(sizes)
    for d, n in zip(order, strided.contiguous_strides([sizes[d] for d in order])):
        strides[d] = n
    physical = b.transpose(v.value, order)
    plan.counted.append((len(results), v.dim, order))
    plan.outputs.append((torch_dtype(v.value.dtype), physical.shape, sizes, tuple(strides), -1))
    results.append(physical)
    return b.reshape(v.count.to("i64"), (1,))


def _targets(
    variant: variants.Variant, args: Sequence[Any], values: Sequence[Any]
) -> list[tuple[TensorSpec, Value]]:
    """(destination, value) for every tensor the call writes."""
    rest = list(values[variant.returns_new :]) if variant.mutated else []
    pairs: list[tuple[TensorSpec, Value]] = []
    one_list = len(variant.mutated) == 1 and isinstance(args[variant.mutated[0]], (list, tuple))
    if one_list and (len(rest) != 1 or not isinstance(rest[0], (list, tuple))):
        rest = [rest]
    for i, v in zip(variant.mutated, rest):
        if isinstance(args[i], (list, tuple)):
            pairs.extend((d, w) for d, w in zip(args[i], v) if d is not None)
        elif args[i] is not None and v is not None:
            pairs.append((args[i], v))
    return pairs


def write_all(
    b: Builder,
    plan: Plan,
    results: list[Value],
    inputs: Inputs,
    bases: dict[int, Value],
    targets: Sequence[tuple[TensorSpec, Value]],
) -> None:
    """Writes each value through its destination's view; one new base a slot, however many views of
    it are written.
    """
    done: dict[int, int] = {}
    for spec, v in targets:
        if broadcast_shapes(v.shape, spec.sizes) != tuple(spec.sizes):
            raise RuntimeError(
                f"output with shape {list(spec.sizes)} doesn't match the broadcast shape "
                f"{list(v.shape)}"
            )
        v = _lazy(b, spec, b.expand(b.convert(v, mlir(spec.dtype)), spec.sizes))
        held = spec.slot in done
        covers = strided.covers(
            T.ITEMSIZE[mlir(spec.base_dtype)],
            spec.base_dims,
            T.ITEMSIZE[mlir(spec.dtype)],
            spec.sizes,
            spec.strides,
            spec.offset,
        )
        base_dtype, base_dims = mlir(spec.base_dtype), spec.base_dims
        base: Value | None = results[done[spec.slot]] if held else bases.get(spec.slot)
        if base is None and spec.initialised and not covers:
            base = bases[spec.slot] = _base(b, inputs, spec)
        if covers:
            order = strided.dense_order(spec.sizes, spec.strides)
            new = b.transpose(v, order)
            out_dtype = spec.dtype
        else:
            new = strided.write(
                b, base, base_dtype, base_dims, v, spec.sizes, spec.strides, spec.offset
            )
            out_dtype = spec.base_dtype
        entry = (out_dtype, new.shape, (), (), spec.slot)
        if held:
            results[done[spec.slot]], plan.outputs[done[spec.slot]] = new, entry
            continue
        done[spec.slot] = len(results)
        results.append(new)
        plan.outputs.append(entry)
    for slot, n in done.items():
        i = inputs.position(("slot", slot))
        if i is not None and b.args[i].type == results[n].type:
            plan.donate.append(i)
