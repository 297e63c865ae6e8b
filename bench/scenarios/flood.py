"""Measures a flood: connections that publish without waiting, beside publishers that wait for their acks.

    python -m bench flood [--connections 200] [--seconds 30] [--size 512] [--replies] [--send-buffer 0]

Three nodes, one stream with three replicas. The flood is spread over all nodes; on each node one publisher sends a
message, waits for its ack (up to 60 s), sends the next one 50 ms later; and STREAM.INFO is asked for every half second.
Prints one line of JSON: the longest wait for an ack during the flood and after it, how long after the end of the flood
acks were back under 0.1 s and stayed there, the same of STREAM.INFO, changes of leaders, the nodes' largest resident
sets, and how many acked messages are missing in the end. `--send-buffer` bounds what the kernel holds for each
connection of the flood (SO_SNDBUF; the system's own on loopback is some 2.5 MB each, which are all read after the end
of the flood).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from testkit.client import Client, ClientError, create_stream
from testkit.flood import PATIENCE, Probe, run_flood
from testkit.harness import Node, ProcessCluster, resident

STREAM = "FLOOD"
LATE = 0.1
"""Seconds: an ack that takes longer is not a normal one."""
GOALS = {"ack": 2.0, "info": 2.0, "normal_after": 5.0}


class Infos:
    """Asks a node for STREAM.INFO again and again."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.waits: list[tuple[float, float]] = []
        self.failed: list[str] = []
        self.leaders: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        async with await Client.connect(self.node.url, name="info") as client:
            while not stop.is_set():
                start = time.monotonic()
                try:
                    answer = await client.api(f"STREAM.INFO.{STREAM}", within=PATIENCE)
                    leader = answer["cluster"]["leader"]
                    if not self.leaders or self.leaders[-1] != leader:
                        self.leaders.append(leader)
                except (KeyError, ValueError, ClientError, TimeoutError) as error:
                    self.failed.append(repr(error)[:100])
                self.waits.append((start, time.monotonic() - start))
                await asyncio.sleep(0.5)


async def missing(cluster: ProcessCluster, probes: list[Probe]) -> list[str]:
    """Acked messages that the stream does not hold as they were acked."""
    lost: list[str] = []
    async with await cluster[0].connect() as client:
        for probe in probes:
            for seq, payload in probe.acked.items():
                answer = await client.request(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":%d}' % seq, within=10)
                if answer.data != payload:
                    lost.append(f"{seq} {payload!r}: {answer.header[:40]!r} {answer.data[:40]!r}")
    return lost


def longest(waits: list[tuple[float, float]], start: float, end: float) -> float:
    return round(max((wait for at, wait in waits if start <= at < end), default=0.0), 3)


def median(waits: list[tuple[float, float]], start: float, end: float) -> float:
    found = sorted(wait for at, wait in waits if start <= at < end)
    return round(found[len(found) // 2], 3) if found else 0.0


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    stop = asyncio.Event()
    largest: dict[str, float] = {}
    async with ProcessCluster(3, root=folder / "cluster") as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, STREAM, ["flood.>"], 3)
        await cluster.stream_leader(STREAM)
        probes = [Probe(node) for node in cluster.nodes]
        infos = [Infos(node) for node in cluster.nodes]

        async def watch() -> None:
            while not stop.is_set():
                for node in cluster.nodes:
                    largest[node.name] = max(largest.get(node.name, 0), round(resident(node.pid) / 1e6))
                await asyncio.sleep(0.25)

        works = [*(probe.run(stop) for probe in probes), *(info.run(stop) for info in infos), watch()]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(2)
        start = time.monotonic()
        sent = await run_flood(
            cluster.nodes, arguments.connections, arguments.seconds, arguments.size, arguments.replies,
            arguments.send_buffer,
        )  # fmt: skip
        end = time.monotonic()
        await asyncio.sleep(arguments.after)
        stop.set()
        await asyncio.gather(*tasks)
        done = time.monotonic()
        late = [at + wait for probe in probes for at, wait in probe.waits if at + wait > end and wait > LATE]
        async with await cluster[0].connect() as client:
            stored = (await client.api(f"STREAM.INFO.{STREAM}", within=PATIENCE))["state"]["messages"]
        result = {
            "connections": arguments.connections, "seconds": arguments.seconds, "size": arguments.size,
            "replies": arguments.replies, "send_buffer": arguments.send_buffer,
            "sent_messages": sent // (arguments.size + 20), "stored_messages": stored,
            "stored_per_second": round(stored / (done - start)),
            "ack_before": max(longest(p.waits, 0, start) for p in probes),
            "ack_longest": [longest(p.waits, start - PATIENCE, end) for p in probes],
            "ack_median": [median(p.waits, start, end) for p in probes],
            "ack_after_longest": [longest(p.waits, end, done) for p in probes],
            "normal_after": round(max(late, default=end) - end, 2),
            "info_longest": [longest(i.waits, start - PATIENCE, done) for i in infos],
            "info_failed": [text for i in infos for text in i.failed][:5],
            "refused": [text for p in probes for text in p.refused][:5],
            "leader_changes": sum(len(i.leaders) - 1 for i in infos),
            "rss_mb": largest, "acked": sum(len(p.acked) for p in probes), "lost": await missing(cluster, probes),
        }  # fmt: skip
        if arguments.logs:
            for node in cluster.nodes:
                print(node.log(), file=sys.stderr)
    waits = [*result["ack_longest"], *result["ack_after_longest"]]
    result["met"] = (
        max(waits) <= GOALS["ack"] and max(result["info_longest"]) <= GOALS["info"] and not result["info_failed"]
        and result["normal_after"] <= GOALS["normal_after"] and not result["leader_changes"] and not result["lost"]
        and not result["refused"]
    )  # fmt: skip
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--after", type=float, default=30, help="seconds to look on after the flood")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--replies", action="store_true", help="the flood asks for acks, and does not read them")
    parser.add_argument("--send-buffer", type=int, default=0)
    parser.add_argument("--logs", action="store_true", help="the nodes' logs, to standard error")


def main(arguments: argparse.Namespace) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="jetcluster-flood-") as folder:
        print(json.dumps(asyncio.run(measure(arguments, Path(folder)))))
