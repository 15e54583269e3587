"""The harness itself: copies keep their form, wrong results are seen, and a lost worker costs one
item.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.common.compare import assert_same, difference
from tests.common.transfer import Transfer
from tests.conformance import expected, known, report, rules
from tests.conformance.check import Result, run
from tests.conformance.items import Item, select
from tests.conformance.samples import Sample


def test_transfer_keeps_views_and_shared_storages() -> None:
    base = torch.arange(24.0).view(4, 6)
    first, second, third = base.t(), base[1:, ::2], base[0].expand(3, 6)
    moved = Transfer("cpu")([first, (second,), {"x": third}])
    copies = [moved[0], moved[1][0], moved[2]["x"]]
    for copy, original in zip(copies, (first, second, third), strict=True):
        assert copy.stride() == original.stride()
        assert copy.storage_offset() == original.storage_offset()
        assert torch.equal(copy, original)
        assert not torch._C._is_alias_of(copy, original)
    copies[0].zero_()
    assert copies[1].sum() == 0


def test_transfer_keeps_conjugate_and_gradient_flags() -> None:
    value = torch.randn(3, dtype=torch.complex64).conj()
    assert Transfer("cpu")(value).is_conj()
    leaf = torch.randn(2, 3, requires_grad=True)
    copy = Transfer("cpu")(leaf)
    assert copy.requires_grad and copy.is_leaf


@pytest.mark.parametrize(
    ("expected_value", "actual", "kind"),
    [
        (torch.zeros(2), torch.zeros(3), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "dtype"),
        (torch.zeros(2), (torch.zeros(2),), "structure"),
        (torch.ones(2), torch.tensor([1.0, float("nan")]), "values: nan where the CPU has none"),
        (torch.ones(2), torch.tensor([1.0, 1.001]), "values: close (< 1%)"),
        (torch.ones(2), torch.tensor([1.0, 3.0]), "values"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "values"),
        (True, False, "values"),
    ],
)
def test_difference_names_the_kind(expected_value: object, actual: object, kind: str) -> None:
    found = difference(expected_value, actual)
    assert found is not None and found.kind == kind


def test_assert_same_shows_inputs() -> None:
    calls = []

    def drifting(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x + len(calls)

    with pytest.raises(AssertionError, match=r"drifting.*values.*\n.*float32\[2, 3\]"):
        assert_same(drifting, torch.zeros(2, 3), device="cpu")


def test_known_operators_pass_on_the_cpu_itself() -> None:
    columns = [
        (v, "float32", 3) for v in ("forward", "backward", "inplace", "out", "noncontiguous")
    ]
    for item in select(
        columns, names=["add", "sort", "nn.functional.dropout", "empty", "linalg.svd"]
    ):
        assert run(item, "cpu").status == "pass", item.name


def test_unsupported_operator_is_named() -> None:
    result = run(Item("geqrf", "forward", "float32", 1), "meta")
    assert (result.status, result.cause) == ("unsupported", "aten::geqrf")


def test_canonical_forms_accept_other_right_answers() -> None:
    matrix = torch.randn(4, 4)
    u, s, vh = torch.linalg.svd(matrix)
    flipped = (-u, s, -vh)
    sample = Sample((matrix,), {}, False, lambda r: r)
    forms = [rules.CANONICAL["linalg.svd"](r, sample) for r in ((u, s, vh), flipped)]
    assert difference(*forms) is None
    wrong = rules.CANONICAL["linalg.svd"]((-u, s, vh), sample)
    assert difference(forms[0], wrong) is not None


def test_distribution_check_sees_constants_and_shifts() -> None:
    drawn = torch.randn(500)
    assert rules.same_distribution(drawn, torch.randn(500))
    assert not rules.same_distribution(drawn, torch.zeros(500))
    assert not rules.same_distribution(drawn, torch.randn(500) + 2)


def test_report_survives_the_file(tmp_path: Path) -> None:
    written = report.Report(info={"torch": "x"})
    written.add(Item("add", "forward", "float32"), Result("pass", strides=2))
    written.add(Item("abs", "forward", "int64"), Result("fail", "values", "1/2 wrong"))
    written.add(Item("abs", "forward", "bool"), Result("unsupported", "aten::abs", "(bool[2])"))
    report.save(written, tmp_path / "r.json")
    read = report.load(tmp_path / "r.json")
    assert list(read.items()) == list(written.items())
    assert [c.title for c in read.causes()] == ["fail: values", "unsupported: aten::abs"]
    assert "| forward | int64 | all | 0 | 1 |" in report.markdown(read)


def test_committed_report_gives_each_failure_a_reason() -> None:
    kept = report.load(Path(__file__).parents[2] / "docs" / "reports" / "opinfo.json")
    bad = [(f"{op}[{key}]", r) for op, key, r in kept.items() if r.status not in ("pass", "skip")]
    assert [name for name, r in bad if not known.reason(name, r.cause)] == []


def test_expected_update_keeps_reasons_written_by_hand() -> None:
    groups = [
        expected.Group("rounding of the sum", "fail", ["a", "b"], by_hand=True),
        expected.Group("aten::c", "unsupported", ["c", "d"]),
    ]
    ran = {"a": Result("fail", "values"), "b": Result("pass"), "c": Result("fail", "shape")}
    new = expected.updated(groups, ran)
    assert [(g.reason, g.items, g.by_hand) for g in new] == [
        ("rounding of the sum", ["a"], True),
        ("shape", ["c"], False),
        ("aten::c", ["d"], False),
    ]
    known = expected.by_item(new)
    assert expected.problem("a", Result("pass"), known) is not None
    assert expected.problem("a", Result("fail", "values"), known) is None
    assert expected.problem("z", Result("fail", "values"), known) is not None
