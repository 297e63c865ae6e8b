"""Measures the cost of encryption at rest (docs/security/encryption.md): without a key, with each cipher, in turns.

    python -m bench encryption [--rounds 5] [--count 200000] [--size 128]

A fresh cluster for each turn, of one server and of three. It is published to with 500 messages in flight and with one
(`--synchronous` of them); then one server ends and starts again, and is read by Direct Gets, whose blocks are in no
cache. Prints medians over the rounds: messages per second, and CPU of all servers per message; of the restart seconds
until STREAM.INFO is answered, and CPU of that server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import loads
from bench.contender import OURS
from bench.result import LoadResult, cpu_seconds
from bench.stand import Stand
from testkit.harness import ProcessCluster

KEY: Final = "the key of a benchmark"
CIPHERS: Final = {"no key": "#", **{c: f'jetstream {{ key: "{KEY}", cipher: {c} }}' for c in ("chachapoly", "aes")}}
"""Name -> configuration."""
STREAM: Final = "SEALED"
Figure = tuple[str, str, str]
"""Replicas, load, cipher."""


class Spent(NamedTuple):
    """The figures of one load."""

    rate: float
    """Messages per second; seconds of a restart."""
    cpu: float
    """Microseconds per message; seconds of a restart."""


class Options(NamedTuple):
    messages: int
    synchronous: int
    size: int
    seconds: float
    """Length of the reads."""


def _spent(result: LoadResult) -> Spent:
    return Spent(result.rate, result.server_us)


async def turn(nodes: int, cipher: str, options: Options, root: Path) -> AsyncIterator[tuple[str, Spent]]:
    """Yields load and figures."""
    async with ProcessCluster(nodes, config=CIPHERS[cipher], root=root) as cluster:
        stand = Stand(OURS, cluster, options.seconds, root)
        await stand.settle()
        leader = await stand.stream(STREAM)
        subject, size, pids = STREAM.lower(), options.size, stand.pids
        for name, window, count in (("publish", 500, options.messages), ("one at a time", 1, options.synchronous)):
            yield (
                name,
                _spent(await loads.js_publish(leader.url, subject, size=size, window=window, count=count, pids=pids)),
            )
        await stand.current(STREAM)
        node, messages = cluster[0], options.messages + options.synchronous
        await node.stop()
        begun = time.monotonic()
        node.spawn()
        await stand.answers(STREAM, node, messages)
        yield "restart", Spent(time.monotonic() - begun, cpu_seconds(node.pid))
        await stand.current(STREAM)
        read = await loads.direct_get(
            [node.url], STREAM, 1, messages, window=64, seconds=options.seconds, pids=stand.pids
        )
        yield "read", _spent(read)


async def measure(rounds: int, options: Options, folder: Path) -> dict[Figure, list[Spent]]:
    found: dict[Figure, list[Spent]] = defaultdict(list)
    for number in range(rounds):
        for nodes in (1, 3):
            for cipher in list(CIPHERS)[:: -1 if number % 2 else 1]:
                root = folder / f"{number}-{nodes}-{cipher.replace(' ', '-')}"
                async for load, spent in turn(nodes, cipher, options, root):
                    found[f"R{nodes}", load, cipher].append(spent)
    return found


def table(found: dict[Figure, list[Spent]]) -> str:
    """Returns Markdown: a row for each load, and for each cipher the medians of its two figures."""
    lines = ["| | " + " | ".join(CIPHERS) + " |", "|---|" + "---|" * len(CIPHERS)]
    for replicas, load in dict.fromkeys(key[:2] for key in found):
        cells = []
        for cipher in CIPHERS:
            rates, costs = zip(*found[replicas, load, cipher], strict=True)
            rate, cost = statistics.median(rates), statistics.median(costs)
            cells.append(f"{rate:.2f} s, {cost:.2f} s" if load == "restart" else f"{rate:,.0f}/s, {cost:.1f} us")
        lines.append(f"| {replicas}, {load} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--synchronous", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of the reads")


def main(arguments: argparse.Namespace) -> None:
    options = Options(arguments.count, arguments.synchronous, arguments.size, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="jetcluster-encryption-") as folder:
        print(table(asyncio.run(measure(arguments.rounds, options, Path(folder)))))
