"""The benchmark page: for each row the median of every contender and its spread, and what it is against the peer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from bench.contender import ALL, ALWAYS, LAZY, OURS, Contender
from bench.profile import anchor
from bench.row import HIGHER, Group, Row, all_rows
from bench.samples import Samples

PROFILED = 1.2
"""Rows with a lower ratio to the peer's default have a profile."""
BUSY = 0.9
"""The share of a core from which on the client is the limit, or near it."""
MISSING = "-"
QUOTED = {
    "R3 async leader w500": "publish to three replicas, 128 bytes, 500 outstanding",
    "R3 sync pub leader": "publish to three replicas, one at a time, median",
    "direct seq pipe256 3conn": "Direct Get, 256 in flight on each of three nodes",
    "failover kill -9 leader": "SIGKILL of a stream's leader to the next ack",
    "core 128B 2 nodes": "publish and subscribe without a stream, across two nodes",
    "cold start": 'start to "Server is ready"',
}
"""The rows of the README, in its words."""
_QUOTE = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)


def number(value: float | None) -> str:
    if value is None:
        return MISSING
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def ratio(samples: Samples, row: Row, peer: Contender) -> float | None:
    """The ratio of the medians; above 1 jetcluster is better. None where one is missing."""
    ours, theirs = samples.median(OURS.name, row.name), samples.median(peer.name, row.name)
    if not ours or not theirs:
        return None
    return ours / theirs if row.better == HIGHER else theirs / ours


def below(samples: Samples, groups: Sequence[Group], limit: float = PROFILED) -> list[Row]:
    """The rows whose ratio to the peer's default is lower."""
    return [row for row in all_rows(groups) if (found := ratio(samples, row, LAZY)) is not None and found < limit]


def page(samples: Samples, groups: Sequence[Group], profiled: Collection[str] = ()) -> str:
    """The Markdown page. Rows below PROFILED are linked to their profile, if their measurement's first row is in
    `profiled`."""
    lines = ["# Benchmarks", "", *_head(samples, groups)]
    for group in groups:
        if any(samples.values(one.name, row.name) or samples.errors(one.name, row.name) for row in group.rows
               for one in ALL):  # fmt: skip
            lines += ["", f"## {group.title}", "", group.text, "", *_table(samples, group, profiled)]
    lines += [
        "",
        "[Notes on the benchmarks](benchmarks-notes.md) says what each figure depends on, and what was measured by "
        "other commands, among them [Spark's figures](benchmarks-notes/spark.md); "
        "[profiles](benchmarks/profiles.md) where the time goes; "
        "[sizes](benchmarks/sizes.md) how cost grows.",
    ]
    return "\n".join(lines) + "\n"


def _head(samples: Samples, groups: Sequence[Group]) -> list[str]:
    known = samples.conditions
    rounds = samples.rounds
    medians = "One round" if rounds == 1 else f"Medians of {rounds} rounds, lowest and highest in brackets"
    load = samples.load[0] if samples.load else 0.0
    lines = [
        f"Written by `make bench` (`python -m bench page --rounds {rounds} --seconds {samples.seconds:g}`) on "
        f"{samples.date}. {medians}. "
        "In each round the servers take turns, with a fresh cluster on loopback for each table, and the load client "
        "(raw sockets) shares the cores with them.",
        "",
        f"- Machine: {known.get('machine')}; disk under the stores: {known.get('disk')}; append + fdatasync p50 "
        f"{_span(samples.fsync_ms)} ms; load average before the first round {load:.1f}.",
        f"- Versions: jetcluster at commit {known.get('commit')} on Python {known.get('python')}, "
        f"{known.get('loops')}; {known.get('peer', 'no nats-server on this machine')}.",
        f"- *lazy* is nats-server with {LAZY.note}; *always* with `sync_interval: always`: {ALWAYS.note}; jetcluster: "
        f"{OURS.note}. Where fsync plays no part, only *lazy* is measured.",
        "- A ratio above 1 says that jetcluster is better, whether more or less of the figure is. CPU is that of all "
        "servers together in microseconds per message (all threads, `schedstat`): lazy / always / jetcluster.",
    ]  # fmt: skip
    ratios = [found for row in all_rows(groups) if (found := ratio(samples, row, LAZY)) is not None]
    if ratios:
        good = sum(found >= 1 for found in ratios)
        lines.append(f"- **{good} of {len(ratios)} rows at 1.0 or more against lazy.**")
    if samples.seconds < 1:
        lines.append("- **A trial: loads of less than a second run over fewer messages than the rows say.**")
    return lines


def _table(samples: Samples, group: Group, profiled: Collection[str]) -> list[str]:
    lines = [
        "| row | figure | nats-server lazy | nats-server always | jetcluster | ratio to lazy | ratio to always "
        "| CPU µs per message | note |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    heads = {row.name: one.rows[0].name for one in group.measurements for row in one.rows}
    for row in group.rows:
        cells = [
            row.name,
            row.unit,
            *(_span(samples.values(one.name, row.name)) for one in ALL),
            *(_ratio(ratio(samples, row, peer)) for peer in (LAZY, ALWAYS)),
            _cpu(samples, row),
            _notes(samples, row, heads[row.name] if heads[row.name] in profiled else ""),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _span(values: Sequence[float]) -> str:
    """The median, and the lowest and highest value."""
    if not values:
        return MISSING
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return number(median) if len(ordered) == 1 else f"{number(median)} ({number(ordered[0])} to {number(ordered[-1])})"


def _ratio(value: float | None) -> str:
    if value is None:
        return MISSING
    text = f"{value:.2f}" if value < 10 else number(value)
    return f"**{text}**" if value < 1 else text


def _cpu(samples: Samples, row: Row) -> str:
    each = [samples.cpu(one.name, row.name) for one in ALL]
    return "" if not any(each) else " / ".join(number(one) for one in each)


def _notes(samples: Samples, row: Row, profile: str) -> str:
    """Notes of a row; `profile` is the heading of its profile, "" for none."""
    notes = [row.note] if row.note else []
    busy = [
        f"{one.name} {100 * share:.0f} %" for one in ALL if (share := samples.client(one.name, row.name) or 0) >= BUSY
    ]  # fmt: skip
    if busy:
        notes.append(f"the load client is at its limit ({', '.join(busy)} of a core)")
    notes += [
        f"{one.name} failed {len(errors)} times: {errors[-1].replace('|', '/')}"
        for one in ALL
        if (errors := samples.errors(one.name, row.name))
    ]
    found = ratio(samples, row, LAZY)
    if profile and found is not None and found < PROFILED:
        notes.append(f"[profile](benchmarks/profiles.md#{anchor(profile)})")
    return "; ".join(notes)


def quote(readme: str, samples: Samples, groups: Sequence[Group]) -> str:
    """The README with its table between `<!-- bench -->` and `<!-- /bench -->` made anew; as it is where a figure is
    missing."""
    rows = {row.name: row for row in all_rows(groups)}
    lines = ["| | jetcluster | nats-server, default | nats-server, `sync_interval: always` |", "|---|---:|---:|---:|"]
    for name, text in QUOTED.items():
        ours, lazy = (samples.median(one.name, name) for one in (OURS, LAZY))
        if ours is None or lazy is None:
            return readme
        unit = rows[name].unit.partition(",")[0].partition(" to ")[0]
        cells = [f"{number(one)} {unit}" for one in (ours, lazy)]
        always = samples.median(ALWAYS.name, name)
        cells.append("" if always is None else f"{number(always)} {unit}")
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    known = samples.conditions
    lines += [
        "",
        f"Conditions: medians of {samples.rounds} rounds of `make bench` of {samples.date} on one machine, which the "
        "servers and the load client share:",
        f"{known.get('machine')}; loopback, {known.get('disk')},",
        f"append and fdatasync {_span(samples.fsync_ms).partition(' ')[0]} ms; Python {known.get('python')}; "
        f"{known.get('peer')}. jetcluster fsyncs on a majority",
        "before it acks; nats-server acks before it fsyncs by default. Run it on your machine before you rely on it.",
    ]
    return _QUOTE.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], readme)
