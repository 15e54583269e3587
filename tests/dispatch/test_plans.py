"""Plans on disk: a process that meets only what an earlier one met lowers nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CODE = """
    import json, sys
    import torch, torchtpu_core
    x = torch.arange(12.0, device="tpu").view(3, 4)
    x[1:] += 0.5
    y = torch.nn.functional.layer_norm(x, (4,)).softmax(-1) @ x.t()
    torch.manual_seed(3)
    values = [y.cpu().tolist(), torch.rand(3, device="tpu").tolist(), (x.sum(0) > 1).tolist()]
    stats = torchtpu_core.stats()
    print(json.dumps([
        values, "torchtpu_core.lowering" in sys.modules,
        stats["programs_compiled"], stats["programs_loaded"],
    ]))
"""


@pytest.fixture
def run(run_python: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def run(**env: str) -> Any:
        done = run_python(_CODE, TORCHTPU_CACHE_DIR=str(tmp_path), **env)
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_the_second_process_lowers_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    values, lowered, compiled, loaded = run()
    assert lowered and compiled > 4 and loaded == 0
    assert run() == [values, False, 0, compiled]
    # In debug mode the same calls have other keys.
    again, lowered, _, _ = run(TORCHTPU_MODE="debug")
    assert again == values and lowered


def test_damaged_entries_are_lowered_again(run: Callable[..., Any], tmp_path: Path) -> None:
    values, _, compiled, _ = run()
    entries = sorted(tmp_path.glob("*.program"))
    for entry in entries[::2]:
        entry.write_bytes(entry.read_bytes()[:-3])
    again, lowered, _, _ = run()
    assert again == values and lowered
    assert run() == [values, False, 0, compiled]


def test_plans_that_no_longer_unpickle_are_misses(run: Callable[..., Any], tmp_path: Path) -> None:
    from torchtpu_core.cache import ProgramCache

    values, _, _, _ = run()
    cache = ProgramCache(tmp_path, 10**9)
    for entry in tmp_path.glob("*.program"):
        cache.put(entry.stem, b"not a pickle, nor a program")
    again, lowered, compiled, _ = run()
    assert again == values and lowered and compiled > 4


def test_programs_are_logged_on_every_run(run_python: Callable[..., Any], tmp_path: Path) -> None:
    for _ in range(2):
        env = {"TORCHTPU_CACHE_DIR": str(tmp_path), "TORCHTPU_LOG": "programs"}
        done = run_python("import torch; torch.ones(2, device='tpu').add(1).cpu()", **env)
        assert "torchtpu program aten::add.Tensor" in done.stderr


def test_programs_that_were_let_go_are_built_again() -> None:
    """From disk, with the same results; those used last stay."""
    import torch

    import torchtpu_core
    from torchtpu_core import _C

    def run() -> list[float]:
        return [(torch.ones(n, device="tpu") * 2).sum().item() for n in range(1, 30)]

    def loads() -> int:
        stats = torchtpu_core.stats()
        return stats["programs_compiled"] + stats["programs_loaded"]

    expected = run()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="tpu")
    x = torch.ones(3, device="tpu")
    y = compiled(x)
    before = loads()
    assert run() == expected and loads() == before
    for _ in range(20):  # half of all each time, whatever else this process has loaded
        _C._evict_programs(10)
    assert run() == expected and loads() > before
    torch.testing.assert_close(compiled(x), y)
    before = loads()
    _C._evict_programs(1 << 40)  # room for all: nothing goes
    assert run() == expected and loads() == before


_MAPPED = """
    import torch
    from torchtpu_core import _C

    def mappings():
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    torch.ones(1, device="tpu").item()
    before = mappings()
    for n in range(2, 130):
        torch.ones(n, device="tpu").cumsum(0)
    torch.tpu.synchronize()
    full = mappings()
    for _ in range(8):
        _C._evict_programs(0)
    print(before, full, mappings())
"""


def test_eviction_gives_memory_mappings_back(run_python: Callable[..., Any]) -> None:
    """XLA's CPU compiler maps memory for each program, and dies where the system refuses more."""
    before, full, after = map(int, run_python(_MAPPED).stdout.split())
    assert full - before > 128 and after - before < (full - before) / 4
