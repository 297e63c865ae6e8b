"""Exams that are held against the model of JetStream: each request's exact answer is predicted, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from testkit.sim.session import Disconnected, Msg, Session
from tests.model.answers import Answer, parts
from tests.model.directed import Directed
from tests.model.history import Step
from tests.model.player import Differs, Disturbed, Player
from tests.model.pushed import PATIENCE, Pushed
from tests.model.rules import CLUSTERED
from tests.model.server import ACK
from tests.model.stream import Headers
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import Workload


class SimWire:
    """A connection of the model's player, over a session of the simulation."""

    def __init__(self, workload: Workload, session: Session) -> None:
        self.workload = workload
        self.session = session
        self.known: set[str] = set()
        self.pushed = Pushed()

    def listen(self, subject: str) -> None:
        if subject not in self.known:
            self.known.add(subject)
            self.session.subscribe(subject, self._take)

    def _take(self, msg: Msg) -> None:
        delivered = msg.reply.startswith(ACK)
        headers = tuple(msg.headers.items())
        reply = parts(msg.reply) if delivered else ""
        self.pushed.add(Answer(msg.status, headers, msg.payload, msg.subject, reply))

    async def heard(self, wanted: int) -> list[Answer]:
        return await self.pushed.heard(wanted)

    def now(self) -> float:
        return self.workload.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask(
        self, subject: str, headers: Headers, body: bytes, wanted: int, patience: float = 0.0
    ) -> list[Answer]:
        """All answers until the connection was lost, or nothing more came."""
        found: list[Answer] = []
        with self.session.inbox() as (inbox, got):
            try:
                self.session.publish(subject, body, inbox, dict(headers))
                async with asyncio.timeout(PATIENCE + patience):
                    while len(found) < wanted:
                        found.append(_answer(await got.get()))
                await self.session.flush()
            except (Disconnected, TimeoutError):
                pass
            while not got.empty():
                found.append(_answer(got.get_nowait()))
        return found


def _answer(msg: Msg) -> Answer:
    delivered = msg.reply.startswith(ACK)
    return Answer(
        msg.status,
        tuple(msg.headers.items()),
        msg.payload,
        msg.subject if delivered else "",
        parts(msg.reply) if delivered else "",
    )


class PlayedExam(Exam):
    """Parts of a directed history (`tests/model/directed.py`), which real processes and nats-server play as well."""

    judges = (Exact,)
    writer: ClassVar[type[Directed]]
    most: ClassVar[int] = 5
    """Parts that an exam has, of all there are."""

    async def check(self) -> None:
        self.number = 0
        self.player: Player | None = None
        """Those of the newest streams; None once they may have gone another way than the model."""
        own = [self._part(name) for name in self.writer.PARTS]
        await self.examine([*own, *self.others()], self.most)

    def others(self) -> Sequence[Callable[[Session], Awaitable[None]]]:
        """Parts that no history has."""
        return ()

    def _part(self, name: str) -> Callable[[Session], Awaitable[None]]:
        async def part(session: Session) -> None:
            player = await self.ready(session)
            self.player = None
            if await self.played(player, self.history.part(name)):
                self.player = player

        part.__name__ = name
        return part

    async def ready(self, session: Session) -> Player:
        """The player of the newest streams, which it makes where there are none that go as the model does."""
        if self.player is None:
            player = Player(SimWire(self, session), CLUSTERED)
            await self.played(player, self._begin())
            self.player = player
        return self.player

    def _begin(self) -> list[Step]:
        self.number += 1
        names = [f"{self.writer.__name__[0]}{self.number}{letter}" for letter in "ABC"]
        seed, replicas = self.rng.random(), self.rng.choice([1, 3])
        self.history = self.writer(seed, replicas=replicas, names=names, alone=False)
        return self.history.begin()

    async def played(self, player: Player, history: Sequence[Step]) -> bool:
        """True when the model could follow it to its end. Raises Violation."""
        before = player.asked
        try:
            await player.play(history)
        except Differs as error:
            Exact.equal(f"the answer to {error}", "another one", "that of the model")
        except Disturbed:
            self.count("unpredictable")
            return False
        finally:
            self.count("asked", player.asked - before)
        return True
