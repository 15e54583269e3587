"""Running one item: each variant calls the operator on the CPU and on the device and compares.

A comparison is strict first. Only when it fails are the milder readings tried, in this order: close
to the result in double precision, or as close to it as the CPU's (whose rounding was at fault),
equal in canonical form (`rules.CANONICAL`), and random on the CPU too (then shape, dtype,
reproducibility and distribution are compared instead).
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.testing._internal.opinfo.core import OpInfo

from tests.common.compare import (
    EXACT,
    Difference,
    describe,
    difference,
    strides_differ,
    tensors_in,
)
from tests.common.transfer import Transfer
from tests.conformance import rules
from tests.conformance.items import Item, dtype_named, operators
from tests.conformance.samples import Sample, draw, noncontiguous, seed_all, widened

STATUSES = ("pass", "fail", "unsupported", "crash", "timeout", "skip")

_SEED = 20240607
_OTHER_SEED = 77


class Result(NamedTuple):
    """The outcome of an item: one of STATUSES, the cause that groups alike failures, and what
    happened here.
    """

    status: str
    cause: str = ""
    detail: str = ""
    samples: int = 0
    strides: int = 0


class CpuFails(Exception):
    """The CPU cannot run this sample: there is nothing to compare with."""


class Mismatch(Exception):
    """The device ran the sample, and its result is not right."""

    def __init__(self, found: Difference) -> None:
        super().__init__(f"{found.kind}: {found.detail}")
        self.found = found


def run(item: Item, device: str, on_sample: Callable[[Sample], None] | None = None) -> Result:
    """Run one item and say how it went; stops at the first sample that fails.

    `on_sample` hears of each sample before it runs, so that a crash can be told of.
    """
    op = operators()[item.op]
    dtype = dtype_named(item.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = draw(
                op,
                dtype,
                item.samples,
                requires_grad=item.variant == "backward",
                reference=item.variant == "reference",
            )
        except Exception as error:
            return Result("skip", "no samples on the CPU", _first_line(error))
        check = _Check(op, device)
        done, skipped = 0, ""
        for sample in samples:
            if on_sample is not None:
                on_sample(sample)
            try:
                _VARIANTS[item.variant](check, sample)
                done += 1
            except CpuFails as error:
                skipped = skipped or str(error)
            except Mismatch as error:
                found = error.found
                detail = f"{found.detail} for ({sample.describe()})"
                return Result("fail", found.kind, detail, done, check.strides)
            except Exception as error:
                return _raised(error, sample)._replace(samples=done, strides=check.strides)
        if done == 0:
            return Result("skip", skipped or "no samples")
        return Result("pass", samples=done, strides=check.strides)


class _Check:
    """What the variants share: the operator, where it runs, and how its results are compared."""

    def __init__(self, op: OpInfo, device: str) -> None:
        self.op = op
        self.device = device
        self.tolerance = rules.tolerance_of(op)
        self.values = op.full_name not in rules.UNINITIALISED and device != "meta"
        self.random = op.full_name in rules.RANDOM
        self.strides = 0

    def to_device(self, sample: Sample) -> Sample:
        """The sample on the device under test, less what the operator wants on the CPU."""
        moved = sample.moved(Transfer(self.device))
        at = rules.ON_CPU.get(self.op.full_name)
        if at is None or at >= len(sample.args):
            return moved
        kept = Transfer("cpu")(sample.args[at])
        return moved._replace(args=(*moved.args[:at], kept, *moved.args[at + 1 :]))

    def reference(self, call: Callable[[Sample], Any], sample: Sample, seed: int = _SEED) -> Any:
        """The CPU's result; whatever it raises means that there is none."""
        seed_all(seed)
        try:
            return call(sample)
        except Exception as error:
            raise CpuFails(f"CPU: {type(error).__name__}: {_first_line(error)}") from error

    def actual(self, call: Callable[[Sample], Any], sample: Sample) -> Any:
        """The device's result, from the same seed as the CPU's; what names no device and has no
        tensors is called with the device as default.
        """
        seed_all(_SEED)
        placed = "device" in sample.kwargs or tensors_in((sample.args, sample.kwargs))
        with contextlib.nullcontext() if placed else torch.device(self.device):
            return call(sample)

    def compare(
        self, expected: Any, actual: Any, call: Callable[[Sample], Any], sample: Sample
    ) -> None:
        """Raise Mismatch unless `actual` is a right result of `call(sample)`."""
        for e, a in zip(tensors_in(expected), tensors_in(actual), strict=False):
            if a.device.type != torch.device(self.device).type:
                raise Mismatch(Difference("device", f"result on {a.device}"))
            self.strides += strides_differ(e, a)
        if not self.values:
            _raise(difference(expected, actual, values=False))
        elif self.random:
            self._compare_random(expected, actual, call, sample)
        else:
            found = difference(expected, actual, self.tolerance)
            if found is not None and not self._excused(found, expected, actual, call, sample):
                raise Mismatch(found)

    def _excused(
        self,
        found: Difference,
        expected: Any,
        actual: Any,
        call: Callable[[Sample], Any],
        sample: Sample,
    ) -> bool:
        if found.kind == "dtype":
            return self._dtype_as_meta(expected, actual, call, sample)
        if not found.kind.startswith("values"):
            return False
        if self._close_to_precise(expected, actual, call, sample):
            return True
        canonical = rules.CANONICAL.get(self.op.full_name)
        if canonical is not None and self._same_canonical(canonical, expected, actual, sample):
            return True
        # several: a few draws of a small sample may agree
        if not any(self._is_random(i, expected, call, sample) for i in range(1, 9)):
            return False
        self._compare_random(expected, actual, call, sample)
        return True

    def _is_random(
        self, i: int, expected: Any, call: Callable[[Sample], Any], sample: Sample
    ) -> bool:
        with _other_seeds(i * _OTHER_SEED):
            other = self.reference(call, sample.moved(Transfer("cpu")), i * _OTHER_SEED)
        return difference(expected, other, lambda _: EXACT) is not None

    def _dtype_as_meta(
        self, expected: Any, actual: Any, call: Callable[[Sample], Any], sample: Sample
    ) -> bool:
        """Whether PyTorch's device-independent kernels give the device's dtypes, and the values are
        right.

        The CPU keeps the statistics of low-precision normalisations in the input's dtype; they and
        cuda do not.
        """
        try:
            meta = self.reference(call, sample.moved(Transfer("meta")))
        except CpuFails:
            return False
        if difference(meta, actual, values=False) is not None:
            return False
        pairs = zip(tensors_in(expected), tensors_in(actual), strict=True)
        return all(
            difference(e, a.detach().cpu().to(e.dtype), self.tolerance) is None for e, a in pairs
        )

    def _close_to_precise(
        self, expected: Any, actual: Any, call: Callable[[Sample], Any], sample: Sample
    ) -> bool:
        try:
            precise = self.reference(call, widened(sample))
        except CpuFails:
            return False
        narrowed = _like(precise, expected)
        if narrowed is None:
            return False
        return difference(narrowed, actual, self.tolerance) is None or _as_accurate(
            tensors_in(precise), tensors_in(expected), tensors_in(_on_cpu(actual)), self.tolerance
        )

    def _same_canonical(
        self, canonical: rules.Canonical, expected: Any, actual: Any, sample: Sample
    ) -> bool:
        if isinstance(sample.args[-1], tuple) and len(sample.args[-1]) == len(tensors_in(expected)):
            sample = sample._replace(args=sample.args[:-1])  # of the out variant
        try:
            forms = [canonical(_on_cpu(result), sample) for result in (expected, actual)]
        except Exception:
            return False
        dtypes = [t.dtype for t in tensors_in(_on_cpu(expected)) if t.is_floating_point()]
        narrow = dtypes[0] if dtypes else torch.float32
        tolerance = self.tolerance(narrow)
        loose = tolerance.loosened(type(tolerance)(10 * tolerance.rtol, 10 * tolerance.atol))
        return (
            difference(*forms, lambda d: loose if d.is_floating_point or d.is_complex else EXACT)
            is None
        )

    def _compare_random(
        self, expected: Any, actual: Any, call: Callable[[Sample], Any], sample: Sample
    ) -> None:
        _raise(difference(expected, actual, values=False))
        again = self.actual(call, self.to_device(sample))
        found = difference(_on_cpu(actual), again, lambda _: EXACT)
        if found is not None:
            raise Mismatch(Difference("random: not reproducible from the seed", found.detail))
        for e, a in zip(tensors_in(expected), tensors_in(actual), strict=True):
            if not rules.same_distribution(e, a):
                raise Mismatch(Difference("random: another distribution", describe(e)))


@contextmanager
def _other_seeds(offset: int) -> Iterator[None]:
    """Inside, `torch.manual_seed` seeds otherwise: some operators seed themselves."""
    seed = torch.manual_seed
    torch.manual_seed = lambda value: seed(value + offset)
    try:
        yield
    finally:
        torch.manual_seed = seed


def _forward(check: _Check, sample: Sample) -> None:
    """The functional call: result, aliasing with the inputs, and inputs left (or changed) as on the
    CPU.
    """
    call = _caller(check.op)
    on_cpu, on_device = sample.moved(Transfer("cpu")), check.to_device(sample)
    expected = check.reference(call, on_cpu)
    actual = check.actual(call, on_device)
    check.compare(expected, actual, call, sample)
    _compare_aliases(expected, on_cpu, actual, on_device)
    _compare_inputs(check, sample, on_cpu, on_device)


def _noncontiguous(check: _Check, sample: Sample) -> None:
    """The functional call with inputs that are not contiguous."""
    _forward(check, noncontiguous(sample))


def _inplace(check: _Check, sample: Sample) -> None:
    """The in-place variant: result, and that it is the very tensor that was passed."""
    if sample.broadcasts:
        raise CpuFails("no in-place call: self would be broadcast")
    method = check.op.get_inplace()

    def call(s: Sample) -> Any:
        return method(*s.args, **s.kwargs)

    on_cpu, on_device = sample.moved(Transfer("cpu")), check.to_device(sample)
    expected = check.reference(call, on_cpu)
    actual = check.actual(call, on_device)
    check.compare(expected, actual, call, sample)
    if (expected is on_cpu.args[0]) != (actual is on_device.args[0]):
        raise Mismatch(Difference("in-place: the result is not self", describe(actual)))
    _compare_inputs(check, sample, on_cpu, on_device, expected)


def _out(check: _Check, sample: Sample) -> None:
    """The out variant: into a fitting tensor, into a strided one, and into one of a wrong size."""
    functional = check.reference(_caller(check.op), sample.moved(Transfer("cpu")))
    single = isinstance(functional, torch.Tensor)
    leaves = (functional,) if single else functional
    if not isinstance(leaves, (tuple, list)) or not all(
        isinstance(t, torch.Tensor) for t in leaves
    ):
        raise CpuFails("no out variant: results are not tensors")
    if not leaves or any(t.layout is not torch.strided for t in leaves):
        raise CpuFails("no out variant: results are not dense")
    done = 0
    for flavour, make in _OUTS.items():
        outs = tuple(make(t) for t in leaves)
        try:
            _out_once(check, sample, outs, single, keeps_place=flavour != "resized")
            done += 1
        except CpuFails:
            continue
        except Mismatch as error:
            kind, detail = error.found
            raise Mismatch(Difference(f"out ({flavour}): {kind}", detail)) from None
    if done == 0:
        raise CpuFails("no out variant on the CPU for this sample")


def _out_once(
    check: _Check, sample: Sample, outs: tuple[torch.Tensor, ...], single: bool, keeps_place: bool
) -> None:
    def call(s: Sample) -> Any:
        *args, out = s.args
        return check.op(*args, **s.kwargs, out=out[0] if single else out)

    sample = sample._replace(args=(*sample.args, outs))
    on_cpu, on_device = sample.moved(Transfer("cpu")), check.to_device(sample)
    places, theirs = ([_memory(t) for t in s.args[-1]] for s in (on_device, on_cpu))
    expected = check.reference(call, on_cpu)
    actual = check.actual(call, on_device)
    check.compare(expected, actual, call, sample)
    # Overloads with a list of outs return nothing.
    returned = on_device.args[-1] if actual is None else (actual,) if single else actual
    stays = [_memory(t) == place for t, place in zip(on_cpu.args[-1], theirs, strict=True)]
    for given, result, place, stay in zip(on_device.args[-1], returned, places, stays, strict=True):
        if given is not result:
            raise Mismatch(Difference("the result is not the tensor given", describe(result)))
        if keeps_place and stay and _memory(given) != place:
            raise Mismatch(Difference("the tensor given was moved", describe(given)))
    _compare_inputs(check, sample, on_cpu, on_device, expected)


def _memory(t: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return t.data_ptr(), t.stride()


def _garbage(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.full(shape, 1, dtype=like.dtype)


_OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fitting": lambda t: _garbage(tuple(t.shape), t),
    "strided": lambda t: _garbage((*t.shape, 2), t)[..., 0],
    "resized": lambda t: _garbage((t.numel() + 1,), t),
}


def _backward(check: _Check, sample: Sample) -> None:
    """Gradients of every differentiable input, from fixed random cotangents."""
    op = check.op

    def call(s: Sample) -> Any:
        results = s.postprocess(op.gradcheck_wrapper(op.get_op(), *s.args, **s.kwargs))
        if op.full_name in rules.UNORDERED:
            results = rules.in_order(results)
        differentiable = [t for t in tensors_in(results) if t.requires_grad]
        inputs = [t for t in tensors_in([s.args, s.kwargs]) if t.requires_grad]
        if not differentiable or not inputs:
            raise RuntimeError("no result or no input requires grad")
        cotangents = [_cotangent(t, i) for i, t in enumerate(differentiable)]
        return list(torch.autograd.grad(differentiable, inputs, cotangents, allow_unused=True))

    on_cpu, on_device = sample.moved(Transfer("cpu")), check.to_device(sample)
    expected = check.reference(call, on_cpu)
    actual = check.actual(call, on_device)
    check.compare(expected, actual, call, sample)


def _cotangent(result: torch.Tensor, index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    # Drawn wide and rounded narrow, so that a result in double precision gets the same numbers.
    wide = torch.complex128 if result.is_complex() else torch.float64
    drawn = torch.randn(result.shape, generator=generator, dtype=wide)
    rounded = drawn.to(torch.complex64) if result.is_complex() else drawn.bfloat16()
    return rounded.to(result.dtype).to(result.device)


_VARIANTS: dict[str, Callable[[_Check, Sample], None]] = {
    "forward": _forward,
    "backward": _backward,
    "inplace": _inplace,
    "out": _out,
    "noncontiguous": _noncontiguous,
    "reference": _forward,
}


def _caller(op: OpInfo) -> Callable[[Sample], Any]:
    return lambda s: op(*s.args, **s.kwargs)


def _compare_aliases(expected: Any, on_cpu: Sample, actual: Any, on_device: Sample) -> None:
    """A result that is a view of an input on the CPU is one on the device, and no other is."""
    inputs = zip(tensors_in(on_cpu.args), tensors_in(on_device.args), strict=True)
    pairs = [(c, d) for c, d in inputs if c.layout is torch.strided and c.numel()]
    for e, a in zip(tensors_in(expected), tensors_in(actual), strict=True):
        if e.layout is not torch.strided or e.numel() == 0 or a.device.type == "meta":
            continue
        for c, d in pairs:
            wanted, found = torch._C._is_alias_of(e, c), torch._C._is_alias_of(a, d)
            if wanted != found:
                kind = (
                    "alias: a copy where the CPU gives a view"
                    if wanted
                    else "alias: a view where not"
                )
                raise Mismatch(Difference(kind, describe(a)))


def _compare_inputs(
    check: _Check, sample: Sample, on_cpu: Sample, on_device: Sample, compared: Any = ()
) -> None:
    """Inputs are after the call what they are on the CPU: untouched, or written to in the same way.

    `compared` holds CPU tensors that were compared already, as results.
    """
    if not check.values or check.random:
        return
    done = {id(t) for t in tensors_in(compared)}
    sides = (tensors_in([s.args, s.kwargs]) for s in (sample, on_cpu, on_device))
    for before, expected, actual in zip(*sides, strict=True):
        if id(expected) in done:
            continue
        untouched = difference(before, expected, lambda _: EXACT) is None
        untouched = untouched and check.op.full_name not in rules.AVERAGES
        found = difference(expected, actual, (lambda _: EXACT) if untouched else check.tolerance)
        if found is not None:
            kind = "input changed by the call" if untouched else "input not written as on the CPU"
            raise Mismatch(Difference(f"{kind}: {found.kind}", found.detail))


def _raise(found: Difference | None) -> None:
    if found is not None:
        raise Mismatch(found)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().resolve_conj().resolve_neg()
    if isinstance(value, (list, tuple)):
        return [_on_cpu(v) for v in value]
    return value


def _like(precise: Any, expected: Any) -> Any:
    """`precise` rounded to the dtypes of `expected`, or None where they are not alike."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(precise, torch.Tensor) or precise.shape != expected.shape:
            return None
        return precise.detach().to(expected.dtype)
    if isinstance(expected, (list, tuple)):
        if not isinstance(precise, (list, tuple)) or len(precise) != len(expected):
            return None
        parts = [_like(p, e) for p, e in zip(precise, expected, strict=True)]
        alike = all((p is None) == (e is None) for p, e in zip(parts, expected, strict=True))
        return parts if alike else None
    return precise if type(precise) is type(expected) else None


#: how much larger than the CPU's an error may be, and how large that one, as a part of the largest
#: value of the result
_ACCURACY, _CPU_ERROR = 2.0, 0.02


def _as_accurate(
    precise: list[torch.Tensor],
    expected: list[torch.Tensor],
    actual: list[torch.Tensor],
    tolerance: Callable[[torch.dtype], Any],
) -> bool:
    """Whether each result is as close to double precision as the CPU's, by the largest error: where
    a result cancels, both round differently and neither is right.
    """
    if len(precise) != len(actual):
        return False
    for p, e, a in zip(precise, expected, actual, strict=True):
        if difference(e, a, values=False) is not None:
            return False
        if not (p.is_floating_point() or p.is_complex()) or p.numel() == 0:
            if difference(e, a, tolerance) is not None:
                return False
            continue
        finite = p.isfinite()
        if difference(e[~finite], a[~finite], tolerance) is not None:
            return False
        errors = [(x.detach().to(p.dtype) - p.detach())[finite].abs() for x in (e, a)]
        of_cpu, of_device = (float(x.max()) if x.numel() else 0.0 for x in errors)
        scale = float(p.detach()[finite].abs().max()) if errors[0].numel() else 0.0
        if not (of_cpu <= _CPU_ERROR * scale and of_device <= _ACCURACY * of_cpu):
            return False
    return True


_OP = re.compile(r"\b[a-z_]\w*::\w+(?:\.\w+)?|\b(?:aten|prims|torchvision)\.\w+(?:\.\w+)?")
_NO_DTYPE = re.compile(r"\bdtype \w+")
_SPECIFIC = (
    (re.compile(r"0x[0-9a-f]+"), "0x.."),
    (re.compile(r"(?:[a-z]+\d*)?\[[-\d, x]*\]"), "[..]"),
    (re.compile(r"\([-\d, ]*\)"), "(..)"),
    (re.compile(r"tensor<[^>]*>"), "tensor<..>"),
    (re.compile(r"%\w+"), "%.."),
    (re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?\b"), "N"),
)


def _raised(error: Exception, sample: Sample) -> Result:
    line = _first_line(error)
    detail = f"{line} for ({sample.describe()})"
    named = _OP.search(str(error))
    if isinstance(error, NotImplementedError):
        if named:
            name = named.group().replace("aten.", "aten::", 1)
            return Result("unsupported", name, f"({sample.describe()})")
        dtype = _NO_DTYPE.search(str(error))
        if dtype:
            return Result("unsupported", dtype.group(), f"({sample.describe()})")
    cause = line
    for pattern, general in _SPECIFIC:
        cause = pattern.sub(general, cause)
    return Result("fail", f"{type(error).__name__}: {cause[:120]}{_place(error)}", detail)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _place(error: Exception) -> str:
    """The innermost function of ours below the error, without a line number: reports should not
    move with it.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if f"{os.sep}torchtpu_core{os.sep}" in frame.filename:
            path = frame.filename.rpartition(f"{os.sep}torchtpu_core{os.sep}")[2]
            return f" @ {path}:{frame.name}"
    return ""
