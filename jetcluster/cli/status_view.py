"""The screen of `jetcluster status`: readable in 80 columns, the troubles last, where the eye is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.cli.cluster_state import NO_ANSWER, OK, ClusterState, ServerReport

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MAX_SHOWN: Final = 20
"""Lines of each kind of trouble; the others are counted."""
MIN_FIRST: Final = 8
MIN_LAST: Final = 24
"""Columns that are left of the first and the last column of a table, if there is any need."""
_COLORS: Final = {OK: "green", NO_ANSWER: "red"}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def screen(cluster: ClusterState, width: int) -> RenderableType:
    """Returns all that `status` shows on a screen of `width` columns."""
    from rich.console import Group
    from rich.text import Text

    healthy = not cluster.troubles()
    head = Text(printable(headline(cluster)), style="bold")
    return Group(head, "", servers_table(cluster, width), "", *_streams(cluster), *_troubles(cluster, healthy))


def headline(cluster: ClusterState) -> str:
    """Returns one line on the whole cluster."""
    name = f"cluster {cluster.name}" if cluster.name else "no cluster"
    text = f"{name}: {len(cluster.answering)} of {len(cluster.servers)} servers answer"
    if cluster.meta_size:
        leader = cluster.meta_leader or "none"
        text += f"; meta leader: {leader} ({cluster.meta_size} members, {cluster.meta_quorum} needed)"
    return text


def servers_table(cluster: ClusterState, width: int) -> RenderableType:
    """Returns a line per server."""
    titles = ("server", "health", "meta", "version", ">cpu", ">memory", ">disk", ">clients", ">leads")
    return table(titles, [_row(server) for server in cluster.servers], width)


def _row(server: ServerReport) -> list[str | Text]:
    from rich.text import Text

    health = Text(server.health, style=_COLORS.get(server.health, "yellow"))
    if server.health == NO_ANSWER:
        return [server.name, health, server.meta or "-", *"------"]
    disk = f"{size(server.storage)} {100 * server.storage // server.max_storage}%" if server.max_storage else "-"
    leads = f"{server.leaders}/{server.streams}"
    return [
        server.name, health, server.meta or "-", server.version, f"{server.cpu:.0f}%", size(server.memory), disk,
        f"{server.connections:,}", leads,
    ]  # fmt: skip


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int, *, last_wraps: bool = False
) -> RenderableType:
    """Returns a table without frames for a screen of `width` columns. A title that begins with `>` is of a column of
    numbers. Where there is no room, the first column is cut, then other text; with `last_wraps` the last one goes on in
    the next line first."""
    from rich.table import Table
    from rich.text import Text

    widths = [
        max(len(cell) for cell in (title.lstrip(">"), *column)) for title, *column in zip(titles, *rows, strict=True)
    ]
    if last_wraps:
        widths[-1] = min(widths[-1], max(width - sum(widths[:-1]) - len(widths), MIN_LAST))
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - len(widths), MIN_FIRST))
    texts = [at for at, title in enumerate(titles) if not title.startswith(">")]
    for at in [*texts[-1:], *texts[:-1]] if last_wraps else texts:  # a number that is cut would be another one
        excess = sum(widths) + len(widths) - width
        widths[at] -= max(min(excess, widths[at] - max(MIN_FIRST, len(titles[at]))), 0)
    found = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for title, columns in zip(titles, widths, strict=True):
        last = last_wraps and title is titles[-1]
        found.add_column(
            title.lstrip(">"), justify="right" if title.startswith(">") else "left", width=columns, no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )  # fmt: skip
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return found


def printable(text: str) -> str:
    """Returns the text without what would move a terminal's cursor: names come from clients."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def _streams(cluster: ClusterState) -> list[RenderableType]:
    groups = cluster.streams
    messages, stored = sum(group.messages for group in groups), sum(group.bytes for group in groups)
    accounts = len({group.account for group in groups})
    consumers = sum(group.consumers for group in groups)
    text = f"{_count(len(groups), 'stream')} in {_count(accounts, 'account')}: {messages:,} messages, {size(stored)}"
    return [f"{text}, {_count(consumers, 'consumer')}"]


def _troubles(cluster: ClusterState, healthy: bool) -> list[RenderableType]:
    from rich.text import Text

    lags = [f"stream {group.label}: {'; '.join(group.lags())}" for group in cluster.streams if group.lags()]
    slow = [f"{server.name}: {server.slow_consumers:,} slow consumers since its start" for server in cluster.servers
            if server.slow_consumers]  # fmt: skip
    lines: list[RenderableType] = []
    for texts, style in ((cluster.troubles(), "red"), (lags, "yellow"), (slow, "yellow"), (cluster.notes, "yellow")):
        lines += [Text(printable(f"- {text}"), style=style) for text in texts[:MAX_SHOWN]]
        if len(texts) > MAX_SHOWN:
            lines.append(Text(f"- and {len(texts) - MAX_SHOWN:,} more (--json has all)", style=style))
    if healthy and not lags and not cluster.notes:
        lines.append(Text("healthy: every group has a leader, and no replica lags", style="green"))
    return lines


def size(count: float) -> str:
    """Returns bytes in at most seven characters: `999 B`, `1.2 GB`, `31.7 GB`."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit and count < 99.95 else f"{count:.0f} {_UNITS[unit]}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
