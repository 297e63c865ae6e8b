# ruff: noqa: S603, S607 - runs df, git and the peer itself, with fixed arguments
"""The benchmark page: one row per figure, with the ratio to the peer and the goal it is held against."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testkit.harness import TOP, find_server

OURS = "jetcluster"
PEER = "nats-server"


@dataclass(slots=True)
class Figures:
    fsync_ms: float
    """p50 of append + fdatasync on the same disk, measured between the rounds."""
    load: float
    """The machine's load average before the run: above 0.5 somebody else was using it."""
    samples: dict[str, dict[str, list[float]]]
    """server -> figure -> one value per round."""

    def median(self, server: str, key: str) -> float | None:
        values = self.samples.get(server, {}).get(key)
        return statistics.median(values) if values else None


Judge = Callable[[float, float | None, Figures], bool | None]


@dataclass(slots=True)
class Row:
    key: str
    label: str
    unit: str
    goal: str = ""
    judge: Judge | None = None


def at_least_ratio(share: float) -> Judge:
    return lambda ours, peer, _: None if peer is None else ours >= share * peer


def at_most_ratio(share: float) -> Judge:
    return lambda ours, peer, _: None if peer is None else ours <= share * peer


def at_most(limit: float) -> Judge:
    return lambda ours, _peer, _figures: ours <= limit


def at_least(limit: float) -> Judge:
    return lambda ours, _peer, _figures: ours >= limit


ROWS = [
    Row("r3_async", "R3 file, 128 B, 500 outstanding", "msgs/s", "≥ 0.75x (aim 1.5x)", at_least_ratio(0.75)),
    Row("r3_cpu_leader", "— CPU of the leader", "µs/msg", "< 8", at_most(8)),
    Row("r3_cpu_follower", "— CPU of a follower", "µs/msg", "< 4", at_most(4)),
    Row("r3_cpu_client", "— CPU of the bench client", "µs/msg"),
    Row("r3_sync_p50", "R3 synchronous publish, p50", "ms", "≤ fdatasync + 1 ms",
        lambda ours, _peer, f: ours <= f.fsync_ms + 1.0),
    Row("r3_sync_p99", "R3 synchronous publish, p99", "ms"),
    Row("r1_async", "R1 file, 128 B, 500 outstanding", "msgs/s", "≥ 10x", at_least_ratio(10)),
    Row("r1_cpu_leader", "— CPU of the leader", "µs/msg"),
    Row("r1_sync_p50", "R1 synchronous publish, p50", "ms"),
    Row("get1_p50", "Direct Get, 1 in flight, p50", "ms", "≤ 2x", at_most_ratio(2)),
    Row("get1_p99", "Direct Get, 1 in flight, p99", "ms"),
    Row("get256_rate", "Direct Get, 256 in flight over 3 nodes, 100,000 messages", "msgs/s", "≥ 0.5x",
        at_least_ratio(0.5)),
    Row("get256_cpu", "— CPU of the three nodes", "µs/msg"),
    Row("get256_large_rate", "the same over 500,000 messages", "msgs/s", "≥ 0.5x", at_least_ratio(0.5)),
    Row("get256_large_cpu", "— CPU of the three nodes", "µs/msg"),
    Row("core_rate", "Core pub/sub across two nodes, 128 B", "msgs/s"),
    Row("failover_s", "SIGKILL of the stream leader to the next ack", "s", "< 2", at_most(2)),
    Row("cold_start_s", 'Cold start to "Server is ready"', "s", "< 0.5", at_most(0.5)),
    Row("create_rate", "Creating R3 streams, one after the other", "1/s", "≥ 30", at_least(30)),
    Row("idle_cpu", "Idle with 200 R3 streams: busiest node", "% of a core", "< 8", at_most(8)),
    Row("idle_rss", "Idle with 200 R3 streams: largest node", "MB", "< 300", at_most(300)),
]  # fmt: skip

FEATURES = [
    Row("batch_1", "Batched Direct Get, 1,000 each, R3, one connection", "msgs/s", "≥ 0.5x", at_least_ratio(0.5)),
    Row("batch_3", "the same on three connections to three nodes", "msgs/s"),
    Row("batch_scaling", "— three connections against one", "x", "≥ 1.4", at_least(1.4)),
    Row("wildcard", "Batches of 100 by a wildcard, 1 message in 7 matches", "msgs/s"),
    Row("multi_last", "multi_last of 500 keys, R3", "msgs/s", "≥ 0.5x", at_least_ratio(0.5)),
    Row("atomic_r3", "Atomic batches of 1,000, R3", "msgs/s", "≥ 0.5x (aim 1x)", at_least_ratio(0.5)),
    Row("atomic_r1", "Atomic batches of 100, R1", "msgs/s", "≥ 1x", at_least_ratio(1)),
    Row("subjects_rss", "1M subjects in one R1 stream: memory of the server", "MB", "< 1,000", at_most(1000)),
    Row("subjects_multi_last_p50", "— multi_last of 500 of them, p50", "ms", "< 10", at_most(10)),
    Row("subjects_restart_s", "— stop and start until STREAM.INFO answers", "s", "< 5", at_most(5)),
    Row("fetch", "Pull: fetch 500, ack each message, R3", "msgs/s", "≥ 0.35x", at_least_ratio(0.35)),
    Row("ordered", "Ordered consumer (push), R3", "msgs/s", "≥ 0.25x (aim 0.5x)", at_least_ratio(0.25)),
    Row("kv_put", "KV put, 500 outstanding, R3", "msgs/s", "≥ 0.5x", at_least_ratio(0.5)),
    Row("kv_get", "KV get, 64 in flight, R3", "msgs/s", "≥ 0.5x", at_least_ratio(0.5)),
    Row("idle_consumers", "1,000 idle durable consumers on one stream: all three nodes", "% of a core", "< 20",
        at_most(20)),
    Row("takeover_s", "SIGKILL of a consumer's owner to the next message", "s", "< 2", at_most(2)),
    Row("restart_s", "SIGKILL of a follower with 1M messages, start until it is healthy", "s", "< 3", at_most(3)),
    Row("restart_cpu", "— CPU of that node by then", "s"),
    Row("catch_up", "Catch-up of a follower that lacks 300,000 messages of 1.3M", "msgs/s"),
    Row("catch_up_ratio", "— against the rate at which the leader took them", "x", "≥ 1", at_least(1)),
    Row("catch_up_cpu", "— CPU of that follower", "µs/msg"),
]  # fmt: skip


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def write_page(figures: Figures, rounds: int, seconds: float, folder: Path) -> str:
    """The Markdown page as text."""
    peer_there = PEER in figures.samples
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` (`python -m bench page --rounds {rounds} --seconds {seconds:g}`) on "
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}. {_rounds(rounds)}; every round is a fresh "
        "three-node cluster on loopback, the two servers take turns in one run, on one disk, and the load client "
        "shares the CPUs.",
        "",
        f"- Machine: {machine()}; disk under the stores: {disk(folder)}; "
        f"append + fdatasync p50 {figures.fsync_ms:.2f} ms; "
        f"load average before the run {figures.load:.1f}.",
        f"- Versions: jetcluster {own_version()} on Python {platform.python_version()}; "
        + (f"{peer_version()} with `sync_interval: always`." if peer_there else "no nats-server on this machine."),
        "- Both servers fsync on a majority before they ack. CPU is the time of all threads, from "
        "`/proc/<pid>/task/*/schedstat`.",
        "",
    ]
    lines += _table(figures, ROWS)
    if any(figures.median(OURS, row.key) is not None for row in FEATURES):
        lines += ["", "## Stream API and consumers", "",
                  "Here nats-server runs with its lazy default: it acks before it fsyncs. jetcluster fsyncs on a "
                  "majority first, as always.", "", *_table(figures, FEATURES)]  # fmt: skip
    if rounds > 1:
        lines += _spreads(figures)
    lines += ["", "[Notes on the benchmarks](benchmarks-notes.md) says what each figure depends on, and what was "
              "measured by other commands."]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rounds(rounds: int) -> str:
    return "Figures of one round" if rounds == 1 else f"Medians over {rounds} rounds"


def _spreads(figures: Figures) -> list[str]:
    """The lowest and highest value of each figure over the rounds."""
    lines = ["", "Spread over the rounds (lowest to highest):", "", "| figure | jetcluster | nats-server |",
             "| --- | ---: | ---: |"]  # fmt: skip
    for row in ROWS + FEATURES:
        if figures.median(OURS, row.key) is None:
            continue
        spread = [_spread(figures.samples.get(server, {}).get(row.key)) for server in (OURS, PEER)]
        lines.append(f"| {row.label} ({row.unit}) | {spread[0]} | {spread[1]} |")
    return lines


def _table(figures: Figures, rows: list[Row]) -> list[str]:
    lines = [
        "| figure | unit | jetcluster | nats-server | ratio | goal | met |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        ours, peer = figures.median(OURS, row.key), figures.median(PEER, row.key)
        ratio = f"{ours / peer:.2f}x" if ours is not None and peer else "-"
        met = "" if row.judge is None or ours is None else {True: "yes", False: "**no**", None: "?"}[
            row.judge(ours, peer, figures)]  # fmt: skip
        lines.append(f"| {row.label} | {row.unit} | {number(ours)} | {number(peer)} | {ratio} | {row.goal} | {met} |")
    return lines


def _spread(values: list[float] | None) -> str:
    return f"{number(min(values))} to {number(max(values))}" if values else "-"


def own_version() -> str:
    """The commit of this tree: the version number alone says little about a figure."""
    command = ["git", "-C", str(TOP), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"at commit {found.stdout.strip()}" if found.returncode == 0 else "from a tree without git"


def machine() -> str:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return f"{os.cpu_count()} CPUs ({model or platform.machine()}), {pages} GiB RAM, Linux {platform.release()}"


def disk(folder: Path) -> str:
    found = subprocess.run(["df", "--output=fstype,source", str(folder)], capture_output=True, text=True, check=False)
    return " ".join(found.stdout.split("\n")[1].split()) if found.returncode == 0 else "unknown"


def peer_version() -> str:
    command = find_server(PEER)
    assert command is not None
    return subprocess.run([command[0], "-v"], capture_output=True, text=True, check=True).stdout.strip()
