"""Every ATen operator has a status, an unsupported one its reason, and docs/ops.md says so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from torchtpu_core.lowering import status, unsupported

_ROOT = Path(__file__).resolve().parents[2]


def test_every_operator_has_a_status_and_every_refusal_a_reason() -> None:
    unexplained = []
    for name in status.operators():
        how = status.status(name)
        assert how.kind in status.MEANINGS
        if how.kind in ("host", "unsupported") and not how.reason:
            unexplained.append(name)
    assert not unexplained


def test_the_page_is_fresh() -> None:
    page = runpy.run_path(str(_ROOT / "scripts" / "ops_page.py"))
    assert page["page"]() == page["PAGE"].read_text(), "run python scripts/ops_page.py"


def test_statuses_of_known_operators() -> None:
    kinds = {
        "aten::add.Tensor": "lowered",
        "aten::add_.Tensor": "lowered",
        "aten::linear": "composite",
        "aten::transpose.int": "view",
        "aten::empty.memory_format": "native",
        "aten::nonzero": "lowered",
        "aten::bincount": "host",
        "aten::cudnn_convolution": "unsupported",
    }
    assert {name: status.status(name).kind for name in kinds} == kinds


def test_an_unsupported_operator_says_why() -> None:
    x = torch.ones(2, 2, device="tpu")
    reason = unsupported.reason("aten::mkldnn_linear")
    with pytest.raises(NotImplementedError, match=re.escape(reason)):
        torch.ops.aten.mkldnn_linear(x, x)
