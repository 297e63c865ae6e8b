"""Measures what streams cost nodes in which nothing happens: processor time and memory of the server processes.

    python -m bench idle_streams [0 600 1800] [--nodes 3]

Creates so many streams, each with a replica on every node, and waits until all is quiet. Prints the time in which each
was created (20 at once), that of one more, the share of one core that each process takes in 20 s in which nothing
happens, in 10 s with some 45 requests (STREAM.NAMES) per second at the first node, and its memory for each stream.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from bench.result import cpu_seconds
from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, resident

SETTLE, QUIET, ASKED = 12.0, 20.0, 10.0
AT_ONCE = 20
ONE_MORE = 20


async def shares(pids: list[int], client: Client, seconds: float, *, ask: bool) -> list[float]:
    """Per cent of a core, by process."""
    before, start = [cpu_seconds(pid) for pid in pids], time.monotonic()
    while time.monotonic() - start < seconds:
        if ask:
            await client.api("STREAM.NAMES", {"offset": 0, "subject": "nothing"}, within=30)
        await asyncio.sleep(0.02 if ask else 1.0)
    spent = time.monotonic() - start
    return [100 * (cpu_seconds(pid) - was) / spent for pid, was in zip(pids, before, strict=True)]


async def one_more(client: Client, made: int, nodes: int) -> float:
    """Milliseconds, the median of some."""
    took = []
    for number in range(ONE_MORE):
        name, start = f"X{made}-{number}", time.monotonic()
        await create_stream(client, name, [f"x.{name}"], nodes)
        took.append(1e3 * (time.monotonic() - start))
        await asyncio.sleep(0.05)
    return statistics.median(took)


async def measure(counts: list[int], nodes: int) -> None:
    async with ProcessCluster(nodes) as cluster, await cluster[0].connect() as client:
        pids, made, empty = [node.pid for node in cluster.nodes], 0, [0.0] * nodes
        for count in counts:
            start = time.monotonic()
            for first in range(made, count, AT_ONCE):
                some = range(first, min(first + AT_ONCE, count))
                await asyncio.gather(*(create_stream(client, f"S{n}", [f"s{n}"], nodes) for n in some))
            each = 1e3 * (time.monotonic() - start) / max(1, count - made)
            made = count
            await asyncio.sleep(SETTLE)
            quiet = await shares(pids, client, QUIET, ask=False)
            asked = await shares(pids, client, ASKED, ask=True)
            memory = [resident(pid) / 2**20 for pid in pids]
            empty = memory if not count else empty
            took = await one_more(client, made, nodes)
            print(
                f"{count} streams: created in {each:.1f} ms each, one more in {took:.1f} ms; at rest {told(quiet)} % of"
                f" a core, with requests {asked[0]:.1f} %; {told(memory)} MB,"
                f" {1024 * (memory[0] - empty[0]) / max(1, count):.0f} KB for each",
                flush=True,
            )


def told(figures: list[float]) -> str:
    return ", ".join(f"{figure:.1f}" for figure in figures)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("counts", nargs="*", type=int, help="numbers of streams, ascending")
    parser.add_argument("--nodes", type=int, default=1, help="of the cluster, and replicas of each stream")


def main(arguments: argparse.Namespace) -> None:
    asyncio.run(measure(arguments.counts or [0, 600, 1800], arguments.nodes))
