"""`jetcluster up`: a local cluster in one command, with a live status until Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.cli.local_cluster import ClusterError, LocalCluster, LocalNode, check_ports_free

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_SECONDS = 1.0
REFRESHES_PER_LINE = 10
"""Refreshes per status line without a terminal, if nothing changes; a change is shown at once."""


class NodeStatus(NamedTuple):
    """A node's row of the status; it has "" and 0 for a node that does not answer."""

    name: str
    url: str
    state: str
    role: str
    streams: int
    messages: int
    bytes: int
    connections: int
    memory: int


def run_up(count: int, directory: Path | None, port: int) -> int:
    """Runs the cluster until SIGINT or SIGTERM, and returns the exit code."""
    busy = check_ports_free(range(port, port + count)) if port else None
    if busy is not None:
        print(
            f"jetcluster up: port {busy} is in use; stop what listens there, or choose --port N (0: free ports)",
            file=sys.stderr,
        )
        return 1
    root = directory or Path(tempfile.mkdtemp(prefix="jetcluster-"))
    cluster = LocalCluster(count, root, port)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        return _run(cluster, root, stop)
    finally:
        killed = cluster.stop()
        if killed:
            print(f"killed, because they did not stop in time: {', '.join(killed)}", file=sys.stderr)
        print("cluster stopped" + ("" if directory is None else f"; its data stays in {root}"))
        if directory is None:
            shutil.rmtree(root, ignore_errors=True)


def _run(cluster: LocalCluster, root: Path, stop: threading.Event) -> int:
    try:
        cluster.start()
        cluster.wait_healthy(stop=stop)
        if stop.is_set():
            return 0
    except ClusterError as error:
        print(f"jetcluster up: {error}", file=sys.stderr)
        return 1
    print(how_to_connect(cluster, root), flush=True)
    if sys.stdout.isatty():
        _show_live(cluster, stop)
    else:
        _print_plain(cluster, stop)
    return 0


def how_to_connect(cluster: LocalCluster, root: Path) -> str:
    urls = ",".join(cluster.urls)
    lines = [
        f"{len(cluster.nodes)} node{'s are' if len(cluster.nodes) > 1 else ' is'} up.",
        "",
        f"  nats CLI   nats --server {urls} stream ls",
        f"  Python     await nats.connect({cluster.urls!r})",
        f"  monitor    {'  '.join(node.monitor_url for node in cluster.nodes)}",
        f"  data, logs {root}",
        "",
        "Ctrl-C stops the cluster.",
    ]
    return "\n".join(lines)


def status(cluster: LocalCluster) -> list[NodeStatus]:
    return [_row(node) for node in cluster.nodes]


def _row(node: LocalNode) -> NodeStatus:
    if not node.is_running:
        code = node.process.returncode if node.process is not None else None
        return NodeStatus(node.name, node.url, f"ended ({code})", "", 0, 0, 0, 0, 0)
    varz, jsz = node.fetch("/varz"), node.fetch("/jsz")
    if varz is None or jsz is None:
        return NodeStatus(node.name, node.url, "no answer", "", 0, 0, 0, 0, 0)
    health = node.fetch("/healthz")
    return NodeStatus(
        node.name,
        node.url,
        "healthy" if health is not None else "not ready",
        _role(jsz, node.name),
        jsz.get("streams", 0),
        jsz.get("messages", 0),
        jsz.get("bytes", 0),
        varz["connections"],
        varz["mem"],
    )


def _role(jsz: dict[str, Any], name: str) -> str:
    meta = jsz.get("meta_cluster")
    if meta is None:
        return "single"
    return "leader" if meta.get("leader") == name else "follower" if meta.get("leader") else "no leader"


def _show_live(cluster: LocalCluster, stop: threading.Event) -> None:
    from rich.live import Live

    with Live(table_of(status(cluster)), auto_refresh=False) as live:
        while not stop.wait(REFRESH_SECONDS):
            live.update(table_of(status(cluster)), refresh=True)


def table_of(rows: list[NodeStatus]) -> Table:
    """Returns a table that fits 80 columns. A healthy node's state is its role in the meta group."""
    from rich import box
    from rich.filesize import decimal
    from rich.table import Table

    table = Table(title="jetcluster", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("node", "clients at", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("streams", "messages", "stored", "clients", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        healthy = row.state == "healthy"
        table.add_row(
            row.name,
            row.url.removeprefix("nats://"),
            f"[{'green' if healthy else 'red'}]{row.role if healthy else row.state}[/]",
            _count(row.streams),
            _count(row.messages),
            decimal(row.bytes),
            _count(row.connections),
            decimal(row.memory),
        )
    return table


def _count(number: int) -> str:
    """Returns a number in seven characters at most: 12,345 and 123.5M."""
    if number < 100_000:
        return f"{number:,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if number < 1_000 * size:
            return f"{number / size:.1f}{unit}"
    return f"{number / 1e12:.1f}T"


def _print_plain(cluster: LocalCluster, stop: threading.Event) -> None:
    before: list[tuple[str, str, int]] = []
    turn = 0
    while not stop.is_set():
        rows = status(cluster)
        now = [(row.state, row.role, row.streams) for row in rows]
        if now != before or turn % REFRESHES_PER_LINE == 0:
            print(" | ".join(plain(row) for row in rows), flush=True)
        before = now
        turn += 1
        stop.wait(REFRESH_SECONDS)


def plain(row: NodeStatus) -> str:
    if row.state != "healthy":
        return f"{row.name} {row.state}"
    return f"{row.name} {row.role} streams={row.streams} messages={row.messages} clients={row.connections}"
