"""What is published about TPU chips, and the names of topologies.

Sources: "TPU versions" in Google Cloud's documentation, one page a version
(docs.cloud.google.com/tpu/docs/v6e and its neighbours). HBM here is the nominal size; what a
program may use of it is said by libtpu for each topology. ICI is the sum over a chip's links, both
directions, as those pages give it; where a page gives Gbps one way (v2 to v4), it is converted.
Clocks are not published: they follow from the peak and the size of the matrix units,
peak = clock * units * side^2 * 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtpu_core.aot.errors import UnknownTopology

_T, _G, _GIB = 1e12, 1e9, 1 << 30


@dataclass(frozen=True)
class Chip:
    """One chip.

    name: the prefix of topology names; kind: what PJRT calls its devices; bf16: FLOP/s; hbm: bytes;
    hbm_bandwidth, ici_bandwidth: bytes a second; devices: how many devices PJRT shows a chip;
    mxu: multiply-adds of the matrix units of a chip a cycle; shape: the smallest full host.
    """

    name: str
    kind: str
    bf16: float
    hbm: int
    hbm_bandwidth: float
    ici_bandwidth: float
    devices: int
    mxu: int
    shape: str

    @property
    def clock(self) -> float:
        """Cycles a second of the matrix units."""
        return self.bf16 / (2 * self.mxu)

    @property
    def device_bf16(self) -> float:
        """Peak bf16 FLOP/s of one PJRT device."""
        return self.bf16 / self.devices

    @property
    def device_hbm_bandwidth(self) -> float:
        """HBM bytes a second of one PJRT device."""
        return self.hbm_bandwidth / self.devices

    @property
    def device_ici_bandwidth(self) -> float:
        """Bytes a second that one PJRT device can send over all its links."""
        return self.ici_bandwidth / 2 / self.devices


_M128, _M256 = 128 * 128, 256 * 256

CHIPS = {
    c.name: c
    for c in (
        Chip("v2", "TPU v2", 46 * _T, 16 * _GIB, 700 * _G, 496 * _G, 2, 2 * _M128, "2x2"),
        Chip("v3", "TPU v3", 123 * _T, 32 * _GIB, 900 * _G, 656 * _G, 2, 4 * _M128, "2x2"),
        Chip("v4", "TPU v4", 275 * _T, 32 * _GIB, 1228 * _G, 600 * _G, 2, 8 * _M128, "2x2x1"),
        Chip("v5e", "TPU v5 lite", 197 * _T, 16 * _GIB, 819 * _G, 400 * _G, 1, 4 * _M128, "2x2"),
        Chip("v5p", "TPU v5", 459 * _T, 95 * _GIB, 2765 * _G, 1200 * _G, 1, 8 * _M128, "2x2x1"),
        Chip("v6e", "TPU v6 lite", 918 * _T, 32 * _GIB, 1638 * _G, 800 * _G, 1, 4 * _M256, "2x2"),
        Chip("tpu7x", "TPU7x", 2307 * _T, 192 * _GIB, 7380 * _G, 1200 * _G, 2, 8 * _M256, "2x2x1"),
    )
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology's name ("v6e:2x2"); UnknownTopology lists the known ones."""
    name, colon, shape = topology.partition(":")
    chip = CHIPS.get(name)
    if chip is None or not colon or not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UnknownTopology(unknown(topology))
    return chip


def unknown(topology: str, said: str = "") -> str:
    """The message for a topology that does not exist; `said`: libtpu's own words."""
    known = ", ".join(f"{c.name}:{c.shape}" for c in CHIPS.values())
    text = (
        f"unknown topology {topology!r}. A topology is a chip, a colon and the slice's shape in "
        f"chips; known chips with the shape of one host: {known}. Larger slices multiply the shape "
        f"(v5e:4x4, v5p:4x4x4)."
    )
    return f"{text} libtpu says: {said}" if said else text
