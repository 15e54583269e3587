"""Eager dispatch: what one op costs the host, and in a long chain, on tpu, torch CPU and JAX.

Two times an op: until the host is free (the loop that launches the chain), and in all (until the
chain's result is there). A peer that works synchronously has the same figure twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _measure

PEERS = ("tpu", "cpu", "jax")
OPS = ("add", "mul", "matmul", "relu")
SIZES = (8, 256, 1024)
REPEATS = 7
CHAIN_SECONDS = 0.25
MAX_CHAIN, MIN_CHAIN = 2000, 8
MEMORY_CHAINS, MEMORY_SIZE = (1_000, 10_000), 256
TARGETS_US = {"host": 4.0, "total": 6.0}  # an 8x8 add

Step = Callable[[Any], Any]


def torch_peer(device: str) -> tuple[Callable[[str, int], tuple[Step, Any]], Callable[[Any], None]]:
    """How to build an op of one argument with its first value, and how to wait for a value."""
    import torch

    def build(op: str, size: int) -> tuple[Step, Any]:
        ones = torch.ones(size, size, device=device)
        eye = torch.eye(size).to(device)
        steps: dict[str, Step] = {
            "add": lambda x: torch.add(x, ones),
            "mul": lambda x: torch.mul(x, ones),
            "matmul": lambda x: torch.matmul(x, eye),
            "relu": torch.relu,
        }
        return steps[op], ones

    def wait(value: Any) -> None:
        if device != "cpu":
            torch.accelerator.synchronize()

    return build, wait


def jax_peer() -> tuple[Callable[[str, int], tuple[Step, Any]], Callable[[Any], None]]:
    """The same with JAX, op by op."""
    import jax.numpy as jnp

    def build(op: str, size: int) -> tuple[Step, Any]:
        ones, eye = jnp.ones((size, size)), jnp.eye(size)
        steps: dict[str, Step] = {
            "add": lambda x: jnp.add(x, ones),
            "mul": lambda x: jnp.multiply(x, ones),
            "matmul": lambda x: jnp.matmul(x, eye),
            # Not jax.nn.relu, whose custom derivative costs ten times as much outside jit.
            "relu": lambda x: jnp.maximum(x, 0),
        }
        return steps[op], ones

    return build, lambda value: value.block_until_ready()


def chain(step: Step, value: Any, length: int, wait: Callable[[Any], None]) -> tuple[float, float]:
    """Seconds until `length` dependent ops are launched, and until their result is there."""
    start = time.perf_counter()
    for _ in range(length):
        value = step(value)
    launched = time.perf_counter() - start
    wait(value)
    return launched, time.perf_counter() - start


def measure(peer: str) -> dict[str, Any]:
    """All figures of one peer: microseconds an op, and the peak's growth in MB by chain length."""
    build, wait = jax_peer() if peer == "jax" else torch_peer(peer)
    times: dict[str, dict[str, float]] = {}
    for size in SIZES:
        for op in OPS:
            step, value = build(op, size)
            chain(step, value, MIN_CHAIN, wait)  # compiles
            _, seconds = chain(step, value, MIN_CHAIN, wait)
            length = min(MAX_CHAIN, max(MIN_CHAIN, int(CHAIN_SECONDS * MIN_CHAIN / seconds)))
            chain(step, value, length, wait)
            runs = [chain(step, value, length, wait) for _ in range(REPEATS)]
            host, total = ([run[part] / length * 1e6 for run in runs] for part in (0, 1))
            times[f"{op} {size}"] = {
                "host": _measure.median(host),
                "total": _measure.median(total),
                "length": length,
            }
    return {"times": times}


def measure_memory(peer: str, length: int) -> float:
    """How much the peak of resident memory grows, in MB, while a chain of `length` adds runs."""
    build, wait = jax_peer() if peer == "jax" else torch_peer(peer)
    step, value = build("add", MEMORY_SIZE)
    chain(step, value, MIN_CHAIN, wait)
    before = _measure.peak_memory()
    chain(step, value, length, wait)
    return _measure.peak_memory() - before


def collect(peers: list[str]) -> dict[str, Any]:
    """Measure each peer in processes of its own."""
    figures: dict[str, Any] = {}
    for peer in peers:
        print(f"measuring {peer} ...", file=sys.stderr, flush=True)
        env = {"JAX_PLATFORMS": "cpu"} if peer == "jax" else None
        command = ["-m", "benchmarks.eager_dispatch", "--peer", peer]
        figures[peer] = _measure.child(command, env)
        figures[peer]["memory"] = {
            str(length): _measure.child([*command, "--memory", str(length)], env)
            for length in MEMORY_CHAINS
        }
    return figures


def rows_of(figures: dict[str, Any]) -> list[list[str]]:
    """The table: an op and size a row, then the chains' memory."""
    first, *others = figures
    rows = []
    for name in figures[first]["times"]:
        op, size = name.split()
        row = [f"{op} {size}x{size}"]
        for peer in figures:
            cell = figures[peer]["times"][name]
            row += [f"{cell['host']:.1f}", f"{cell['total']:.1f}"]
        own = figures[first]["times"][name]["total"]
        row += [_measure.ratio(own, figures[peer]["times"][name]["total"]) for peer in others]
        rows.append(row)
    for length in map(str, MEMORY_CHAINS):
        row = [f"peak growth, {int(length):,} adds"]
        for peer in figures:
            row += ["", f"{figures[peer]['memory'][length]:.1f} MB"]
        rows.append(row + [""] * len(others))
    return rows


def main() -> int:
    """Measure and print; with --peer (used by itself) one peer, as JSON."""
    parser = _measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=PEERS, help="measure this one here; prints JSON")
    parser.add_argument("--memory", type=int, metavar="LENGTH", help="with --peer: memory only")
    args = parser.parse_args()
    if args.peer:
        result = measure_memory(args.peer, args.memory) if args.memory else measure(args.peer)
        print(json.dumps(result))
        return 0

    peers = _measure.present(PEERS)
    figures = collect(peers)
    columns = ["op"]
    for peer in peers:
        columns += [f"{peer} host us", f"{peer} us/op"]
    columns += [f"{peers[0]}/{peer}" for peer in peers[1:]]
    note = (
        f"Microseconds an op, medians of {REPEATS} chains: until the host is free, and in all; "
        "ratios are of the latter."
    )
    if "tpu" in figures:
        add = figures["tpu"]["times"]["add 8"]
        for key, target in TARGETS_US.items():
            verdict = "met" if add[key] <= target else "MISSED"
            note += (
                f"\nadd 8x8 on tpu, {key}: {add[key]:.1f} us, target <= {target:.0f}: {verdict}."
            )
    _measure.table("Eager dispatch", columns, rows_of(figures), note)
    _measure.save(args.json, "eager_dispatch", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
