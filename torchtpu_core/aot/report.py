"""A compiled program as an HTML page: one file, plots as inline SVG, nothing from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

from torchtpu_core.aot.api import gib
from torchtpu_core.aot.result import Compiled

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #1d2433; margin: 2rem auto; max-width: 68rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: #5b6478; }
td, th { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid #e6e8ee; vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font-size: 12px; overflow-wrap: anywhere; } .muted { color: #5b6478; }
.bad { color: #b3261e; font-weight: 600; } .good { color: #1b7f3b; font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem;
         margin: 1.2rem 0; }
.card { border: 1px solid #e6e8ee; border-radius: 6px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.15rem; } svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: #1d2433; }
"""
_COLOURS = ("#3b6fd4", "#e08a1e", "#7a52c7", "#2f9e8f", "#d3d7e0")


def write(compiled: Compiled, path: str | Path) -> Path:
    """Writes the page; its path."""
    path = Path(path)
    path.write_text(page(compiled))
    return path


def page(c: Compiled) -> str:
    """The page's HTML."""
    title = f"{_e(c.name)} on {_e(c.topology.name)}"
    sections = [
        f"<h1>{title}</h1>",
        f'<p class="muted">{c.devices} of {c.topology.devices} devices ({_e(c.topology.kind)}); '
        f"numbers are those of one device. Compiled in {c.compile_seconds:.1f} s by "
        f"{_e(' '.join(c.topology.version.split()))}; not run.</p>",
        _cards(c),
        "<h2>Memory</h2>",
        _memory(c),
        _timeline(c),
        _buffers(c),
        "<h2>Roofline</h2>",
        _roofline(c),
        "<h2>Ops</h2>",
        _ops(c),
        "<h2>Collectives</h2>",
        _collectives(c),
        "<h2>Inputs</h2>",
        _inputs(c),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def seconds(t: float) -> str:
    """A time as people read it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if t >= scale:
            return f"{t / scale:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"


def si(n: float) -> str:
    """A count with a decimal prefix."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.3g} "


def _cards(c: Compiled) -> str:
    r, m = c.roofline, c.memory
    fits = '<span class="good">fits</span>' if m.fits else '<span class="bad">does not fit</span>'
    entries = [
        (f"{gib(m.needed)} of {gib(m.available)}", f"HBM, {fits}"),
        (seconds(c.compiler_seconds), "the compiler's estimate, without collectives"),
        (seconds(r.seconds), f"roofline, bound by {r.bound}"),
        (f"{si(c.flops)}FLOP", "floating-point operations"),
        (f"{si(c.bytes_accessed)}B", "read and written"),
        (f"{c.analysis.fusions} of {c.analysis.instructions}", "instructions are fusions"),
    ]
    cards = "".join(f'<div class="card"><b>{a}</b>{b}</div>' for a, b in entries)
    return f'<div class="cards">{cards}</div>'


def _svg(width: int, height: int, body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(body)}</svg>'


def _memory(c: Compiled) -> str:
    m = c.memory
    parts = [
        ("arguments", m.arguments),
        ("outputs", m.outputs - m.aliased),
        ("temporaries", m.temporaries),
        ("generated code", m.generated_code),
        ("free", max(0, m.available - m.needed)),
    ]
    total = max(sum(n for _, n in parts), 1)
    body, x = [], 0.0
    for (name, n), colour in zip(parts, _COLOURS):
        w = 1000 * n / total
        body.append(
            f'<rect x="{x:.1f}" y="0" width="{w:.1f}" height="26" fill="{colour}">'
            f"<title>{name}: {gib(n)}</title></rect>"
        )
        x += w
    for i, ((name, n), colour) in enumerate(zip(parts, _COLOURS)):
        body.append(f'<rect x="{i * 200}" y="38" width="11" height="11" fill="{colour}"/>')
        body.append(f'<text x="{i * 200 + 16}" y="48">{name} {gib(n)}</text>')
    return _svg(1000, 54, body) + (
        f'<p class="muted">{gib(m.aliased)} of the outputs take the place of donated arguments.</p>'
    )


def _timeline(c: Compiled) -> str:
    points = c.analysis.timeline
    if len(points) < 2:
        return ""
    end, top = max(p[0] for p in points) or 1, max(p[1] for p in points) or 1
    xy, last = [], 0.0
    for at, n in points:
        x, y = 60 + 930 * at / end, 150 - 130 * n / top
        xy += [f"{x:.1f},{last or 150:.1f}", f"{x:.1f},{y:.1f}"]
        last = y
    body = [
        f'<polygon points="60,150 {" ".join(xy)} 990,150" fill="{_COLOURS[2]}" opacity=".25"/>',
        f'<polyline points="{" ".join(xy)}" fill="none" stroke="{_COLOURS[2]}" stroke-width="1"/>',
        f'<text x="0" y="24">{gib(top)}</text><text x="0" y="154">0</text>',
        f'<text x="60" y="168">temporaries in HBM over the {end} steps of the schedule</text>',
    ]
    return _svg(1000, 174, body)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        return f'<{tag} class="n">{text}</{tag}>' if i in numeric else f"<{tag}>{text}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", i, h) for i, h in enumerate(head)) + "</tr>"]
    lines += [
        "<tr>" + "".join(cell("td", i, x) for i, x in enumerate(row)) + "</tr>" for row in rows
    ]
    return "<table>" + "\n".join(lines) + "</table>"


def _code(text: str) -> str:
    return f"<code>{_e(text)}</code>"


def _buffers(c: Compiled) -> str:
    rows = [
        [gib(b.size), _code(b.shape), _e(b.kind), _code(b.name), _code(b.source)]
        for b in c.analysis.buffers
    ]
    return "<h2>Largest buffers</h2>" + _table(["bytes", "shape", "kind", "op", "line"], rows, [0])


def _roofline(c: Compiled) -> str:
    """FLOP/s over FLOP a byte, both logarithmic: the chip's roof, and the program below it at the
    compiler's estimate.
    """
    chip, r = c.topology.chip, c.roofline
    peak, bandwidth = chip.device_bf16, chip.device_hbm_bandwidth
    rows = [
        ["compute", seconds(r.compute), f"{si(c.flops)}FLOP at {si(peak)}FLOP/s (bf16)"],
        ["memory", seconds(r.memory), f"{si(c.bytes_accessed)}B at {si(bandwidth)}B/s"],
        [
            "network",
            seconds(r.network) if r.network else "0",
            f"{si(sum(x.sent for x in c.collectives))}B at {si(chip.device_ici_bandwidth)}B/s",
        ],
    ]
    table = _table(["bound", "at least", "from"], rows, [1])
    if not (c.flops and c.bytes_accessed):
        return table
    intensity = c.flops / c.bytes_accessed
    low = min(intensity, peak / bandwidth) / 16
    high = max(intensity, peak / bandwidth) * 16
    bottom, top = low * bandwidth / 16, peak * 4

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            70 + 910 * math.log(x / low) / math.log(high / low),
            230 - 210 * math.log(max(y, bottom) / bottom) / math.log(top / bottom),
        )

    ridge = peak / bandwidth
    roof = [at(low, low * bandwidth), at(ridge, peak), at(high, peak)]
    dots = [("roofline", min(peak, intensity * bandwidth), _COLOURS[0])]
    if c.compiler_seconds:
        dots.append(("compiler's estimate", c.flops / c.compiler_seconds, _COLOURS[1]))
    body = [
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in roof)}" fill="none" '
        'stroke="#1d2433" stroke-width="1.5"/>',
        f'<text x="{roof[1][0]:.1f}" y="{roof[1][1] - 8:.1f}">{si(peak)}FLOP/s</text>',
        f'<text x="70" y="248">{low:.2g} FLOP/B</text>',
        f'<text x="900" y="248">{high:.3g} FLOP/B</text>',
    ]
    for name, y, colour in dots:
        px, py = at(intensity, y)
        body.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>')
        body.append(f'<text x="{px + 8:.1f}" y="{py + 4:.1f}">{name}: {si(y)}FLOP/s</text>')
    return table + _svg(1000, 256, body)


def _ops(c: Compiled, n: int = 30) -> str:
    total = max(c.analysis.cycles, 1)
    rows = []
    for op in c.top_ops[:n]:
        share = op.cycles / total
        bar = _svg(100, 10, [f'<rect width="{100 * share:.2f}" height="10" fill="{_COLOURS[0]}"/>'])
        rows.append(
            [
                f"{100 * share:.1f} %", bar, _code(op.name or "(no location)"), _code(op.source),
                str(op.count), seconds(op.cycles / c.topology.chip.clock), gib(op.bytes),
                _e(", ".join(op.opcodes)),
            ]
        )  # fmt: skip
    head = ["share", "", "op", "line", "times", "estimate", "HBM", "instructions"]
    return _table(head, rows, [0, 4, 5, 6])


def _collectives(c: Compiled) -> str:
    if not c.collectives:
        return '<p class="muted">none</p>'
    totals = [
        [_e(kind), str(group), str(n), gib(size), gib(sent)]
        for (kind, group), (n, size, sent) in c.traffic.items()
    ]
    rows = [
        [_e(x.kind), str(x.group), str(x.count), gib(x.bytes), gib(x.sent), _code(x.name),
         _code(x.source)]
        for x in c.collectives[:30]
    ]  # fmt: skip
    head = ["kind", "devices", "times", "results", "sent"]
    return (
        _table(head, totals, [1, 2, 3, 4])
        + "<h2>Largest collectives</h2>"
        + _table([*head, "op or input", "line"], rows, [1, 2, 3, 4])
    )


def _inputs(c: Compiled) -> str:
    kinds: dict[str, int] = {}
    for x in c.inputs:
        kinds[x["kind"]] = kinds.get(x["kind"], 0) + 1
    counts = ", ".join(f"{n} of kind {k}" for k, n in kinds.items())
    rows = [
        [_code(x["name"]), _e(x["kind"]), _code(f"{x['dtype']}{list(x['shape'])}")]
        for x in c.inputs[:200]
    ]
    table = _table(["name", "kind", "whole shape"], rows, [])
    return f"<details><summary>{counts}</summary>{table}</details>"
