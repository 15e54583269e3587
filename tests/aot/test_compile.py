"""libtpu compiles captured programs for TPUs that are not there, and says what they cost."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtpu_core import aot, plugin
from torchtpu_core.aot import chips, pool, report, saved
from torchtpu_core.aot.lower import Program
from torchtpu_core.aot.models import train_step
from torchtpu_core.lowering import registry
from torchtpu_core.stablehlo import Builder, Value

pytestmark = pytest.mark.skipif(plugin.libtpu_path() is None, reason="libtpu is not installed")

M, K, N = 256, 512, 128


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(K, N, dtype=torch.bfloat16, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


def x(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


@torch.library.custom_op("torchtpu_tests::refused", mutates_args=())
def _refused(x: torch.Tensor) -> torch.Tensor:
    """An operator that is lowered to what no compiler knows."""
    return x.clone()


_refused.register_fake(torch.empty_like)


@registry.lowering("torchtpu_tests::refused")
def _lower_refused(b: Builder, x: Value) -> Value:
    return b.custom_call("no_such_kernel", [x], [x.type])[0]


@pytest.fixture(scope="module")
def compiled() -> aot.Compiled:
    model = torch.nn.Sequential(Layer())
    return aot.compile_for(model, (x(M, K),), topology="v5e:1x1")


def test_cost_is_that_of_the_product(compiled: aot.Compiled) -> None:
    assert 2 * M * K * N <= compiled.flops <= 2.1 * M * K * N
    once = 2 * (M * K + K * N + M * N)
    assert once <= compiled.bytes_accessed <= 4 * once
    r = compiled.roofline
    assert r.compute == pytest.approx(compiled.flops / 197e12)
    assert r.bound == "memory" and r.seconds == r.memory and r.network == 0


def test_memory(compiled: aot.Compiled) -> None:
    m = compiled.memory
    assert m.arguments == 2 * (M * K + K * N) and m.outputs >= 2 * M * N
    assert m.fits and 15 << 30 < m.available < 16 << 30
    assert m.generated_code > 0 and m.peak >= m.arguments
    assert m.needed == m.arguments + m.outputs + m.temporaries + m.generated_code
    names = {b.name: b.size for b in compiled.analysis.buffers}
    assert names["0.weight"] == 2 * K * N and names["arg0"] == 2 * M * K


def test_optimized_program_names_lines_and_modules(compiled: aot.Compiled) -> None:
    assert compiled.hlo.startswith("HloModule") and compiled.executable
    assert compiled.compiler_seconds > 0
    top = compiled.top_ops[0]
    line = Layer.forward.__code__.co_firstlineno + 1
    assert top.source == f"{__file__}:{line}"
    assert top.name.startswith("0/") and top.cycles > 0
    assert compiled.analysis.fusions >= 1


def test_html_report_stands_alone(compiled: aot.Compiled, tmp_path: Path) -> None:
    page = report.write(compiled, tmp_path / "r.html").read_text()
    assert page.count("<svg") >= 2 and "http" not in page
    assert "0.weight" in page and Path(__file__).name in page


def test_mesh_gathers_split_weights() -> None:
    compiled = aot.compile_for(
        Layer(), (x(M, K),), topology="v5e:2x2", mesh={"fsdp": 4}, shardings=aot.fsdp("fsdp", 4)
    )
    assert compiled.devices == 4
    assert compiled.memory.arguments == 2 * (M * K + K * N) // 4
    (gather,) = compiled.collectives
    assert (gather.kind, gather.group, gather.count) == ("all-gather", 4, 1)
    assert gather.bytes == 2 * K * N and gather.sent == gather.bytes * 3 // 4
    assert gather.name == "weight" and compiled.traffic == {
        ("all-gather", 4): (1, gather.bytes, gather.sent)
    }
    assert 2 * M * K * N / 4 <= compiled.flops <= 2.2 * M * K * N / 4
    assert compiled.roofline.network == pytest.approx(gather.sent / 200e9)


def test_donated_state_stays_split() -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.add_(x.sum(0))
        return x.sum()

    compiled = aot.compile_for(
        step, (x(K), x(8, K)), topology="v5e:2x2", mesh={"x": 4},
        shardings={"arg0": ("x",), "arg1": ("x", None)}, report=False,
    )  # fmt: skip
    assert compiled.memory.aliased >= 2 * K // 4 and not compiled.hlo
    assert ("bf16", (K // 4,)) in compiled.outputs


@pytest.mark.parametrize("split", [False, True])
def test_a_train_step_of_convolutions_copies_no_weights(split: bool) -> None:
    """The compiler makes the gradients in the order of the weights; on a mesh, too."""
    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(128, 128, 3, bias=False), torch.nn.Conv2d(128, 128, 1, bias=False)
        ).to(memory_format=torch.channels_last)
        images = torch.empty(16, 128, 16, 16).to(memory_format=torch.channels_last)

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        bf16 = {n: p.bfloat16() for n, p in model.named_parameters()}
        return torch.func.functional_call(model, bf16, (x.bfloat16(),)).float().square().mean()

    step, state = train_step(model, loss)
    mesh = {"mesh": {"d": 4}, "shardings": aot.fsdp("d", 4)} if split else {}
    topology = "v5e:2x2" if split else "v5e:1x1"
    c = aot.compile_for(step, (state, images), topology=topology, **mesh)
    assert c.stablehlo.count("LayoutConstraint") == 2
    assert not re.findall(r"= f32\[[\d,]*128\]\S* copy\(", c.hlo)


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(aot.DoesNotFit, match=r"too much\nlargest buffers:(?s:.*)bf16") as e:
        n = 100_000
        aot.compile_for(lambda a, b: (a @ b).relu() @ a, (x(n, n), x(n, n)), topology="v5e:1x1")
    assert e.value.needed > e.value.available > 0 and e.value.buffers[0].size >= 2 * n * n


def test_many_programs_at_once_and_one_that_is_refused() -> None:
    good = aot.lowered(Layer(), (x(8, K),))
    bad = Program("bad", "module { nonsense }", (), {})
    done: list[int] = []
    first, second, third = aot.compile_many([good, bad, good], "v6e:1x1", done=done.append)
    assert isinstance(first, aot.Compiled) and isinstance(third, aot.Compiled)
    assert isinstance(second, aot.InvalidProgram) and "nonsense" in str(second)
    assert sorted(done) == [0, 1, 2]


def test_refused_operator_is_named_with_its_line() -> None:
    def refused(a: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchtpu_tests.refused(a.sin())

    with pytest.raises(aot.InvalidProgram) as caught:
        aot.compile_for(lambda a: refused(a) + 1, (x(4),), topology="v5e:1x1")
    message = str(caught.value)
    assert "no_such_kernel" in message  # libtpu's own words
    line = refused.__code__.co_firstlineno + 1
    assert "does not compile: torchtpu_tests.refused.default" in message
    assert f'File "{__file__}", line {line}, in refused' in message


def test_options_of_the_compiler() -> None:
    call = {"topology": "v5e:1x1", "report": False}
    options = {"xla_optimization_level": "EFFORT_O1"}
    plain = aot.compile_for(Layer(), (x(8, K),), **call)
    quick = aot.compile_for(Layer(), (x(8, K),), **call, compiler_options=options)
    assert quick.flops == plain.flops and quick.cache_key != plain.cache_key
    with pytest.raises(aot.InvalidProgram, match="xla_no_such_option"):
        aot.compile_for(Layer(), (x(8, K),), **call, compiler_options={"xla_no_such_option": True})


#: the largest slices that the chips' makers sell; libtpu itself takes larger ones
LARGE = {"v5e:16x16": 256, "v5p:16x20x28": 8960, "tpu7x:16x24x24": 2 * 9216}


@pytest.mark.parametrize("topology", LARGE)
def test_a_whole_pod(topology: str) -> None:
    n = LARGE[topology]
    compiled = aot.compile_for(
        lambda a, w: a @ w, (x(n * 16, K), x(K, N)), topology=topology,
        mesh={"data": n // 4, "model": 4}, shardings={"arg0": ("data", None), "arg1": ("model",)},
    )  # fmt: skip
    assert compiled.devices == compiled.topology.devices == n
    assert compiled.memory.arguments == 2 * (64 * K + K * N // 4)
    ((kind, group),) = compiled.traffic
    assert group == 4 and kind in ("all-gather", "all-reduce", "reduce-scatter")


def test_topologies() -> None:
    for name, kind, devices in (
        ("v4:2x2x1", "TPU v4", 8),
        ("v5e:4x4", "TPU v5 lite", 16),
        ("v5p:4x4x4", "TPU v5", 64),
        ("tpu7x:2x2x1", "TPU7x", 8),
    ):
        found = aot.topology_of(name)
        assert (found.kind, found.devices) == (kind, devices) and found.chip.kind == kind
        shared = 1 if name.startswith("v4") else found.chip.devices  # its cores share their HBM
        assert 0.9 < found.memory * shared / found.chip.hbm < 1.01


@pytest.mark.parametrize("name", ["v99:2x2", "v5e", "v5e:3x3"])
def test_unknown_topology_lists_the_known(name: str) -> None:
    with pytest.raises(aot.UnknownTopology, match=r"v5e:2x2.*tpu7x:2x2x1"):
        aot.compile_for(Layer(), (x(8, K),), topology=name)


def test_mesh_larger_than_the_slice() -> None:
    with pytest.raises(ValueError, match="mesh has 8 devices, the topology v5e:2x2 only 4"):
        aot.compile_for(Layer(), (x(8, K),), topology="v5e:2x2", mesh={"x": 8})


@pytest.mark.parametrize(
    ("mesh", "shardings", "message"),
    [
        (None, {"arg0": ("a",)}, "give mesh="),
        ({"a": 4}, {"weigth": ("a",)}, r"'weigth': no input has that name, only weight, arg0"),
        ({"a": 4}, {"arg0": ("b",)}, r"no axis 'b', only \['a'\]"),
        ({"a": 3}, {"arg0": ("a",)}, "dimension of 8 does not split into 3"),
        ({"a": 4}, {"arg0": ("a", None, None)}, "3 entries for 2 dimensions"),
    ],
)
def test_shardings_that_do_not_fit(mesh: Any, shardings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aot.lowered(Layer(), (x(8, K),), mesh=mesh, shardings=shardings)


def test_abort_of_the_compiler_is_an_exception() -> None:
    with pytest.raises(aot.CompilerCrash, match="signal 6") as e, pool.worker() as worker:
        os.write(worker._log.fileno(), b"the compiler's last words")

        def abort() -> None:
            time.sleep(0.2)
            worker._process.send_signal(signal.SIGABRT)

        thread = threading.Thread(target=abort)
        thread.start()
        for _ in range(10_000):
            worker.ask({"do": "topology", "topology": "v5e:2x2"}, 60)
    thread.join()
    assert "last words" in e.value.log
    assert aot.topology_of("v5e:2x2").devices == 4


def test_time_limit() -> None:
    program = aot.lowered(Layer(), (x(8, K),))
    aot.topology_of("v5e:1x1")
    with pytest.raises(aot.CompileTimeout, match=r"0\.001 s"):
        aot.compile_program(program, "v5e:1x1", timeout=0.001)
    assert aot.compile_program(program, "v5e:1x1", report=False).flops > 0


def test_lock_is_left_alone_where_a_tpu_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLOW_MULTIPLE_LIBTPU_LOAD", raising=False)
    assert pool.environment()["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    monkeypatch.setattr(plugin, "tpu_device_files", lambda: [Path("/dev/accel0")])
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in pool.environment()
    assert pool.max_workers() == 1


def test_libtpu_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "libtpu_path", lambda: None)
    with pytest.raises(aot.LibtpuMissing, match="pip install"):
        pool.Worker()


def test_clocks_follow_from_peaks() -> None:
    mhz = {name: round(chip.clock / 1e6) for name, chip in chips.CHIPS.items()}
    assert mhz == {
        "v2": 702, "v3": 938, "v4": 1049, "v5e": 1503, "v5p": 1751, "v6e": 1751, "tpu7x": 2200,
    }  # fmt: skip


# ---- saved executables ---------------------------------------------------------------------------


def test_saved_executable_round_trip(compiled: aot.Compiled, tmp_path: Path) -> None:
    path = saved.save(compiled, tmp_path / "layer")
    assert path.suffix == saved.SUFFIX
    again = saved.load(path)
    assert again.executable == compiled.executable and again.fingerprint == compiled.fingerprint
    assert [i["name"] for i in again.inputs] == ["0.weight", "arg0"]
    again.check("TPU v5 lite", 4, compiled.topology.version)
    assert again.cache_key == compiled.cache_key


def test_saved_executable_is_refused_elsewhere(compiled: aot.Compiled, tmp_path: Path) -> None:
    again = saved.load(saved.save(compiled, tmp_path / "layer"))
    version = compiled.topology.version
    with pytest.raises(aot.WrongChip, match=r"v5e:1x1 \(TPU v5 lite\).*this host has TPU v6 lite"):
        again.check("TPU v6 lite", 4, version)
    with pytest.raises(aot.WrongChip, match="shows 0 of them"):
        again.check("TPU v5 lite", 0, version)
    with pytest.raises(aot.WrongChip, match="another libtpu"):
        again.check("TPU v5 lite", 1, "TFRT TPU v5 lite, older")


def test_saved_executable_refused_by_the_cpu_client(compiled: aot.Compiled, tmp_path: Path) -> None:
    from torchtpu_core import _C

    client = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path())).create_client()
    again = saved.load(saved.save(compiled, tmp_path / "layer"))
    with pytest.raises(aot.WrongChip, match=r"this host has .*cpu"):
        again.load(client)


_INSTALLED = """
    import torch, torchtpu_core
    print(torch.arange(6.0).view(2, 3).to("tpu").cumsum(1).sum().item())
    s = torchtpu_core.stats()
    print(s["programs_compiled"], s["programs_loaded"])
"""
_INSTALL = """
    import torch
    from torchtpu_core import _C, cache, plugin
    from torchtpu_core.aot import record, saved

    with record.programs() as programs:
        torch.arange(6.0).view(2, 3).to("tpu").cumsum(1).sum().item()
    client = _C.pjrt.load_plugin(str(plugin.cpu_plugin_path())).create_client()
    options = _C.compile_options(client)
    store = cache.ProgramCache({folder!r}, 1 << 30)
    for p in programs:
        key = cache.ProgramCache.key(client.fingerprint, options.serialize(), p.stablehlo)
        code = client.compile(p.stablehlo, options).serialize()
        kind, version = client.devices[0].kind, client.platform_version
        saved.Saved(p.name, "", kind, 1, version, "", key, "", [], [], code).install(client, store)
    print(len(programs))
"""


def test_installed_programs_are_found(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """XLA's CPU plugin compiles for no topology, so its own executables stand for those of one; the
    process that records them keeps nothing.
    """
    folder = str(tmp_path / "programs")
    installed = run_python(_INSTALL.format(folder=folder), TORCHTPU_CACHE_SIZE="0").stdout.split()
    value, compiled, loaded = run_python(_INSTALLED, TORCHTPU_CACHE_DIR=folder).stdout.split()
    assert float(value) == 26.0
    assert compiled == "0" and loaded == installed[-1] != "0"


def test_damaged_executable(compiled: aot.Compiled, tmp_path: Path) -> None:
    path = saved.save(compiled, tmp_path / "layer")
    data = path.read_bytes()
    for bad, message in (
        (b"ELF" + data, "not an executable"),
        (data[:-1] + bytes([data[-1] ^ 1]), "SHA-256"),
        (data[:100], "description|SHA-256"),
    ):
        path.write_bytes(bad)
        with pytest.raises(aot.AotError, match=message):
            saved.load(path)
