"""CPU per message of what stays on one node and of what crosses the mesh, over all nodes of a cluster of three.

    python -m bench crossing [--rounds 5] [--count 200000] [--size 128] [--json FILE]

One cluster, and each round runs the four loads in turns: core on one node, core across two, R3 publish at the stream
leader, R3 publish at a follower (500 outstanding). CPU is that of all three processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import uvloop
from rich.console import Console

from bench import loads
from bench.result import LoadResult
from testkit.client import create_stream
from testkit.harness import TOP, ProcessCluster

console = Console()
WINDOW = 500
PAIRS = (("core_across", "core_one", 1.5), ("follower", "leader", 1.15))
"""(what crosses, what stays, the most that the first may cost of the second)."""


def cpu_of(result: LoadResult) -> float:
    """Microseconds of all nodes per message."""
    return sum(spent for name, spent in result.cpu.items() if name != "client") / result.messages * 1e6


async def measure(rounds: int, count: int, size: int, root: Path) -> dict[str, list[float]]:
    """Microseconds of all nodes per message, by load, one of each round."""
    found: dict[str, list[float]] = defaultdict(list)
    async with ProcessCluster(3, "jetcluster", root=root) as nodes:
        async with await nodes[0].connect() as client:
            await create_stream(client, "CROSS", ["cross"], 3)
        leader = await nodes.stream_leader("CROSS")
        follower = next(node for node in nodes.nodes if node is not leader)
        pids = {node.name: node.pid for node in nodes.nodes}

        async def core(to: str) -> LoadResult:
            return await loads.core_pubsub(leader.url, to, "crossing.core", size=size, count=count, pids=pids)

        async def publish(at: str, number: int = count) -> LoadResult:
            return await loads.js_publish(at, "cross", size=size, window=WINDOW, count=number, pids=pids)

        for node in (leader, follower):
            await publish(node.url, 20_000)  # warm up
        for _ in range(rounds):
            found["core_one"].append(cpu_of(await core(leader.url)))
            found["core_across"].append(cpu_of(await core(follower.url)))
            found["leader"].append(cpu_of(await publish(leader.url)))
            found["follower"].append(cpu_of(await publish(follower.url)))
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--json", type=Path)


def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=TOP / ".scratch" if (TOP / ".scratch").is_dir() else None) as folder:
        found = uvloop.run(measure(arguments.rounds, arguments.count, arguments.size, Path(folder)))
    for name, values in found.items():
        console.print(f"{name}: {statistics.median(values):.2f} us/msg ({min(values):.2f} to {max(values):.2f})")
    for crossing, staying, most in PAIRS:
        ratio = statistics.median([a / b for a, b in zip(found[crossing], found[staying], strict=True)])
        console.print(f"{crossing} / {staying}: {ratio:.2f} (goal: {most})")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))
