"""Exam of servers that die in the midst of one thing, and of links that are lost: what was half done is done once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Final

from testkit.sim.machine import Machine
from testkit.sim.network import SimTransport
from testkit.sim.session import Msg, NoResponders, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.workload import PASSING, SECOND

STREAM, LETTERS = "DEATHS", "GRAVES"
GIVEN_UP: Final = 40
"""Messages with a letter each."""
DEATHS: Final = 3
SOON: Final = 0.004
"""Seconds in which a letter is confirmed, and the log has it."""
WINDOW: Final = SECOND // 10
"""Nanoseconds for which the target knows ids: less than it takes until the next owner sends."""
DOWN: Final = 3.0
ENDS: Final = 60.0
SUBJECTS: Final = 60
CUTS: Final = 6
GREETING: Final = 0.02
"""Seconds that it takes, at most, until servers that are connected again have told each other who listens."""
TOLD: Final = 1.0


class DeathExam(Exam):
    name = "exam-deaths"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "each message that is given up has one dead letter, also where its sender dies before it has noted the ack",
        "a server knows who listens at another one, however often their link is lost while clients come and go",
    )

    async def check(self) -> None:
        await self.examine([self._letters, self._links], 2)

    # ---- letters

    async def _letters(self, session: Session) -> None:
        retention = self.rng.choice(["workqueue", "limits"])
        await self.create(session, STREAM, subjects=["deaths.>"], retention=retention)
        await self.create(session, LETTERS, subjects=["graves.>"], duplicate_window=WINDOW)
        letter = {"subject": "graves.{subject}", "on_term": True}
        await self.create_consumer(session, STREAM, "one", ack_wait=2 * SECOND, max_deliver=20, dead_letter=letter)
        self.elects()
        texts = [f"given up {at}" for at in range(GIVEN_UP)]
        for text in texts:
            await self.store(session, "deaths.one", text)
        self.waits = True
        await self.at_once(self._give_up(session), self._kill_owners(session))
        found = Counter(msg.payload.decode() for msg in (await self.contents(session, LETTERS)).values())
        self.equal("messages without one letter", {text: found[text] for text in texts if found[text] != 1}, {})
        for stream in (STREAM, LETTERS):
            await self.ask(session, f"STREAM.DELETE.{stream}")

    async def _give_up(self, session: Session) -> None:
        request = json.dumps({"batch": 3, "expires": SECOND}).encode()
        with session.inbox() as (inbox, got):
            while self.waits:
                try:
                    session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.one", request, inbox)
                    async with asyncio.timeout(2.0):
                        while not (msg := await got.get()).status:
                            session.publish(msg.reply, b"+TERM")
                except PASSING:
                    await asyncio.sleep(0.1)

    async def _kill_owners(self, session: Session) -> None:
        """Each soon after a letter has come."""
        for _ in range(DEATHS):
            with session.inbox("graves.>") as (_, got):
                owner = self.deployment.machines[await self._owner(session)]
                for _ in range(self.rng.randint(1, 3)):
                    await self._next(got)
                await asyncio.sleep(SOON * self.rng.random())
                await self._dies(owner)

        async def is_over() -> bool:
            info = await session.api(f"CONSUMER.INFO.{STREAM}.one")
            return not (info["num_pending"] or info["num_ack_pending"] or info["dead_letters"]["waiting"])

        await self.until("all is given up", is_over, ENDS)
        self.waits = False

    async def _owner(self, session: Session) -> str:
        while True:
            info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.one")
            if name := (info.get("cluster") or {}).get("leader"):
                return str(name)
            await asyncio.sleep(0.1)

    async def _next(self, got: asyncio.Queue[Msg]) -> None:
        try:
            async with asyncio.timeout(5.0):
                await got.get()
        except TimeoutError:
            self.count("all was given up before")

    async def _dies(self, machine: Machine) -> None:
        if self.rng.random() < 0.5:
            machine.kill()
        else:
            machine.lose_power()
        await asyncio.sleep(self.rng.uniform(0.5, DOWN))
        start(machine)

    # ---- links

    async def _links(self, session: Session) -> None:
        """Clients subscribe and give up subscriptions while their server tells the other one of all that are there."""
        here, there = self.rng.sample(self.members, 2)
        near, far = [await self.session(name, node) for name, node in (("near", here), ("far", there))]
        subscribed: dict[str, int] = {}
        subjects = [f"listened.{at}" for at in range(SUBJECTS)]
        for subject in subjects[::2]:
            subscribed[subject] = self._listen(near, subject)
        self.elects()
        for _ in range(CUTS):
            self._cut(here, there)
            back = asyncio.get_running_loop().create_task(self._back(here, there))
            while not back.done():
                subject = self.rng.choice(subjects)
                if subject in subscribed:
                    near.unsubscribe(subscribed.pop(subject))
                else:
                    subscribed[subject] = self._listen(near, subject)
                await asyncio.sleep(0.0002 * self.rng.random())
            await near.flush()
            await asyncio.sleep(TOLD)
            heard = [subject for subject in subjects if await self._answers(far, subject)]
            self.equal("who answers", heard, [one for one in subjects if one in subscribed])
        await near.close()
        await far.close()

    async def _back(self, here: str, there: str) -> None:
        """Until shortly after they are connected again, when they tell each other who listens."""
        while not self._connections(here, there):
            await asyncio.sleep(0.001)
        await asyncio.sleep(GREETING * self.rng.random())

    def _listen(self, session: Session, subject: str) -> int:
        return session.subscribe(subject, lambda msg: session.publish(msg.reply, b"here"))

    async def _answers(self, session: Session, subject: str) -> bool:
        try:
            await session.request(subject, b"", 1.0)
        except NoResponders:
            return False
        except TimeoutError:
            self.require(False, f"{subject} is taken for somebody's")
        return True

    def _cut(self, here: str, there: str) -> None:
        """Their connections are reset; nothing keeps them from connecting again."""
        for transport in self._connections(here, there):
            transport.abort()

    def _connections(self, here: str, there: str) -> list[SimTransport]:
        ip = self.deployment.servers[there].ip
        return [one for one in self.deployment.machines[here].transports if one.other[0] == ip]
