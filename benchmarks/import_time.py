"""What the device adds to `import torch`: time and memory, with autoload on and off."""

from __future__ import annotations

import sys

from benchmarks import _measure

REPEATS = 9
TARGET_SECONDS, TARGET_MB = 0.3, 20.0

# Imports next to nothing before torch, so that no module it would load is counted as free.
CODE = """
import sys, time
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])
before, start = resident(), time.perf_counter()
import torch
seconds, pages = time.perf_counter() - start, resident() - before
import json, resource
mb = pages * resource.getpagesize() / 1e6
print(json.dumps({"s": seconds, "mb": mb, "loaded": "torchtpu_core" in sys.modules}))
"""


def main() -> int:
    """Alternate the two variants, print their medians and the difference."""
    args = _measure.parser(__doc__.splitlines()[0]).parse_args()
    variants = {"off": "0", "on": "1"}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for repeat in range(REPEATS + 1):
        for name, value in variants.items():
            sample = _measure.child(["-c", CODE], {"TORCH_DEVICE_BACKEND_AUTOLOAD": value})
            if repeat:  # the first one fills the page cache
                samples[name].append(sample)
    if not all(sample["loaded"] for sample in samples["on"]):
        print("import torch does not load torchtpu here: is it installed? (make env)")
        return 1

    figures = {
        name: {key: _measure.median([sample[key] for sample in taken]) for key in ("s", "mb")}
        for name, taken in samples.items()
    }
    added = {key: figures["on"][key] - figures["off"][key] for key in ("s", "mb")}
    met = added["s"] < TARGET_SECONDS and added["mb"] < TARGET_MB
    rows = [
        [f"autoload {name}", f"{figure['s']:.3f} s", f"{figure['mb']:.1f} MB"]
        for name, figure in figures.items()
    ]
    rows.append(["added", f"{added['s']:+.3f} s", f"{added['mb']:+.1f} MB"])
    rows.append(
        ["ratio", *(_measure.ratio(figures["on"][key], figures["off"][key]) for key in added)]
    )
    rows.append(["target", f"< {TARGET_SECONDS} s", f"< {TARGET_MB:.0f} MB"])
    _measure.table(
        "import torch",
        ["", "time", "memory"],
        rows,
        f"Medians of {REPEATS} processes each, alternating; targets {'met' if met else 'MISSED'}.",
    )
    _measure.save(args.json, "import_time", figures | {"added": added, "met": met})
    return 0


if __name__ == "__main__":
    sys.exit(main())
