"""What the benchmarks share: memory readings, child processes, the table, the JSON output.

A peer is measured in a process of its own, so that neither its threads nor its memory show up in
another's figures; what a child measured it prints as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent


def peak_memory() -> float:
    """The peak of this process's resident memory, in MB."""
    # Not ru_maxrss: Linux carries the parent's peak into a child process.
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024 / 1e6


def child(args: Sequence[str], env: dict[str, str] | None = None) -> Any:
    """Run `python *args` from the root of the tree; the value of the last line it printed."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"python {' '.join(args)} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def missing(peer: str) -> str | None:
    """Why `peer` (tpu, cpu or jax) cannot be measured here, or None where it can."""
    probe = {
        "cpu": "import torch",
        "tpu": "import torch; torch.ones(2, device='tpu').cpu()",
        "jax": "import jax; jax.numpy.ones(2).block_until_ready()",
    }[peer]
    code = (
        f"import json\ntry:\n    {probe}\n    print('null')\n"
        "except BaseException as error:\n"
        "    text = str(error).strip() or type(error).__name__\n"
        "    print(json.dumps(text.splitlines()[0]))"
    )
    try:
        # JAX is a peer on the same CPU, whatever else it could use.
        reason = child(["-c", code], {"JAX_PLATFORMS": "cpu"} if peer == "jax" else None)
    except RuntimeError as error:  # the process died: no exception to report
        reason = str(error).splitlines()[-1]
    return reason


def present(peers: Sequence[str]) -> list[str]:
    """The peers that can be measured here; for each other one, a line that says why not."""
    found = []
    for peer in peers:
        reason = missing(peer)
        if reason is None:
            found.append(peer)
        else:
            print(f"{peer} is left out: {reason}")
    return found


def median(values: Sequence[float]) -> float:
    """The median, which one disturbed repetition does not move."""
    return statistics.median(values)


def ratio(value: float, reference: float) -> str:
    """`value` as a multiple of `reference`, for a table."""
    return f"{value / reference:.2f}x"


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with the option every benchmark has: --json."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    return made


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Print one table: the first column names the row, the others are figures."""
    made = Table(title=title, title_justify="left")
    made.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        made.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    # A pipe has no width to fit: never fold figures there.
    width = None if sys.stdout.isatty() else 160
    Console(width=width).print(made)
    print(f"{note}\n{machine()}\n")


# Other work on the machine shows in the figures, most of all in those of multi-threaded ops.
_LOAD_AT_START = os.getloadavg()[0]


def machine() -> str:
    """What the figures were measured on, and how busy it was before."""
    return (
        f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, load {_LOAD_AT_START:.1f} at the start"
    )


def save(path: Path | None, name: str, figures: Any) -> None:
    """Write the figures as JSON, where --json asked for it."""
    if path is not None:
        record = {"benchmark": name, "machine": machine(), "figures": figures}
        path.write_text(json.dumps(record, indent=2) + "\n")
