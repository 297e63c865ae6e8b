"""Random requests, one after the other, against the model of JetStream: with faults, where a lost answer leaves open
what happened, and afterwards, exactly."""

from __future__ import annotations

import asyncio
import itertools
import json

from testkit.sim.session import Session
from tests.model.answers import Answer, rfc3339
from tests.model.branches import Branches, Request, TooMany
from tests.model.bucket_history import BucketWriter
from tests.model.consumer_history import ConsumerWriter
from tests.model.history import Moment, Step, Writer, rendered
from tests.model.player import Player
from tests.model.reading import Unknown
from tests.model.rules import CLUSTERED
from tests.model.server import API, DIRECT
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.member_changes import OWN
from tests.sim.cluster.played import PlayedExam, SimWire
from tests.sim.cluster.workload import Workload

OVER = 60.0
"""Seconds after which a request without an answer does not happen any more."""
REFUSED_EARLY = (f"{API}STREAM.CREATE.", f"{API}STREAM.UPDATE.")
"""Requests that the server of the client refuses by what it knows of streams, before others see them."""
NO_STREAM = b'"err_code":10059'
LONG_AGO = 1_600_000_000 * 10**9


def _gone(branches: Branches, request: Request) -> bool:
    """The message that is to be deleted was there once."""
    stream = branches.worlds[0].server.streams.get(request.subject.rpartition(".")[2])
    return stream is not None and 0 < json.loads(request.body).get("seq", 0) <= stream.last_seq


def _may_be_old(step: Step, found: list[Answer], told: list[str]) -> bool:
    """True when a server may say so that has not heard of all that was decided: it lacks messages, shows an older
    configuration, or refuses what an older stream does not permit."""
    if step.subject.startswith(DIRECT):
        return True
    if step.subject.startswith(f"{API}STREAM.INFO.") and any(".data.config" in line for line in told):
        return True
    data = found[0].data
    return NO_STREAM in data or (step.subject.startswith(REFUSED_EARLY) and b'"error":' in data)


def _short(answers: list[Answer]) -> str:
    return ", ".join(f"{one.status}{one.data.decode()[:100]}" for one in answers) or "nothing"


class ModelExam(PlayedExam):
    name = "exam-model"
    judges = (Exact,)
    promises = ("every request of a random history is answered exactly as the model of JetStream says",)

    async def check(self) -> None:
        self.number = 0
        parts = [self._streams, self._streams_timed, self._consumers, self._consumers_timed, self._buckets]
        await self.examine(parts, 2)

    async def _streams(self, session: Session) -> None:
        await self._play(session, Writer, timed=False)

    async def _streams_timed(self, session: Session) -> None:
        await self._play(session, Writer, timed=True)

    async def _consumers(self, session: Session) -> None:
        await self._play(session, ConsumerWriter, timed=False)

    async def _consumers_timed(self, session: Session) -> None:
        await self._play(session, ConsumerWriter, timed=True)

    async def _buckets(self, session: Session) -> None:
        await self._play(session, BucketWriter, timed=False)

    async def _play(self, session: Session, writer: type[Writer], *, timed: bool) -> None:
        self.number += 1
        names = [f"X{self.number}{letter}" for letter in "ABC"]
        seed = self.rng.random()
        history = writer(seed, timed=timed, replicas=self.rng.choice([1, 3]), names=names, alone=False).history(60)
        await self.played(Player(SimWire(self, session), CLUSTERED), history)


class Modelled(Workload):
    name = "model"
    judges = (Exact,)
    promises = (
        "what requests are answered with while faults happen, one history explains, whichever answers were lost",
    )

    async def prepare(self) -> None:
        self.lost = 0.0

    async def work(self) -> None:
        session = await self.session("ask")
        for number in itertools.count(1):
            names = [f"{OWN}{number}{letter}" for letter in "ABC"]
            seed = self.rng.random()
            writer = Writer(seed, timed=False, replicas=3, names=names, alone=False, storages=["file"])
            branches = Branches(CLUSTERED)
            try:
                for step in writer.history(80):
                    if self.stopping or self.deployment.relaxed:
                        return  # relaxed: what was acknowledged may be lost with the power
                    await asyncio.sleep(self.rng.expovariate(8.0))
                    await self._ask(SimWire(self, session), branches, step)
            except TooMany:
                self.count("lost track")

    async def check(self) -> None:
        pass

    async def _ask(self, wire: SimWire, branches: Branches, step: Step) -> None:
        if self.lost and self.now > self.lost + OVER:
            self.lost = 0.0
            branches.settled(self.now)
        request = Request(step.subject, step.headers, rendered(step.body, self._times(branches, step)))
        try:
            wanted = len(branches.worlds[0].server.branch().ask(*request, self.now))
        except Unknown:
            return
        told: list[str] = []
        for _ in range(5):
            found = await wire.ask(*request, wanted)
            self.count("asked")
            self.note(f"{step} -> {_short(found)}")
            if not found:
                self.lost = self.now
                self.count("lost answers")
                branches.lost(request)
                await asyncio.sleep(self.rng.expovariate(0.5))
                return
            told = branches.answered(request, found, self.now)
            if not told or not _may_be_old(step, found, told):
                break
            await asyncio.sleep(1.0)  # a replica that lags, to which the session came anew
        if told and _may_be_old(step, found, told):
            self.count("old answers")
        elif "STREAM.MSG.DELETE" in step.subject and b'"success":true' in found[0].data and _gone(branches, request):
            self.count("deleted twice")  # servers asked each other again, and the first attempt may have done it
        elif told:
            Exact.equal(f"the answer to {step}", "\n".join(told), "that of a world")

    def _times(self, branches: Branches, step: Step) -> dict[Moment, str]:
        times = {}
        for moment in step.body.values() if isinstance(step.body, dict) else ():
            if isinstance(moment, Moment):
                stream = branches.worlds[0].server.streams.get(moment.stream)
                known = stream.messages.get(moment.seq) if stream else None
                times[moment] = rfc3339((known.stamp.ns if known and known.stamp.ns else LONG_AGO) + moment.plus)
        return times
