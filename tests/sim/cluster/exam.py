"""A close look at a cluster once all faults are over: what has nothing to do with them, exactly (`Exam`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.layout import Server
from testkit.sim.machine import Machine
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster import invariants
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING, Workload, together

HANGS = 1.25
"""Seconds after which a server whose disk seems to hang says so (`RaftConfig.journal_hangs`)."""
AGREE = 35.0
"""Seconds within which servers go by the time of a majority of clocks that were set, and no write hangs any more."""
SPREAD = 1.5
"""Seconds until all servers know who listens and who answers, and until the last message has come."""
LOOK = 0.25
"""Seconds between two looks whether that is so."""


def with_accounts(deployment: Deployment, text: str) -> None:
    """All servers get these accounts besides, so that nobody else is there; leaf clusters have no accounts. Before they
    start."""
    for name, server in deployment.servers.items():
        deployment.servers[name] = with_account(server, text)


def with_account(server: Server, text: str) -> Server:
    return replace(server, config=server.config.replace("accounts {", f"accounts {{ {text}\n", 1))


class Exam(Workload):
    """A workload that waits until all faults are over, and may expect exact answers then. Each seed has one."""

    part = ""
    """The current part of the exam, which the text of a violation names."""

    async def prepare(self) -> None:
        pass

    async def work(self) -> None:
        pass

    async def examine(self, parts: Sequence[Callable[[Session], Awaitable[None]]], most: int = 5) -> None:
        """Some of them, one after the other, with a session of their own. What goes wrong while another replica begins
        to lead counts for nothing: that happens without any fault, if seldom, as disks are quick now."""
        if any(machine.disk.pace > 1.0 for machine in self.deployment.machines.values()):
            for machine in self.deployment.machines.values():
                machine.disk.pace = 1.0
            await asyncio.sleep(HANGS)
        await self.until_all_lead()
        session = await self.session("exam")
        there = await self._streams_of(session)
        for part in self.rng.sample(parts, min(most, len(parts))):
            self.part = part.__name__.strip("_")
            self._before = self._standing()
            try:
                await part(session)
            except (*PASSING, Violation) as error:
                now = self._standing()
                if all(now.get(where, terms) == terms for where, terms in self._before.items()):
                    raise Violation(f"{self.name}, {self.part}: {error}") from error
                self.count("disturbed")
                for name in await self._streams_of(session) - there:  # it did not come to its end
                    await self.ask(session, f"STREAM.DELETE.{name}")
            else:
                self.count("examined")
        await session.close()

    async def _streams_of(self, session: Session) -> set[str]:
        return set((await self.ask(session, "STREAM.NAMES"))["streams"] or ())

    def elects(self) -> None:
        """From here on the part itself changes who leads: whatever goes wrong then counts."""
        self._before.clear()

    async def at_once(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Raises what the first of them raises, as one part alone does."""
        try:
            await together(*parts)
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def until_all_lead(self) -> None:
        """Returns once no server has a reason to hand over: its wall clock is wrong, or was set right (the last time
        when all was calm) and the others still go by another time, or a slow write has not returned. After AGREE at the
        latest: what is wrong then is for the exam to find."""
        end = self.now + AGREE
        while self.now < end and not all(self._goes_by_the_time(machine) for machine in self.deployment.running):
            await asyncio.sleep(LOOK)

    def _goes_by_the_time(self, machine: Machine) -> bool:
        jetstream = invariants.jetstream_of(machine)
        health = None if jetstream is None else jetstream.network.raft.health
        return health is None or (health.well and health.time.established)

    def _standing(self) -> dict[tuple[str, int], tuple[int, object]]:
        """Term and role of each replica, by server and group."""
        found = invariants.replicas(self.deployment)
        return {(one.machine.name, one.gid): (one.group.term, one.group.role) for one in found}

    async def ask(self, session: Session, subject: str, body: object = None) -> dict[str, Any]:
        """The answer of the API, which may need a second attempt: leaders may change without any fault."""
        answer: dict[str, Any] = await self.insist(subject, lambda: session.api(subject, body), 20.0)
        return answer

    async def refused(self, session: Session, subject: str, body: object = None) -> int:
        """The code of the error that is to come."""
        try:
            await session.api(subject, body)
        except ApiError as error:
            return error.err_code
        raise Violation(f"{self.name}: {subject} is not refused")

    def equal(self, what: str, found: object, wanted: object) -> None:
        """Raises Violation (`judges.Exact`)."""
        Exact.equal(what, found, wanted)

    async def fill(
        self, session: Session, stream: str, messages: Sequence[str], **config: Any
    ) -> list[tuple[int, str]]:
        """A stream with one message on each of these subjects, in this order: (sequence, subject)."""
        await self.create(session, stream, **config)
        return [
            (int((await self.store(session, one, f"{stream}-{at}"))["seq"]), one) for at, one in enumerate(messages)
        ]

    async def take(self, session: Session, stream: str, consumer: str, request: dict[str, Any]) -> list[Msg]:
        """The messages that one pull request gets, up to its last status (the last of them, where there is one)."""
        found: list[Msg] = []
        with session.inbox() as (inbox, got):
            session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(request).encode(), inbox)
            try:
                async with asyncio.timeout(request.get("expires", 5_000_000_000) / 1e9 + 2.0):
                    while sum(not msg.status for msg in found) < request.get("batch", 1):
                        msg = await got.get()
                        if not msg.status.startswith("100"):
                            found.append(msg)
                        if msg.status and not msg.status.startswith("100"):
                            break
            except TimeoutError:
                self.note(f"a pull of {consumer} ends without a status")
        return found

    async def archived(self, session: Session, stream: str) -> None:
        """The stream is deleted and restored, with what its archive says of it."""
        with session.inbox() as (inbox, got):
            chunks = []
            await self.ask(session, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox})
            async with asyncio.timeout(10.0):
                while (msg := await got.get()).payload:
                    chunks.append(msg.payload)
                    if msg.reply:
                        session.publish(msg.reply)
        await self.ask(session, f"STREAM.DELETE.{stream}")
        deliver = (await self.ask(session, f"STREAM.RESTORE.{stream}"))["deliver_subject"]
        for chunk in (*chunks, b""):
            said = (await session.request(deliver, chunk, seconds=10.0)).payload
            self.require(not said or b'"error"' not in said, f"the archive is refused: {said!r}")
