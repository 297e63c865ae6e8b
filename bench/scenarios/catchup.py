"""A stream that is written at full speed while another replica joins: how long that takes, and what it costs.

    python -m bench catchup [--gigabytes 0.3] [--size 1024] [--replicas 2] [--kill] [--folder /var/tmp]

Three nodes are started, a stream with `--replicas` replicas is filled with so many gigabytes of payload, and
`num_replicas` is raised by one while a client goes on publishing as fast as it gets acks. With `--kill` the new
replica's process is killed (SIGKILL) in the middle of the transfer and started again. The last line is JSON:

`seconds` until the new replica is a voter; `rounds`: for each transfer that came to its end, bytes that were compared,
bytes that had to come, seconds; `fetched_before_kill`, the bytes that had come by then; `leader_rss_mb` before and at
most; `journal_mb`, the leader's journal on disk at most; `lag` in log entries when it became a voter;
`acks_per_second` alone, while the replica joins, and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import loads
from testkit.client import ClientError
from testkit.harness import HarnessError, Node, ProcessCluster, eventually, resident

STREAM = "S"
SUBJECT = "s"
WINDOW = 300
LIMIT = 1800.0
"""Seconds after which a run has failed."""
ROUND = re.compile(r"caught up from a snapshot.*?compared=(\d+).*?fetched=(\d+).*?seconds=([\d.]+)")


@dataclass
class Load:
    """Publishes without pause; what fails while a leader changes is published again."""

    nodes: ProcessCluster
    size: int
    counts: list[tuple[float, int]] = field(default_factory=list)
    """(when, acks of the second before)."""
    errors: int = 0

    async def run(self) -> None:
        while True:
            try:
                leader = await self.nodes.stream_leader(STREAM)
                done = await loads.js_publish(leader.url, SUBJECT, size=self.size, window=WINDOW, seconds=1.0)
                self.counts.append((time.monotonic(), done.messages))
            except (ClientError, HarnessError, OSError, TimeoutError):
                self.errors += 1
                await asyncio.sleep(0.1)

    def rate(self, begin: float, end: float) -> int:
        found = [count for when, count in self.counts if begin < when <= end]
        return round(sum(found) / (end - begin)) if found else 0


@dataclass
class Watch:
    """Samples what the leader takes, four times a second."""

    leader: Node
    rss: int = 0
    journal: int = 0

    async def run(self) -> None:
        folder = self.leader.store / "jetstream" / "journal"
        while True:
            self.rss = max(self.rss, resident(self.leader.pid))
            self.journal = max(self.journal, sum(size_of(path) for path in folder.iterdir()))
            await asyncio.sleep(0.25)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


async def progress(node: Node) -> dict[str, Any]:
    """State of the transfer to `node`; empty while there is none."""
    try:
        found = (await node.monitor("jsz")).get("catching_up", [])
    except OSError:
        return {}
    return found[0] if found else {}


async def group(node: Node) -> dict[str, Any]:
    """The stream's Raft group as its leader sees it; empty while that does not answer."""
    try:
        accounts = await node.monitor("raftz?acc=$G")
    except OSError:
        return {}
    found = [one for name, one in accounts.get("$G", {}).items() if name.startswith("S-")]
    return found[0] if found else {}


async def api(node: Node, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    async with await node.connect() as client:
        return await client.api(subject, body, within=10.0)


async def kill_in_the_middle(joiner: Node, size: float) -> int:
    """Bytes that had come."""
    came: int = 0

    async def half() -> bool:
        nonlocal came
        came = max(came, (await progress(joiner)).get("fetched_bytes", 0))
        return came > size * 0.4

    await eventually(half, LIMIT, "half of the state", every=0.05)
    joiner.kill9()
    await asyncio.sleep(1.0)
    await joiner.start()
    return came


async def joining(nodes: ProcessCluster, args: argparse.Namespace) -> dict[str, Any]:
    config = {"name": STREAM, "subjects": [SUBJECT], "num_replicas": args.replicas, "storage": "file"}
    info = await api(nodes[0], f"STREAM.CREATE.{STREAM}", config)
    members = {info["cluster"]["leader"], *[peer["name"] for peer in info["cluster"].get("replicas") or []]}
    leader = await nodes.stream_leader(STREAM)
    size = args.gigabytes * 1e9
    filled = await loads.js_publish(leader.url, SUBJECT, size=args.size, window=WINDOW, count=int(size / args.size))
    print(f"filled {size / 1e9:g} GB in {filled.seconds:.0f} s, {filled.rate:.0f} acks/s", flush=True)

    load, watch = Load(nodes, args.size), Watch(leader)
    tasks = [asyncio.create_task(load.run()), asyncio.create_task(watch.run())]
    found: dict[str, Any] = {"gigabytes": args.gigabytes, "message": args.size, "replicas": args.replicas}
    try:
        begun = time.monotonic()
        await asyncio.sleep(args.alone)
        before = resident(leader.pid)
        start = time.monotonic()
        await api(leader, f"STREAM.UPDATE.{STREAM}", {**config, "num_replicas": args.replicas + 1})
        joiner = await new_one(nodes, leader, members)
        if args.kill:
            found["fetched_before_kill"] = await kill_in_the_middle(joiner, size)
        lag = await voter(leader, args.replicas + 1)
        end = time.monotonic()
        await asyncio.sleep(args.alone)
        text = re.sub(r"\x1b\[[0-9;]*m", "", joiner.log())
        rounds = [[int(a), int(b), float(c)] for a, b, c in ROUND.findall(text) if int(a) > 100_000]
        found |= {
            "seconds": round(end - start, 1),
            "rounds": [{"compared": a, "fetched": b, "seconds": c} for a, b, c in rounds],
            "lag": lag,
            "leader_rss_mb": [before >> 20, watch.rss >> 20],
            "journal_mb": watch.journal >> 20,
            "acks_per_second": [
                load.rate(begun, start), load.rate(start, end), load.rate(end, time.monotonic())
            ],
            "publish_errors": load.errors,
        }  # fmt: skip
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await nodes.wait_current(STREAM, LIMIT, args.replicas)
    found["current"] = True
    return found


async def new_one(nodes: ProcessCluster, leader: Node, members: set[str]) -> Node:
    names: set[str] = set()

    async def known() -> bool:
        try:
            info = await api(leader, f"STREAM.INFO.{STREAM}", {})
        except (ClientError, TimeoutError):
            return False
        names.update(peer["name"] for peer in info["cluster"].get("replicas") or [])
        return bool(names - members)

    await eventually(known, 60.0, "nobody joins")
    return nodes.node((names - members).pop())


async def voter(leader: Node, voters: int) -> int:
    """Waits until the group has so many; the new one's lag in log entries then."""
    seen: dict[str, Any] = {}

    async def complete() -> bool:
        seen.update(await group(leader))
        return bool(seen.get("size") == voters)

    await eventually(complete, LIMIT, "it did not become a voter", every=0.1)
    last: int = seen["wal"]["last_seq"]
    return max(last - int(peer.get("last_replicated_index", 0)) for peer in seen["peers"].values())


async def run(args: argparse.Namespace) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="jetcluster-catchup-", dir=args.folder))
    try:
        async with ProcessCluster(3, root=root, monitor=True) as nodes:
            return await joining(nodes, args)
    finally:
        if not args.keep:
            shutil.rmtree(root, ignore_errors=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=0.3)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--replicas", type=int, default=2, choices=(1, 2), help="before the new one joins")
    parser.add_argument("--kill", action="store_true", help="kill the new replica in the middle")
    parser.add_argument("--alone", type=float, default=5.0, help="seconds of publishing before and after")
    parser.add_argument("--folder", help="where the stores lie meanwhile; a disk, not memory")
    parser.add_argument("--keep", action="store_true", help="leave stores and logs there")


def main(arguments: argparse.Namespace) -> None:
    print(json.dumps(asyncio.run(run(arguments))))
