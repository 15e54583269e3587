"""The command `torchtpu`, run in its own process as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtpu_core import plugin

pytestmark = pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")

_ENTRY = """
import torch

def aot_program():
    model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    assert model.weight.is_meta
    return model, (torch.empty(8, 64, dtype=torch.bfloat16),)
"""
_SCRIPT = """
import sys, torch
x = torch.arange(6.0, device="tpu").reshape(2, 3)
print(sys.argv[1], (x @ x.t()).sum().item())
"""


def torchtpu(*args: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchtpu_core.cli", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout if ok else done.stderr


def test_topologies(tmp_path: Path) -> None:
    out = torchtpu("topologies", cwd=tmp_path)
    assert "v5p:2x2x1" in out and "459 TFLOP/s" in out and "15.75 GiB" in out


def test_the_program_as_stablehlo(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    (tmp_path / "s.py").write_text(_ENTRY)
    args = ("aot", "s.py", "--stablehlo", "linear.vhlo", "--stablehlo-version", "1.0.0")
    assert "StableHLO: linear.vhlo" in torchtpu(*args, cwd=tmp_path)
    assert b"StableHLO_v1.0.0" in (tmp_path / "linear.vhlo").read_bytes()
    torchtpu("aot", "s.py", "--stablehlo", "linear.mlir", cwd=tmp_path)
    assert "stablehlo.dot_general" in (tmp_path / "linear.mlir").read_text()


def test_script_with_a_program(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(_ENTRY)
    args = ("aot", "s.py", "--topology", "v6e:1x1", "--json", "r.json", "--save", "linear")
    out = torchtpu(*args, cwd=tmp_path)
    assert "fits" in out and "addmm" in out
    assert "<svg" in (tmp_path / "Linear.v6e-1x1.html").read_text()
    numbers = json.loads((tmp_path / "r.json").read_text())
    assert numbers["flops"] >= 2 * 8 * 64 * 64 and numbers["memory"]["fits"]
    assert (tmp_path / "linear.tpuexe").stat().st_size > 1000


def test_any_script(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(_SCRIPT)
    args = ("aot", "s.py", "hello", "--topology", "v5e:1x1", "--cache", "programs")
    out = torchtpu(*args, cwd=tmp_path)
    assert "hello 83.0" in out and "aten::mm" in out
    n = int(out.strip().splitlines()[-1].split()[0])
    assert n >= 3 and f"{n} of {n} programs compile" in out
    assert len(list((tmp_path / "programs").glob("*.program"))) == n


def test_a_function_is_not_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(_ENTRY)
    err = torchtpu("aot", "s.py", "--cache", "programs", cwd=tmp_path, ok=False)
    assert "--save" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "gpt2", "--layers", "1", "--topology", "v9:2x2"), "known chips"),
        (("--model", "nothing-like-it"), "Nothing is fetched"),
    ],
)
def test_errors_are_one_message(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    err = torchtpu("aot", *args, cwd=tmp_path, ok=False)
    assert message in err and "Traceback" not in err
