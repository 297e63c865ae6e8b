"""One HTML file without references to anything outside: the table, and of each run a timeline in SVG with its faults,
who led which stream, and how many writes were acked."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from chaos.checkers import availability
from chaos.report import COLUMNS, row
from chaos.runner import Result
from jetcluster.pipeline.checkers.event import Event, operations

WIDTH = 1100
MARGIN = 110
LANE = 16
RATE_HEIGHT = 90
BIN = 0.25
COLORS = {
    "process": "#c0392b", "pause": "#d68910", "link": "#7d3c98", "disk": "#a04000", "files": "#943126",
    "clock": "#1f618d", "membership": "#117a65", "load": "#515a5a",
}  # fmt: skip
LEADERS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f")
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1140px; padding: 0 1em; color: #222 }
table { border-collapse: collapse } td, th { padding: .2em .7em; border-bottom: 1px solid #ccc; text-align: right }
td:first-child, th:first-child, td:last-child { text-align: left } tr.bad { color: #b00020; font-weight: bold }
tr.skipped { color: #888 } svg { font: 11px system-ui, sans-serif; width: 100%; height: auto } h2 { margin-top: 2em }
li.bad { color: #b00020 } .key span { display: inline-block; margin-right: 1em } .key i { display: inline-block;
width: 1em; height: 1em; vertical-align: text-bottom; margin-right: .3em }
"""


def render(results: Sequence[Result], title: str) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join(_row(result) for result in results)
    runs = "".join(_run(result) for result in results if result.history is not None)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1><table><tr>{head}</tr>{body}</table>{runs}</html>\n"
    )


def _row(result: Result) -> str:
    kind = "skipped" if result.skipped else "" if result.ok else "bad"
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row(result))
    return f'<tr class="{kind}">{cells}</tr>'


def _run(result: Result) -> str:
    assert result.history is not None
    ops = sorted(operations(result.history.events), key=lambda op: op.t0)
    found = "".join(
        f'<li class="bad">{html.escape(f"{f.kind} ({f.workload}, {f.t:.2f} s): {f.text}")}</li>'
        for f in result.verdict.findings
    )
    left_out = "".join(f"<li>{html.escape(f'left out: {name}: {why}')}</li>" for name, why in result.left_out.items())
    faults = "".join(
        f"<li>{op.t0:.2f} to {op.t1:.2f} s: {html.escape(op.subject)} {html.escape(op.error)}</li>"
        for op in ops
        if op.f == "fault"
    )
    path = f"<p>History: {html.escape(str(result.history.path))}</p>" if result.history.path else ""
    return (
        f"<h2>{html.escape(result.scenario)}, seed {result.seed} ({html.escape(result.target)})</h2>{_svg(ops, result)}"
        f"<ul>{found}{left_out}</ul><details><summary>{result.faults.total()} faults</summary><ul>{faults}</ul>"
        f"</details>{path}"
    )


class _Scale:
    def __init__(self, end: float) -> None:
        self.end = max(end, 1.0)

    def x(self, t: float) -> float:
        return MARGIN + (WIDTH - MARGIN - 10) * min(max(t, 0.0), self.end) / self.end


def _svg(ops: Sequence[Event], result: Result) -> str:
    writes = [op for op in ops if op.f in ("publish", "cas", "batch")]
    faults = [op for op in ops if op.f == "fault"]
    ends = [op.t1 for op in writes + faults if op.t1 < math.inf]
    scale = _Scale(max(ends, default=1.0))
    kinds = sorted({op.workload for op in faults})
    streams = sorted({op.workload for op in ops if op.f == "leader"})
    height = LANE * (len(kinds) + len(streams)) + RATE_HEIGHT + 50
    parts, y = [], 10
    for kind in kinds:
        parts += _faults(scale, kind, [op for op in faults if op.workload == kind], y)
        y += LANE
    for stream in streams:
        parts += _leaders(scale, stream, [op for op in ops if op.f == "leader" and op.workload == stream], y)
        y += LANE
    parts += _rate(scale, writes, y + 8)
    parts += [
        f'<line x1="{scale.x(f.t):.1f}" x2="{scale.x(f.t):.1f}" y1="0" y2="{y + RATE_HEIGHT}" stroke="#b00020">'
        f"<title>{html.escape(f.kind + ': ' + f.text)}</title></line>"
        for f in result.verdict.findings
        if f.t
    ]
    parts += _axis(scale, y + RATE_HEIGHT + 12)
    names = sorted({op.replica for op in ops if op.f == "leader" and op.replica})
    key = "".join(f'<span><i style="background:{_color(n)}"></i>{html.escape(n)} leads</span>' for n in names)
    return f'<svg viewBox="0 0 {WIDTH} {height}">{"".join(parts)}</svg><p class="key">{key}</p>'


def _bar(x: float, end: float, y: float, color: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(end - x, 1.5):.1f}" height="{LANE - 3}" fill="{color}">'
        f"<title>{html.escape(title)}</title></rect>"
    )


def _label(text: str, y: float) -> str:
    return f'<text x="{MARGIN - 6}" y="{y + LANE - 6}" text-anchor="end">{html.escape(text)}</text>'


def _faults(scale: _Scale, kind: str, faults: Sequence[Event], y: float) -> list[str]:
    color = COLORS.get(kind, "#555")
    bars = [_bar(scale.x(op.t0), scale.x(op.t1), y, color, f"{op.subject}: {op.error}") for op in faults]
    return [_label(kind, y), *bars]


def _color(name: str) -> str:
    digits = "".join(c for c in name if c.isdigit())
    return LEADERS[int(digits or 0) % len(LEADERS)]


def _leaders(scale: _Scale, stream: str, changes: Sequence[Event], y: float) -> list[str]:
    parts = [_label(f"{stream} leader", y)]
    for at, change in enumerate(changes):
        end = changes[at + 1].t0 if at + 1 < len(changes) else scale.end
        if change.replica and change.t0 < scale.end:
            parts.append(_bar(scale.x(change.t0), scale.x(end), y, _color(change.replica), change.replica))
    return parts


def _rate(scale: _Scale, writes: Sequence[Event], y: float) -> list[str]:
    bins = [0] * (int(scale.end / BIN) + 1)
    for op in writes:
        if op.type == "ok" and op.t1 <= scale.end:
            bins[int(op.t1 / BIN)] += op.count or 1
    top = max(bins, default=0) or 1
    points = [f"{scale.x(0):.1f},{y + RATE_HEIGHT - 10}"]
    for at, count in enumerate(bins):
        height = (RATE_HEIGHT - 10) * count / top
        points += [f"{scale.x(t):.1f},{y + RATE_HEIGHT - 10 - height:.1f}" for t in (at * BIN, (at + 1) * BIN)]
    points.append(f"{scale.x(scale.end):.1f},{y + RATE_HEIGHT - 10}")
    gaps = [
        f'<rect x="{scale.x(a):.1f}" y="{y}" width="{scale.x(b) - scale.x(a):.1f}" height="{RATE_HEIGHT - 10}" '
        f'fill="#f5b7b1"><title>{b - a:.1f} s without an ack</title></rect>'
        for a, b in availability.outages(writes)
    ]
    return [
        *gaps,
        f'<polygon points="{" ".join(points)}" fill="#5d9b76"/>',
        f'<text x="{MARGIN - 6}" y="{y + 12}" text-anchor="end">{top / BIN:,.0f} acks/s</text>',
    ]


def _axis(scale: _Scale, y: float) -> list[str]:
    step = next((s for s in (1, 2, 5, 10, 30, 60, 120, 300) if scale.end / s <= 14), 600)
    return [
        f'<text x="{scale.x(t):.1f}" y="{y + 10}" text-anchor="middle">{t} s</text>'
        for t in range(0, int(scale.end) + 1, step)
    ]
