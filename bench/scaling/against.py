"""Reads of stock clients at each place, beside the servers of an earlier commit, in turns: `--against COMMIT`."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.reads import publish_many
from bench.result import CLIENT
from bench.scaling.costs import DIRECT, IN_FLIGHT, MESSAGES, WARM, ask, last_of_keys
from bench.scaling.model import PLACES
from bench.scaling.share import apart
from bench.scaling.stand import KEYS, STREAM, WITHIN, Replicas
from testkit.harness import TOP
from testkit.previous import git, unpacked

SETTLE = 3.0
"""Seconds until a mirror of servers that cannot say who answers has all."""
ROUNDS_MORE = 2
"""Times the rounds of the costs: a ratio of two rates near each other needs more of them."""


class Earlier(Replicas):
    """Servers of the commit that is unpacked in a folder."""

    def __init__(self, root: Path, sources: Path) -> None:
        super().__init__(root, 3, mirrors=1, doors=1)
        for node in self.cluster.nodes:
            node.env = {"PYTHONPATH": str(sources)}

    async def fill(self, messages: int) -> None:
        leader = await self.make(STREAM, mirrors=self.mirrors)
        await publish_many(leader.url, lambda n: b"r.%d" % (n % KEYS), messages)
        await self.cluster.wait_current(STREAM, WITHIN, self.replicas - 1)
        await asyncio.sleep(SETTLE)


@dataclass(frozen=True, slots=True)
class Both:
    """One place in one round: messages a second, and microseconds of all servers for each."""

    place: str
    earlier: tuple[float, float]
    now: tuple[float, float]


async def measure(folder: Path, commit: str, rounds: int, seconds: float) -> list[Both]:
    """Raises ClientError, HarnessError, CalledProcessError."""
    stands = [Earlier(folder / "earlier", unpacked(TOP, commit)), Replicas(folder / "now", 3, mirrors=1, doors=1)]
    found: list[Both] = []
    async with contextlib.AsyncExitStack() as stack:
        for stand in stands:
            await stack.enter_async_context(stand.cluster)
            await stand.fill(MESSAGES)
        with apart([pid for stand in stands for pid in stand.pids.values()]):
            for number in range(ROUNDS_MORE * rounds):
                for place in PLACES:
                    turns = stands[:: -1 if number % 2 else 1]
                    got = {id(stand): await _rate(stand, place, seconds) for stand in turns}
                    found.append(Both(place, *(got[id(stand)] for stand in stands)))
    return found


async def _rate(stand: Replicas, place: str, seconds: float) -> tuple[float, float]:
    url, bodies = stand.at(place).url, last_of_keys({})
    await ask(url, DIRECT, bodies, IN_FLIGHT, min(WARM, seconds))
    load = await ask(url, DIRECT, bodies, IN_FLIGHT, seconds, pids=stand.pids)
    return load.rate, 1e6 * sum(used for name, used in load.cpu.items() if name != CLIENT) / load.messages


def table(found: Sequence[Both], commit: str, words: dict[str, str]) -> str:
    """Medians; the ratio is the median of the rounds' ratios."""
    told = git(TOP, "show", "-s", "--format=%h of %cs", commit)
    lines = [
        f"| asked at | {told}: reads/s | now: reads/s | ratio | then, µs | now, µs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for place in PLACES:
        rows = [one for one in found if one.place == place]
        (was, was_us), (now, now_us) = (
            [statistics.median(figure) for figure in zip(*side, strict=True)]
            for side in ([one.earlier for one in rows], [one.now for one in rows])
        )
        ratio = statistics.median(one.now[0] / one.earlier[0] for one in rows)
        lines.append(f"| {words[place]} | {was:,.0f} | {now:,.0f} | {ratio:.2f} | {was_us:.1f} | {now_us:.1f} |")
    return "\n".join(lines)
