"""CPU, memory and disk of each thing that a cluster holds or does, and what three plans need by that: docs/sizing.md.

    python -m bench sizing                        measures (3 minutes) and prints the tables
    python -m bench sizing --out docs/sizing.md   puts them into the page
    python -m bench sizing --render --out FILE    measures nothing: from the figures that are there

Each thing is made on three fresh nodes, a few of it and then many: a figure is the difference, by one. Memory is
resident memory after a rest, of the node that has most; disk is what the store takes after a stop, the mean of the
nodes. Counts of bytes differ little on a busy machine; processor time does, by a fifth or so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from bench import axes, consumers, loads, machine
from bench.contender import OURS
from bench.estimate import EXAMPLES, Figures, estimate
from bench.loads import ACK
from bench.marks import put
from bench.reads import publish_many
from bench.result import LoadResult
from bench.stand import Stand
from bench.window import Window, open_wires, run_windows
from testkit.client import ClientError
from testkit.harness import TOP, ProcessCluster, eventually, resident

console = Console(stderr=True)
NODES = 3
PAYLOAD = 1024
POOL = 4 << 20
"""Random bytes from which payloads are cut: nothing of them can be compressed."""
REST = 4.0
RESTING = 0.5
"""Per cent of a core for 1,000 things, below which nothing can be told from chance."""
WITHIN = 60.0
STOPPED = 90.0
"""Seconds that a stop may take, on a machine that has other work."""
BEGIN = "<!-- figures: `make sizing` -->"


@dataclass(frozen=True)
class Thing:
    name: str
    few: int
    many: int
    grow: Callable[[Stand, int, int], Awaitable[object]]
    payload: int = 0
    """Bytes of each that are the user's own."""


async def _make(stand: Stand, requests: Iterable[tuple[str, object]]) -> None:
    """One after the other. On a busy machine the meta group may change its leader: then once more."""
    async with await stand.nodes[0].connect(within=20.0) as client:
        for subject, body in requests:

            async def answered(subject: str = subject, body: object = body) -> bool:
                with contextlib.suppress(ClientError, TimeoutError):
                    await client.api(subject, body, within=10.0)
                    return True
                return False

            await eventually(answered, WITHIN, f"{subject} is not answered", every=0.5)


async def _streams(stand: Stand, before: int, size: int) -> None:
    config = {"storage": "file", "num_replicas": NODES}
    named = ({"name": f"S{n}", "subjects": [f"s{n}"], **config} for n in range(before, size))
    await _make(stand, ((f"STREAM.CREATE.{one['name']}", one) for one in named))


async def _consumers(stand: Stand, before: int, size: int) -> None:
    if not before:
        await stand.stream("S")
    named = ({"durable_name": f"d{n}", "ack_policy": "explicit"} for n in range(before, size))
    await _make(
        stand,
        ((f"CONSUMER.CREATE.S.{one['durable_name']}", {"stream_name": "S", "config": one}) for one in named),
    )


async def _subjects(stand: Stand, before: int, size: int) -> None:
    if not before:
        await stand.stream("S", ["s.>"])
    url = stand.leaders["S"].url
    await publish_many(url, lambda n: b"s.%d.%d" % ((before + n) % 1000, before + n), size - before, size=32)
    await stand.current("S")


async def _messages(stand: Stand, before: int, size: int, window: int = 500) -> None:
    if not before:
        await stand.stream("S")
    pool, dice = os.urandom(POOL), random.Random(before)
    [wire] = await open_wires([stand.leaders["S"].url])

    def render(first: int, last: int) -> bytes:
        head = b"PUB s %b.a %d\r\n" % (wire.inbox, PAYLOAD)
        places = (dice.randrange(POOL - PAYLOAD) for _ in range(first, last))
        return b"".join([head + pool[at : at + PAYLOAD] + b"\r\n" for at in places])

    await run_windows("fill", [Window(wire, window, ACK, render, size - before)], seconds=None)
    await stand.current("S")


async def _lone_messages(stand: Stand, before: int, size: int) -> None:
    await _messages(stand, before, size, window=1)


async def _connections(stand: Stand, before: int, size: int) -> None:
    await axes.connections(stand, before, size)


THINGS = (
    Thing("stream", 20, 320, _streams),
    Thing("consumer", 50, 1050, _consumers),
    Thing("subject", 10_000, 110_000, _subjects),
    Thing("message", 20_000, 120_000, _messages, payload=PAYLOAD),
    Thing("lone message", 200, 2200, _lone_messages, payload=PAYLOAD),
    Thing("connection", 50, 1050, _connections),
)


LABELS = {
    "message": "message of 1 KiB, many at a time",
    "lone message": "message of 1 KiB, one at a time",
    "subject": "subject, with a message of 32 B that can be compressed",
    "connection": "connection (on one node)",
}


def disk_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def _taken(stand: Stand) -> tuple[float, float]:
    """(bytes of memory of the largest node, share of a core of a node at rest in per cent)."""
    await asyncio.sleep(REST)
    share = await stand.resting(REST)
    return max(resident(pid) for pid in stand.pids.values()), share


def _disk(nodes: ProcessCluster, part: str) -> float:
    return sum(disk_bytes(node.store / "jetstream" / part) for node in nodes.nodes) / len(nodes.nodes)


async def _empty(folder: Path, figures: Figures) -> None:
    """A cluster with nothing on it."""
    async with ProcessCluster(NODES, OURS.server, root=folder) as nodes:
        stand = Stand(OURS, nodes, 1.0, folder)
        await stand.settle()
        figures.memory["node"], figures.rest["node"] = await _taken(stand)
        for node in nodes.nodes:
            await node.stop(STOPPED)
        figures.disk["node"] = _disk(nodes, "")
        figures.data = _disk(nodes, "data")


async def _one(thing: Thing, folder: Path, figures: Figures) -> None:
    async with ProcessCluster(NODES, OURS.server, root=folder) as nodes:
        stand = Stand(OURS, nodes, 0.5, folder)
        await stand.settle()
        await thing.grow(stand, 0, thing.few)
        memory, rest = await _taken(stand)
        await thing.grow(stand, thing.few, thing.many)
        more, busier = await _taken(stand)
        count = thing.many - thing.few
        figures.memory[thing.name] = max(more - memory, 0) / count
        figures.rest[thing.name] = max(busier - rest, 0.0) / count
        figures.journal = max(figures.journal, _disk(nodes, "") - _disk(nodes, "data"))
        axes.disconnect()
        for node in nodes.nodes:
            await node.stop(STOPPED)
        figures.disk[thing.name] = max((_disk(nodes, "data") - figures.data) / thing.many - thing.payload, 0.0)


async def _work(folder: Path, figures: Figures, seconds: float) -> None:
    """Processor time of all nodes for each of what is done most."""
    async with ProcessCluster(NODES, OURS.server, root=folder) as nodes:
        stand = Stand(OURS, nodes, seconds, folder)
        await stand.settle()
        leader = await stand.stream("S")
        follower = stand.follower("S")
        many, pids = 40_000, stand.pids
        cpu = figures.cpu

        def took(name: str, load: LoadResult) -> None:
            """Less what the nodes take at rest: a load of few messages on a busy machine is long."""
            idle = NODES * figures.rest["node"] / 100 * load.seconds / load.messages * 1e6
            cpu[name] = max(load.server_us - idle, 0.0)

        took("publish, 128 B, many in flight", await loads.js_publish(leader.url, "s", count=many, pids=pids))
        large = await loads.js_publish(leader.url, "s", size=1024, count=many // 2, pids=pids)
        took("publish, 1 KiB, many in flight", large)
        alone = await loads.js_publish(leader.url, "s", window=1, seconds=4 * seconds, pids=pids)
        took("publish, 128 B, one at a time", alone)
        await stand.current("S")
        urls = [node.url for node in nodes.nodes]
        took("Direct Get", await loads.direct_get(urls, "S", 1, many, window=64, seconds=seconds, pids=pids))
        fetched = await consumers.fetch(leader.url, "S", many // 2, pids=pids)
        took("delivery by a pull consumer, with its ack", fetched)
        core = await loads.core_pubsub(leader.url, follower.url, "core", seconds=seconds, pids=pids)
        took("core message from one node to another", core)


async def measure(folder: Path, seconds: float, figures: Figures, keep: Callable[[], None]) -> None:
    """The figures that are missing; `keep` is called after each part. Raises ClientError, HarnessError."""
    if "node" not in figures.disk:
        figures.date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        figures.conditions = {**machine.describe(folder), "load": f"{os.getloadavg()[1]:.0f}"}
        await _empty(folder / "empty", figures)
        keep()
    for thing in THINGS:
        if thing.name not in figures.disk:
            await _one(thing, folder / thing.name, figures)
            console.print(
                f"{thing.name}: {figures.memory[thing.name]:.0f} B memory, {figures.disk[thing.name]:.0f} B disk"
            )
            keep()
        shutil.rmtree(folder / thing.name, ignore_errors=True)
    if not figures.cpu:
        await _work(folder / "work", figures, seconds)
        keep()


def tables(figures: Figures) -> str:
    """The figures, and the examples."""
    known = figures.conditions
    lines = [
        f"Measured on {figures.date}, commit {known.get('commit')}, Python {known.get('python')},",
        f"{known.get('loops')}, {known.get('machine')}, load average {known.get('load')} meanwhile.",
        "", "| one more | memory on each node that has it | disk on each node that has it | at rest, of a core |",
        "|---|---:|---:|---:|",
        f"| node, with nothing on it | {_bytes(figures.memory['node'])} | {_bytes(figures.disk['node'])} | "
        f"{figures.rest['node']:.2f} % |",
    ]  # fmt: skip
    lines += [_row(thing, figures) for thing in THINGS]
    lines += ["", f"The journal takes {_bytes(figures.journal)} at most while all this is made.", "",
              "| one | processor time, all three nodes together |", "|---|---:|"]  # fmt: skip
    lines += [f"| {name} | {value:.1f} µs |" for name, value in figures.cpu.items()]
    lines += ["", "| | " + " | ".join(example.name for example in EXAMPLES) + " |",
              "|---|" + "---:|" * len(EXAMPLES)]  # fmt: skip
    rows = [example.rows() + estimate(example, figures).rows() for example in EXAMPLES]
    lines += ["| " + " | ".join([row[0][0], *(cell[1] for cell in row)]) + " |" for row in zip(*rows, strict=True)]
    return "\n".join(lines) + "\n"


def _row(thing: Thing, figures: Figures) -> str:
    disk = _bytes(figures.disk[thing.name]) + (" beside its bytes" if thing.payload else "")
    rest = 1000 * figures.rest[thing.name]
    cells = (
        LABELS.get(thing.name, thing.name),
        _bytes(figures.memory[thing.name]),
        disk if figures.disk[thing.name] else "-",
        f"{rest:.2f} % for 1,000" if rest >= RESTING else "-",
    )
    return f"| {' | '.join(cells)} |"


def _bytes(value: float) -> str:
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each load")
    parser.add_argument("--dir", type=Path, default=TOP / ".bench", help="where the stores go")
    parser.add_argument("--json", type=Path, default=TOP / ".bench/sizing.json")
    parser.add_argument("--resume", action="store_true", help="measure what the figures lack")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, help="page to put the tables into")


def main(args: argparse.Namespace) -> int:
    figures = Figures.read(args.json) if args.render or args.resume else Figures()
    if not args.render:
        args.dir.mkdir(parents=True, exist_ok=True)
        axes.raise_file_limit()
        folder = Path(tempfile.mkdtemp(prefix="sizing-", dir=args.dir))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure(folder, args.seconds, figures, lambda: figures.write(args.json)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if args.out:
        args.out.write_text(put(args.out.read_text(), tables(figures), BEGIN))
    else:
        print(tables(figures))
    return 0
