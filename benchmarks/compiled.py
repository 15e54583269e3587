"""Compiled mode against hand-written JAX (jit, the same math) and PyTorch's eager CPU: forward
passes, train steps and decoding; what a cold and a warm start of a train step take; and what
calling a compiled graph with 300 parameters costs the host.

`jax` is JAX on the PJRT plugin that `tpu` runs on; `jaxlib` is JAX on its own CPU backend, whose
XLA has other kernels (YNNPACK) for products and convolutions.

The peers take turns, one repetition each, so that other work on the machine disturbs them alike;
a ratio is the median over the repetitions.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _measure

PEERS = ("tpu", "jax", "jaxlib", "cpu")
CASES = (
    ("MLP", "forward"),
    ("MLP", "train step"),
    ("CNN", "forward"),
    ("CNN", "train step"),
    ("CNN NHWC", "forward"),
    ("CNN NHWC", "train step"),
    ("GPT", "forward"),
    ("GPT", "train step"),
    ("SmolLM2", "decode"),
)
TITLES = {
    "MLP": "MLP",
    "CNN": "ResNet-18",
    "CNN NHWC": "ResNet-18, JAX NHWC",
    "GPT": "GPT-2",
    "SmolLM2": "SmolLM2-135M",
}
#: the step time of a peer's, and the times to the end of the first step, that are aimed at
RATIO_JAX, RATIO_CPU, COLD_RATIO, WARM_SECONDS = 1.05, 1.0, 1.2, 2.0
REPEATS = 7
RUN_SECONDS = 0.3
STARTS = 3
PARAMETERS, TARGET_US = 300, 60.0


def environment(peer: str) -> dict[str, str]:
    """What the process of a peer needs: JAX's platform; XLA's log is not ours to print."""
    from torchtpu_core import plugin

    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if peer == "jaxlib":
        return quiet | {"JAX_PLATFORMS": "cpu"}
    if peer == "jax":
        library = {"PJRT_NAMES_AND_LIBRARY_PATHS": f"plugin:{plugin.find().path}"}
        return quiet | library | {"JAX_PLATFORMS": "plugin"}
    return {}


def phase_torch(peer: str, name: str, which: str, size: Any) -> Callable[[], Any]:
    """A call that runs one forward pass (in inference), decodes one token, or trains one step with
    AdamW; compiled on tpu, eager on cpu. The fused optimizer is one operator in both.
    """
    import torch
    from torch.nn import functional as F

    from benchmarks import _models

    # Else sizes that differ from those of the case before are open ones in this.
    torch.compiler.reset()
    model, x, y = (part.to(peer) for part in _models.build(name, size))
    maybe = torch.compile if peer == "tpu" else lambda fn: fn
    if which != "train step":
        forward = maybe(model.eval())
        args = (x,) if which == "forward" else (x, y)
        return torch.no_grad()(lambda: forward(*args))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    maybe(lambda: None)  # imports what torch.compile needs

    @functools.cache  # within the first step, as it may read what is kept on disk
    def loss() -> Callable[[], Any]:
        return maybe(lambda: F.cross_entropy(model(x), y))

    def step() -> Any:
        optimizer.zero_grad()
        value = loss()()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def prepare(peer: str, name: str, which: str, fast: bool) -> tuple[Callable[[], Any], Callable]:
    """(one step of a case, what waits for its result and gives it as a number)."""
    from benchmarks import _models

    size = _models.FAST if fast else _models.FULL
    if not peer.startswith("jax"):
        return phase_torch(peer, name, which, size), lambda t: float(t.float().square().mean())
    from benchmarks import _models_jax

    model, x, y = _models.build(name, size)
    run = _models_jax.phase(name, which, size, model.state_dict(), x, y)
    return run, lambda a: float((a * a).mean())


def serve(peer: str, fast: bool) -> None:
    """A peer's process: reads commands as lines of JSON, answers each with one.

    [name, phase]: prepares the case; {"first_s": .., "value": ..} is the answer.
    n: runs n steps; the answer is milliseconds a step.
    """
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed is no answer
    run = number = None
    for line in sys.stdin:
        command = json.loads(line)
        if isinstance(command, list):
            run = None  # frees the former case
            run, number = prepare(peer, *command, fast)
            start = time.perf_counter()
            value = number(run())
            answer: Any = {"first_s": time.perf_counter() - start, "value": value}
            number(run())
        else:
            start = time.perf_counter()
            for _ in range(command):
                result = run()
            number(result)
            answer = (time.perf_counter() - start) / command * 1e3
        print(json.dumps(answer), file=out, flush=True)


class Worker:
    """A peer's process, from the parent's side."""

    def __init__(self, peer: str, fast: bool):
        command = [sys.executable, "-m", "benchmarks.compiled", "--serve", peer]
        self.process = subprocess.Popen(
            command + ["--fast"] * fast,
            cwd=_measure.ROOT,
            env=os.environ | environment(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: Any) -> Any:
        """The answer to a command of `serve`."""
        print(json.dumps(command), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a peer died with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(peers: list[str], cases: list[tuple[str, str]], fast: bool) -> dict[str, Any]:
    """By case and peer: the first step in seconds, a step in milliseconds, and the ratio of ours to
    the peer's. Raises where two peers do not compute the same.
    """
    workers = {peer: Worker(peer, fast) for peer in peers}
    figures: dict[str, Any] = {}
    for case in cases:
        print(f"measuring {' '.join(case)} ...", file=sys.stderr, flush=True)
        first = {peer: worker.ask(case) for peer, worker in workers.items()}
        values = [answer["value"] for answer in first.values()]
        if max(values) - min(values) > 1e-3 * abs(values[0]):
            raise AssertionError(f"{case}: the peers' results differ: {dict(zip(peers, values))}")
        n = {p: max(1, int(RUN_SECONDS * 1e3 / w.ask(1))) for p, w in workers.items()}
        rounds = [{p: w.ask(n[p]) for p, w in workers.items()} for _ in range(REPEATS)]
        small = " (small)" if fast else ""
        figures[f"{TITLES[case[0]]}{small}: {case[1]}"] = {
            peer: {
                "first_s": first[peer]["first_s"],
                "ms": _measure.median([r[peer] for r in rounds]),
                "ratio": _measure.median([r["tpu"] / r[peer] for r in rounds]),
            }
            for peer in peers
        }
    for worker in workers.values():
        worker.close()
    return figures


def measure_start(peer: str, fast: bool) -> dict[str, float]:
    """Seconds of GPT's first train step (tracing, compiling and running it) in a new process, with
    an empty cache, with what this left, and, for tpu, with Dynamo's captures, which it keeps on
    disk if told to: the median of a few, but for the empty cache.
    """
    with tempfile.TemporaryDirectory() as cache:
        ours = {"TORCHTPU_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/captures"}
        theirs = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        args = ["-m", "benchmarks.compiled", "--start", peer] + ["--fast"] * fast
        if peer != "tpu":
            env = environment(peer) | theirs
            states = {"cold": env, "warm": env}
        else:
            env = environment(peer) | ours
            kept = env | {"TORCH_CACHING_PRECOMPILE": "1"}
            states = {"cold": kept, "warm": env, "captured": kept}
        return {
            state: _measure.median(
                [_measure.child(args, env) for _ in range(1 if state == "cold" else STARTS)]
            )
            for state, env in states.items()
        }


def first_step(peer: str, fast: bool) -> float:
    """Seconds of the first train step of GPT in this process, less those of a later one."""
    run, number = prepare(peer, "GPT", "train step", fast)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        number(run())
        times.append(time.perf_counter() - start)
    return times[0] - times[-1]


def timed(fn: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Microseconds a call: the median of repetitions, after some calls."""
    for _ in range(3):
        start = time.perf_counter()
        fn()
        wait()
    n = max(1, int(RUN_SECONDS / (time.perf_counter() - start)))
    runs = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(n):
            fn()
        wait()
        runs.append((time.perf_counter() - start) / n * 1e6)
    return _measure.median(runs)


def measure_overhead() -> dict[str, float]:
    """Microseconds a call: of a compiled function with many parameters, of its graph alone, and of
    the graph's program alone, run through the PJRT client. Little is computed: it is the host that
    takes the time.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from torchtpu_core import _C, plugin
    from torchtpu_core.compile.graph_program import GraphProgram

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ps = torch.nn.ParameterList(torch.ones(4) for _ in range(PARAMETERS))

        def forward(self, x: Any) -> Any:
            return torch.stack([x, *self.ps]).sum(0)

    def graph_of(tensors: list[Any]) -> tuple[Callable[[list[Any]], Any], list[str]]:
        gm = make_fx(lambda *ts: [torch.stack(ts).sum(0)], tracing_mode="fake")(*tensors)
        program, texts = GraphProgram(gm), []

        def build(args: Any) -> Any:
            plan = program.build(args)
            texts.append(plan.text)
            return plan

        return _C.Graph("sum", len(tensors), build), texts

    def microseconds(fn: Callable[[], Any]) -> float:
        return timed(fn, torch.accelerator.synchronize)

    with torch.no_grad():
        model, x = Sum().to("tpu"), torch.ones(4).to("tpu")
        tensors = [x, *(p.detach() for p in model.parameters())]
        compiled = torch.compile(model)
        graph, texts = graph_of(tensors)
        figures = {
            "function": microseconds(lambda: compiled(x)),
            "graph": microseconds(lambda: graph(list(tensors))),
        }
    chosen = plugin.find()
    client = _C.pjrt.load_plugin(str(chosen.path)).create_client(chosen.options)
    program = client.compile(texts[0])
    buffers = [client.buffer(torch.ones(4).numpy(), "f32") for _ in tensors]
    outputs: list[Any] = []

    def run() -> None:
        outputs[:] = program.execute(buffers, 0)

    figures["program"] = timed(run, lambda: outputs[0].to_bytes())
    return figures


def met(value: float, target: float) -> str:
    """Whether a figure is what is aimed at, for a note."""
    return "met" if value <= target else "MISSED"


def print_steps(figures: dict[str, Any], peers: list[str]) -> None:
    """The table of step times."""
    rows = []
    for name, row in figures.items():
        cells = [f"{row[p]['ms']:.2f}" if p in row else "missing" for p in PEERS]
        ratios = [f"{row[p]['ratio']:.2f}x" if p in row else "missing" for p in PEERS[1:]]
        rows.append([name, *cells, *ratios, f"{row['tpu']['first_s']:.2f}"])
    columns = ["model", *(f"{p} ms" for p in PEERS), *(f"tpu/{p}" for p in PEERS[1:])]
    notes = []
    for peer, target in (("jax", RATIO_JAX), ("cpu", RATIO_CPU)):
        if peer in peers:
            worst = max(row[peer]["ratio"] for row in figures.values())
            notes.append(f"tpu/{peer}: worst {worst:.2f}x, aim {target:.2f}x: {met(worst, target)}")
    note = f"Milliseconds a step, medians of {REPEATS} turns; training is with AdamW. "
    _measure.table("Compiled mode", [*columns, "first s"], rows, note + "; ".join(notes) + ".")


def print_starts(starts: dict[str, dict[str, float]]) -> None:
    """The table of cold and warm starts."""
    states = ("cold", "warm", "captured")
    rows = [
        [peer, *(f"{s[state]:.2f}" if state in s else "-" for state in states)]
        for peer, s in starts.items()
    ]
    warm, captured = (met(starts["tpu"][state], WARM_SECONDS) for state in ("warm", "captured"))
    note = f"Warm: aim {WARM_SECONDS:.0f} s: {warm}; with captures (TORCH_CACHING_PRECOMPILE=1): "
    note += f"{captured}."
    if "jax" in starts:
        ratio = starts["tpu"]["cold"] / starts["jax"]["cold"]
        note += f" Cold: {ratio:.2f}x of JAX's, aim {COLD_RATIO:.1f}x: {met(ratio, COLD_RATIO)}."
    note += " The first step less a later one, without imports."
    title = "First train step of GPT-2 in a new process"
    _measure.table(title, ["peer", *(f"{state} s" for state in states)], rows, note)


def print_overhead(cost: dict[str, float]) -> None:
    """The table of the host's overhead."""
    own = cost["graph"] - cost["program"]
    rows = [[name, f"{us:.0f}"] for name, us in cost.items()]
    note = (
        f"Microseconds a call with {PARAMETERS} parameters. The graph beyond its program: "
        f"{own:.0f} us, aim {TARGET_US:.0f}: {met(own, TARGET_US)}."
    )
    _measure.table("Host overhead of a compiled call", ["what is called", "us"], rows, note)


def name_of(case: tuple[str, str]) -> str:
    """What `--only` looks in: a case's key, its part, and its title where that is another."""
    key, title = " ".join(case), TITLES[case[0]]
    return key if title == case[0] else f"{key} ({title})"


def main() -> int:
    """Measure and print; the options that start processes are used by itself."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="small models of the same shape")
    parser.add_argument(
        "--only", default="", help="cases with this in their name: 'CNN', 'ResNet-18'"
    )
    parser.add_argument("--serve", choices=PEERS, help="be a peer's process")
    parser.add_argument("--start", choices=PEERS, help="print the seconds of a first step")
    parser.add_argument("--overhead", action="store_true", help="print the host's overhead as JSON")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.fast)
        return 0
    if args.start or args.overhead:
        print(json.dumps(first_step(args.start, args.fast) if args.start else measure_overhead()))
        return 0

    cases = [case for case in CASES if args.only in name_of(case)]
    if not cases:
        names = "".join(f"\n  {name_of(case)}" for case in CASES)
        parser.error(f"--only {args.only!r}: no case has this in its name; they are:{names}")
    found = _measure.present(("tpu", "jax", "cpu"))
    peers = [peer for peer in PEERS if peer.removesuffix("lib") in found]
    if "tpu" not in peers:
        return 1
    figures: dict[str, Any] = {"steps": measure(peers, cases, args.fast)}
    print_steps(figures["steps"], peers)
    if not args.only:
        compilers = [peer for peer in peers if peer != "cpu"]
        figures["starts"] = {peer: measure_start(peer, args.fast) for peer in compilers}
        print_starts(figures["starts"])
        figures["overhead"] = _measure.child(["-m", "benchmarks.compiled", "--overhead"])
        print_overhead(figures["overhead"])
    _measure.save(args.json, "compiled", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
