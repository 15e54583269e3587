"""What instructions of optimized HLO cost, by the rules of XLA's own cost analysis
(xla/service/hlo_cost_analysis): floating-point operations of products, two for each multiply-add of
elements that exist, and bytes of HBM read and written. For single ops, and for the rounds of loops,
of which libtpu's analysis counts one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torchtpu_core.aot.hlo import HloModule, Instruction, shape_bytes, tuple_parts

_DIMS = re.compile(r"\[([\d,]*)\]")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCHES = re.compile(r"batch_group_count=(\d+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def moved(module: HloModule, i: Instruction, shapes: Mapping[str, str]) -> int:
    """Bytes of HBM that an instruction reads and writes: of a slice of a value, or an update of one
    in place, only the part. shapes: those of its computation, by name.
    """
    if i.opcode.endswith("-done"):
        return 0
    result = i.shape if i.opcode != "copy-start" else i.shape[1:]  # (result, operand, context)
    if i.opcode.endswith("-start"):
        result = result.split("}", 1)[0] + "}"
    written = shape_bytes(result, hbm_only=True)
    read = [shape_bytes(_part(shapes.get(o, ""), at), hbm_only=True) for o, at in i.values]
    body = module.computations.get(i.called[0], []) if i.opcode == "fusion" and i.called else [i]
    inside = {x.name: x for x in body}
    number = {x.name: int(x.rest[1 : x.rest.index(")")]) for x in body if x.opcode == "parameter"}
    if body == [i]:
        number = {name: n for n, name in enumerate(i.operands)}
    uses: dict[str, list[Instruction]] = {}
    for x in body:
        for name in x.operands:
            uses.setdefault(name, []).append(x)
    for name, n in number.items():
        users = uses.get(name, [])
        if n >= len(read) or not users:
            continue
        if all(x.opcode == "dynamic-slice" and x.operands[0] == name for x in users):
            read[n] = min(read[n], sum(shape_bytes(x.shape) for x in users))
        elif all(x.opcode == "dynamic-update-slice" and x.operands[0] == name for x in users):
            update = users[0].operands[1]
            size = shape_bytes(inside[update].shape if update in inside else shapes.get(update, ""))
            read[n], written = 0, min(written, size)
    return written + sum(read)


def flops(module: HloModule, i: Instruction, shapes: Mapping[str, str]) -> int:
    """Floating-point operations of the products in an instruction and all that it calls."""
    total = 0
    if i.opcode in ("convolution", "dot"):
        operands = [_sizes(_part(shapes.get(name, ""), at)) for name, at in i.values[:2]]
        count = _convolution if i.opcode == "convolution" else _dot
        total += count(i, *operands) if len(operands) == 2 else 0
    elif i.opcode == "fusion":
        for name in i.called:
            body = module.computations.get(name, [])
            inside = {x.name: x.shape for x in body}
            total += sum(flops(module, x, inside) for x in body)
    return total


def _part(shape: str, index: int | None) -> str:
    return shape if index is None else tuple_parts(shape)[index]


def _sizes(shape: str) -> list[int]:
    found = _DIMS.search(shape)
    return [int(n) for n in found[1].split(",") if n] if found else []


def _dot(i: Instruction, left: list[int], right: list[int]) -> int:
    found = _CONTRACTED.search(i.rest)
    inner = math.prod(left[int(d)] for d in found[1].split(",") if d) if found else 1
    return 2 * math.prod(_sizes(i.shape)) * inner


def _convolution(i: Instruction, left: list[int], right: list[int]) -> int:
    labels = _LABELS.search(i.rest)
    if labels is None:
        return 0
    lhs, rhs, out = (dict(zip(labels[n], sizes)) for n, sizes in _numbered(i, left, right))
    batches = _BATCHES.search(i.rest)
    pairs = rhs["i"] * rhs["o"] * out["b"] // (int(batches[1]) if batches else 1)
    for d, window in enumerate(_windows(i, len(left) - 2)):
        pairs *= _positions(lhs[str(d)], out[str(d)], **window)
    return 2 * pairs


def _numbered(
    i: Instruction, left: list[int], right: list[int]
) -> tuple[tuple[int, list[int]], ...]:
    return (1, left), (2, right), (3, _sizes(i.shape))


def _windows(i: Instruction, n: int) -> list[dict[str, int]]:
    """A window's numbers, by spatial dimension."""
    found = _WINDOW.search(i.rest)
    given = dict(e.split("=") for e in found[1].split()) if found else {}

    def values(name: str, default: str) -> list[str]:
        return given[name].split("x") if name in given else [default] * n

    fields = {
        "size": values("size", "1"),
        "stride": values("stride", "1"),
        "pad": [p.split("_")[0] for p in values("pad", "0_0")],
        "lhs": values("lhs_dilate", "1"),
        "rhs": values("rhs_dilate", "1"),
    }
    return [{name: int(v[d]) for name, v in fields.items()} for d in range(n)]


def _positions(n: int, outputs: int, size: int, stride: int, pad: int, lhs: int, rhs: int) -> int:
    """How many (output, kernel) positions of a dimension of `n` elements meet an element."""
    count = 0
    for k in range(size):
        for o in range(outputs):
            at = o * stride - pad + k * rhs
            count += 0 <= at < (n - 1) * lhs + 1 and at % lhs == 0
    return count
