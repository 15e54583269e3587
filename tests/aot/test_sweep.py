"""A fast part of `make aot`: families whose StableHLO a TPU might refuse."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.aot import sweep
from torchtpu_core import aot, plugin

_ENTRIES = ("cumsum", "logcumsumexp", "sort", "index_add", "softmax", "linalg.qr", "logical_and")


@pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")
def test_lowerings_compile_for_a_tpu() -> None:
    entries = [e for e in op_db if e.name in _ENTRIES and not e.variant_test_name]
    assert len(entries) == len(_ENTRIES)
    found = list(sweep.cases(dtypes=(torch.bfloat16, torch.float32), entries=entries))
    assert not [c for c in found if c.program is None]
    reached = {c.op for c in found}
    assert {"aten::sort.default", "aten::cumsum.default", "aten::_softmax.default"} <= reached
    results = aot.compile_many([c.program for c in found], "v6e:1x1")
    failed = [(c.op, c.dtype, r) for c, r in zip(found, results) if isinstance(r, aot.AotError)]
    assert not failed


def test_report_counts_and_lists_failures() -> None:
    program = aot.lowered(torch.tanh, (torch.empty(2, device="meta"),))
    found = [
        sweep.Case("aten::tanh.default", "float32", program),
        sweep.Case("aten::abs.default", "bool", None, "not lowered: no"),
    ]
    summary = sweep.summarise(found, {"v5e:1x1": {0: "InvalidProgram: a | b"}}, "aten::(tanh|abs)")
    failure = {"op": "aten::tanh.default", "dtype": "float32", "reason": "InvalidProgram: a | b"}
    assert summary["by_topology"]["v5e:1x1"] == {"compiled": 0, "failures": [failure]}
    text = sweep.markdown(summary)
    assert "| v5e:1x1 | 1 | 0 | 1 | 0.0 % |" in text and r"a \| b" in text
    assert "aten::abs.default | bool | not lowered: no" in text
