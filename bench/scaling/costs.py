"""Costs of one read and of one write at each server: what the model is made of, and the tables of strengths."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import reads
from bench.loads import MARK, SIGN
from bench.result import CLIENT, LoadResult, percentile
from bench.scaling.figures import Figures, Load
from bench.scaling.model import MIRROR, PLACES
from bench.scaling.pace import paced
from bench.scaling.share import apart
from bench.scaling.stand import KEYS, PLAIN, STREAM, UPSTREAM, Replicas
from bench.window import Window, cycle, open_wires, run_windows
from testkit.client import render_publish
from testkit.harness import Node

MESSAGES = 100_000
WARM = 0.15
"""Seconds of a load that are not counted."""
IN_FLIGHT = 256
BATCH = 1000
REST = 3.0
WRITE_RATES = (1000.0, 10_000.0)
WRITE_SECONDS = 2.0
_STRIDE = 7919
DIRECT = f"$JS.API.DIRECT.GET.{STREAM}"


@dataclass(frozen=True, slots=True)
class Strength:
    """A way to ask for a freshness."""

    name: str
    fields: dict[str, object]
    subject: str = DIRECT
    weak: bool = False
    """The stream's `read_consistency` is `weak`."""
    mark: bytes = SIGN
    """Bytes that are in each answer once."""


WEAK = "nothing, `read_consistency: weak`"
DEFAULT = "nothing"
STRENGTHS = (
    Strength(WEAK, {}, weak=True),
    Strength(DEFAULT, {}),
    Strength("`consistency: eventual`", {"consistency": "eventual"}),
    Strength("`consistency: session`", {"consistency": "session"}),
    Strength("`min_last_seq`, which is there", {"min_last_seq": KEYS}),
    Strength("`max_staleness` of 1 s", {"max_staleness": 1_000_000_000}),
    Strength("`consistency: linearizable`", {"consistency": "linearizable"}),
    Strength("`DIRECT_LEADER.GET`", {}, subject=f"$JS.API.DIRECT_LEADER.GET.{STREAM}"),
    Strength("MSG.GET", {}, subject=f"$JS.API.STREAM.MSG.GET.{STREAM}", mark=b'"message":'),
)


async def ask(
    url: str, subject: str, bodies: Sequence[bytes], window: int, seconds: float, *, mark: bytes = SIGN,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """Requests over one connection that was told that a write of its own is stored, as a client of a key-value bucket
    mostly was. Raises ClientError."""
    [wire] = await open_wires([url])
    wire.send(render_publish(f"{STREAM.lower()}.0", MARK.rjust(128, b"x"), wire.inbox + b".w"))
    wire.read_until(b"}\r\n")
    frames = [render_publish(subject, body, wire.inbox + b".a") for body in bodies]
    return await run_windows(subject, [Window(wire, window, mark, cycle(frames))], seconds=seconds, pids=pids)


def last_of_keys(fields: dict[str, object]) -> list[bytes]:
    """Requests for the last message of each key, each with these fields."""
    keys = (f"{STREAM.lower()}.{n * _STRIDE % KEYS}" for n in range(KEYS))
    return [json.dumps({"last_by_subj": key, **fields}).encode() for key in keys]


async def by_sequence(url: str, seconds: float, pids: dict[str, int]) -> LoadResult:
    bodies = [b'{"seq":%d}' % (1 + n * _STRIDE % MESSAGES) for n in range(10_000)]
    return await ask(url, DIRECT, bodies, IN_FLIGHT, seconds, pids=pids)


async def by_subject(url: str, seconds: float, pids: dict[str, int]) -> LoadResult:
    return await ask(url, DIRECT, last_of_keys({}), IN_FLIGHT, seconds, pids=pids)


async def batches(url: str, seconds: float, pids: dict[str, int]) -> LoadResult:
    return await reads.batched_gets([url], STREAM, MESSAGES, batch=BATCH, seconds=seconds, pids=pids)


async def last_of_all(url: str, seconds: float, pids: dict[str, int]) -> LoadResult:
    filters: Callable[[int], bytes] = lambda _: b"%b.*" % STREAM.lower().encode()  # noqa: E731 - the type is the load's
    return await reads.multi_last([url], STREAM, filters, KEYS, seconds=seconds, pids=pids)


SEQ, LAST = "`seq`", "`last_by_subj`"
FORMS = {
    SEQ: by_sequence,
    LAST: by_subject,
    f"`batch`, {BATCH:,} messages": batches,
    f"`multi_last`, {KEYS} messages": last_of_all,
}
"""The forms of Direct Get, as stock clients ask."""


class Measures:
    """Loads on one cluster, at all places."""

    def __init__(self, stand: Replicas, figures: Figures, seconds: float) -> None:
        self.stand = stand
        self.figures = figures
        self.seconds = seconds

    async def forms(self) -> None:
        """A load of each form at each place."""
        for (what, load), place in itertools.product(FORMS.items(), PLACES):
            node = self.stand.at(place)
            await load(node.url, min(WARM, self.seconds), {})
            found = await load(node.url, self.seconds, self.stand.pids)
            window = IN_FLIGHT if what in (SEQ, LAST) else 2
            self.figures.forms.append(self._load(what, place, window, found, node))

    async def strengths(self) -> None:
        """A load of each strength at each place, one request at a time and many."""
        for weak, one in itertools.groupby(STRENGTHS, lambda strength: strength.weak):
            await self.stand.weak(weak=weak)
            for strength, place, window in itertools.product(tuple(one), PLACES, (1, IN_FLIGHT)):
                await self._strength(strength, place, window)

    async def _strength(self, strength: Strength, place: str, window: int) -> None:
        node, bodies = self.stand.at(place), last_of_keys(strength.fields)
        for seconds, pids in ((min(WARM, self.seconds), {}), (self.seconds, self.stand.pids)):
            found = await ask(
                node.url, strength.subject, bodies, window, seconds, mark=strength.mark, pids=pids
            )  # fmt: skip
        self.figures.strengths.append(self._load(strength.name, place, window, found, node))

    def _load(self, what: str, place: str, window: int, found: LoadResult, node: Node) -> Load:
        spent = self._spent(found)
        asked = spent.pop(node.name)
        leader = spent.pop(self.stand.leaders[STREAM].name, 0.0)
        p50, p99 = (percentile(found.latencies_ms, share) for share in (0.5, 0.99))
        return Load(what, place, window, found.rate, p50, p99, asked, leader, sum(spent.values()))

    def _spent(self, found: LoadResult) -> dict[str, float]:
        """Microseconds per message of each server, without those at rest."""
        idle = self.figures.rest * found.seconds
        return {
            name: 1e6 * max(used - idle, 0.0) / found.messages for name, used in found.cpu.items() if name != CLIENT
        }

    async def writes(self, rate: float) -> None:
        """Publishes with a rate: to three replicas without and with a mirror, and at a follower."""
        plain, mirrored = self.stand.leaders[PLAIN], self.stand.leaders[UPSTREAM]
        followers = [node for node in self.stand.cluster.nodes[: self.stand.replicas] if node is not plain]
        at_leader = await self.published(plain, PLAIN, rate)
        fed = await self.published(mirrored, UPSTREAM, rate)
        at_follower = await self.published(followers[0], PLAIN, rate)
        self.figures.writes.setdefault(f"{rate:g}", []).append({
            "leader": at_leader[plain.name],
            "follower": sum(at_leader[node.name] for node in followers) / len(followers),
            "feeding": fed[mirrored.name] - at_leader[plain.name],
            "mirror": fed[self.stand.at(MIRROR).name],
            "at follower: asked": at_follower[followers[0].name],
            "at follower: leader": at_follower[plain.name],
        })  # fmt: skip

    async def published(self, node: Node, stream: str, rate: float) -> dict[str, float]:
        """Microseconds per message of each server."""
        pids, seconds = self.stand.pids, min(WRITE_SECONDS, 4 * self.seconds)
        return self._spent(await paced(node.url, f"{stream.lower()}.0", rate, seconds, pids))


async def measure(folder: Path, figures: Figures, rounds: int, seconds: float) -> None:
    """All costs, so many rounds. Raises ClientError, HarnessError."""
    shutil.rmtree(folder, ignore_errors=True)
    stand = Replicas(folder / "five", 3, mirrors=1, doors=1)
    async with stand.cluster:
        await stand.fill(MESSAGES)
        await stand.make(PLAIN, mirrors=0)
        await stand.make(UPSTREAM, mirrors=1)
        with apart(stand.pids.values()):
            figures.rest = await stand.resting(REST)
            measures = Measures(stand, figures, seconds)
            for _ in range(rounds):
                await measures.forms()
                await measures.strengths()
                for rate in WRITE_RATES:
                    await measures.writes(rate)
    await _alone(folder / "one", figures, rounds, seconds)
    shutil.rmtree(folder, ignore_errors=True)


async def _alone(folder: Path, figures: Figures, rounds: int, seconds: float) -> None:
    """The cost of a publish at a leader without followers: added to each round's writes."""
    stand = Replicas(folder, 1)
    async with stand.cluster:
        node = await stand.make(PLAIN, mirrors=0)
        with apart(stand.pids.values()):
            measures = Measures(stand, figures, seconds)
            for number, rate in itertools.product(range(rounds), WRITE_RATES):
                found = await measures.published(node, PLAIN, rate)
                figures.writes[f"{rate:g}"][number]["alone"] = found[node.name]
