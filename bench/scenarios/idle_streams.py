"""Measures what streams cost a node in which nothing happens: CPU of the server process.

    python -m bench idle_streams [0 600 1800]

Creates so many R1 streams, waits until all is quiet, and prints the share of one core that the process takes in 20 s
in which nothing happens, and in 10 s with some 45 requests (STREAM.NAMES) per second.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from bench.result import cpu_seconds
from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster

SETTLE, QUIET, ASKED = 8.0, 20.0, 10.0
AT_ONCE = 20


async def share(pid: int, client: Client, seconds: float, *, ask: bool) -> float:
    """Per cent of a core."""
    before, start = cpu_seconds(pid), time.monotonic()
    while time.monotonic() - start < seconds:
        if ask:
            await client.api("STREAM.NAMES", {"offset": 0, "subject": "nothing"}, within=30)
        await asyncio.sleep(0.02 if ask else 1.0)
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - start)


async def measure(counts: list[int]) -> None:
    async with ProcessCluster(1) as cluster, await cluster[0].connect() as client:
        pid, made = cluster[0].pid, 0
        for count in counts:
            for first in range(made, count, AT_ONCE):
                some = range(first, min(first + AT_ONCE, count))
                await asyncio.gather(*(create_stream(client, f"S{number}", [f"s{number}"], 1) for number in some))
            made = count
            await asyncio.sleep(SETTLE)
            quiet = await share(pid, client, QUIET, ask=False)
            asked = await share(pid, client, ASKED, ask=True)
            print(f"{count} streams: {quiet:.1f} % of a core, with requests {asked:.1f} %", flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("counts", nargs="*", type=int, help="numbers of streams, ascending")


def main(arguments: argparse.Namespace) -> None:
    asyncio.run(measure(arguments.counts or [0, 600, 1800]))
