"""A fast part of `make aot`: families whose StableHLO a TPU might refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.aot import graphs, samples, sweep
from tests.aot.cases import Case, cases, unreached
from tests.aot.summary import Verdict, markdown, summarise
from torchtpu_core import aot, plugin
from torchtpu_core.aot.lower import lower_operator
from torchtpu_core.lowering import registry

_ENTRIES = ("cumsum", "logcumsumexp", "sort", "index_add", "softmax", "linalg.qr", "logical_and")
needs_libtpu = pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")
aten = torch.ops.aten


def _compile(found: list[Case], topology: str = "v6e:1x1") -> None:
    assert found and not [c for c in found if c.program is None]
    results = aot.compile_many([c.program for c in found], topology)
    failed = [(c.op, c.dtype, r) for c, r in zip(found, results) if isinstance(r, aot.AotError)]
    assert not failed


@needs_libtpu
def test_lowerings_compile_for_a_tpu() -> None:
    entries = [e for e in op_db if e.name in _ENTRIES and not e.variant_test_name]
    assert len(entries) == len(_ENTRIES)
    found = list(cases(dtypes=(torch.bfloat16, torch.float32), entries=entries))
    reached = {c.op for c in found}
    assert {"aten::sort.default", "aten::cumsum.default", "aten::_softmax.default"} <= reached
    _compile(found)


@needs_libtpu
def test_calls_made_from_schemas_compile_for_a_tpu() -> None:
    """Fused optimizers, lists, an internal operator of the table, a factory of prims."""
    names = "_fused_adamw|_foreach_addcmul|prims::(iota|cat)|_upsample_nearest_exact2d|__xor__"
    found = list(unreached((), names, (torch.float32, torch.int64)))
    reached = {c.op for c in found}
    assert {"aten::_fused_adamw.tensor_lr", "aten::_foreach_addcmul.ScalarList"} <= reached
    assert {"prims::iota.default", "prims::cat.default", "aten::__xor__.Scalar"} <= reached
    _compile(found)


@needs_libtpu
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.complex128])
def test_what_a_tpu_lacks_compiles_for_it(dtype: torch.dtype) -> None:
    x, w = torch.ones(2, 3, 4, 4).to(dtype), torch.ones(4, 3, 2, 2).to(dtype)
    matrix, conv = torch.ones(4, 4).to(dtype), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    found = [Case("mm", "", lower_operator(aten.mm.default, (matrix, matrix), {}))]
    if dtype.is_complex:  # PyTorch makes complex convolutions of real ones before they get here
        op, call = aten._fft_c2c.default, (matrix, [0, 1], 0, True)
    else:
        op, call = aten.convolution.default, (x, w, None, *conv)
    _compile([*found, Case(str(op), "", lower_operator(op, call, {}))])


def test_every_lowering_has_a_call_or_a_reason() -> None:
    """Of those that OpInfo's samples may miss: what views and allocations are not, is callable."""
    names = r"_foreach_(mm|norm)|prims::[c-i]|_fused_(?!rms)|_thnn_|_transform|rand.*\.generator"
    rules = {n for n in registry.rules() if re.search(names, n)}
    called = {c.op for c in unreached((), names, (torch.float32, torch.int64, torch.complex64))}
    other = [samples.operator(n) for n in rules - called - set(samples.REASONS)]
    assert not [op for op in other if not (samples.is_view(op) or samples.allocates(op))]


def test_graphs_of_models_are_lowered() -> None:
    found = list(graphs.cases("MLP"))
    assert [c.op for c in found] == ["MLP forward", "MLP train step"]
    assert not [c.error for c in found if c.program is None]


def test_report_counts_and_lists_failures() -> None:
    program = aot.lowered(torch.tanh, (torch.empty(2, device="meta"),))
    found = [
        Case("MLP forward", "", program),
        Case("aten::tanh.default", "float32", program),
        Case("aten::abs.default", "bool", None, "not lowered: no"),
    ]
    verdicts = {0: Verdict("", 1.5, 2**20, 3e9), 1: Verdict("InvalidProgram: a | b")}
    summary = summarise(found, {"v5e:1x1": verdicts}, [0], "aten::(tanh|abs|view)[.]default")
    failure = {"op": "aten::tanh.default", "dtype": "float32", "reason": "InvalidProgram: a | b"}
    assert summary["by_topology"]["v5e:1x1"] == {"compiled": 0, "failures": [failure]}
    assert summary["fates"] == {"a program": 1, "a view": 1, "without a call": 1}
    text = markdown(summary)
    assert "| v5e:1x1 | 1 | 0 | 1 | 0.0 % |" in text and r"a \| b" in text
    assert "| MLP forward | v5e:1x1 | 1.5 s | 1.00 MiB | 3 GFLOP |" in text
    assert "aten::abs.default | bool | not lowered: no" in text


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    kept = sweep.Verdicts(tmp_path / "verdicts.jsonl")
    kept.put("a", Verdict("", 1.0, 2, 3.0))
    kept.put("b", Verdict("CompilerCrash: x"))
    assert sweep.Verdicts(kept.path).known == kept.known
