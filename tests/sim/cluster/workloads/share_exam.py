"""Exam of what accounts share, and of what they do not although it takes the same way at the same moment."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from random import Random
from typing import Final

from testkit.sim.deployment import Deployment
from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import Delivered

STREAM: Final = "SHARES"
CONFIG: Final = (
    (
        '{ stream: "out.>" } ]',
        '{ stream: "out.>" }, { service: "$JS.API.>", response_type: stream }, { service: "$JS.ACK.>" } ]',
    ),
    (
        'prefix: "in" }',
        'prefix: "in" }\n      { service: { account: APP, subject: "$JS.API.>" }, to: "JS.A.API.>" }'
        '\n      { service: { account: APP, subject: "$JS.ACK.>" } }',
    ),
    ("  SYS {", "  QUIET { users: [ { user: quiet, password: quiet } ] }\n  SYS {"),
)
"""Another account may use JetStream of the first one; and an account that nobody uses but this exam."""
MESSAGES: Final = 12
SPREAD: Final = 1.5
"""Seconds until all servers know who listens, and until the last message has come."""


class ShareExam(Exam):
    name = "exam-shares"
    weight = 0
    judges = (Exact,)
    promises = (
        "an account that imports JetStream of another one is delivered its messages, and acknowledges them",
        "of messages of two accounts that leave a server at once each one arrives in its own",
        "who has unsubscribed gets nothing of an imported stream, and who subscribes again each message once",
        "the first client that an account has at a server reaches those that listen at others, and is reached by them",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        for name, server in deployment.servers.items():
            config = server.config
            for before, after in CONFIG:
                config = config.replace(before, after)
            deployment.servers[name] = dataclasses.replace(server, config=config)

    async def check(self) -> None:
        if "QUIET" in self.deployment.servers[self.members[0]].config:  # clusters with leaves have no accounts
            await self.examine([self._pulls, self._mixed, self._again, self._first], 4)

    async def _at(self, node: str, user: str = "") -> Session:
        return await self.session(f"{user}-{node}", node, user=user)

    def _listen(self, session: Session, subject: str) -> list[Msg]:
        got: list[Msg] = []
        session.subscribe(subject, got.append)
        return got

    async def _spread(self, *sessions: Session) -> None:
        for session in sessions:
            await session.flush()
        await asyncio.sleep(SPREAD)

    async def _pulls(self, session: Session) -> None:
        """Pulls from a consumer of the other account, and acks."""
        await self.fill(session, STREAM, ["shared"] * 5, subjects=["shared"], num_replicas=self.rng.choice([1, 3]))
        await self.create_consumer(session, STREAM, "one", ack_wait=600_000_000_000)
        other = await self.session("pulls", user="other")
        with other.inbox() as (inbox, got):
            body = json.dumps({"batch": 3, "expires": 5_000_000_000}).encode()
            other.publish(f"JS.A.API.CONSUMER.MSG.NEXT.{STREAM}.one", body, inbox)
            async with asyncio.timeout(5.0):
                found = [await got.get() for _ in range(3)]
        self.equal("acks go", {msg.reply.partition(".ACK.")[0] for msg in found}, {"$JS"})
        self.equal("what comes", [Delivered.of(msg).seq for msg in found], [1, 2, 3])
        for msg, word in zip(found, (b"+ACK", b"+TERM", b"+ACK"), strict=True):
            await other.request(msg.reply, word)
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.one")
        told = info["num_ack_pending"], info["ack_floor"]["stream_seq"], info["num_pending"]
        self.equal("what is acknowledged", told, (0, 3, 2))
        await other.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _mixed(self, session: Session) -> None:
        """One client's messages, of which every other one enters the account whose service it imports."""
        here, there = self.rng.sample(self.deployment.members(), 2)
        sends = await self._at(here, "other")
        mine, its = await self._at(there), await self._at(there, "other")
        served, wrong = self._listen(mine, "svc.one"), self._listen(mine, "mixed")
        own, other_wrong = self._listen(its, "mixed"), self._listen(its, "svc.one")
        await self._spread(mine, its)
        for number in range(MESSAGES):
            sends.publish("mixed" if number % 2 else "remote.one", str(number).encode())
        await self._spread(sends, mine, its)
        numbers = [[int(msg.payload) for msg in got] for got in (served, own, wrong, other_wrong)]
        even, odd = (list(range(first, MESSAGES, 2)) for first in (0, 1))
        self.equal("of the one account, of the other, and of neither", numbers, [even, odd, [], []])
        for one in (sends, mine, its):
            await one.close()

    async def _again(self, session: Session) -> None:
        other = await self._at(self.rng.choice(self.deployment.members()), "other")
        got: list[Msg] = []
        sid = other.subscribe("in.out.a.>", got.append)
        for round_ in range(3):
            await self._spread(other)
            session.publish("out.a.x", str(round_).encode())
            await self._spread(session, other)
            self.equal("while it listens", [msg.payload for msg in got], [str(round_).encode()])
            other.unsubscribe(sid)
            got.clear()
            await self._spread(other)
            session.publish("out.a.x", b"unheard")
            await self._spread(session, other)
            self.equal("once it does not", got, [])
            sid = other.subscribe("in.out.a.>", got.append)
        await other.close()

    async def _first(self, session: Session) -> None:
        """Nobody else uses this account."""
        here, there = self.rng.sample(self.deployment.members(), 2)
        listens = await self._at(here, "quiet")
        got = self._listen(listens, "quiet.>")
        listens.subscribe("quiet.ask", lambda msg: listens.publish(msg.reply, b"answer"))
        await self._spread(listens)
        asks = await self._at(there, "quiet")
        answer = await asks.request("quiet.ask", b"question")
        self.equal("the answer", answer.payload, b"answer")
        asks.publish("quiet.told", b"told")
        await self._spread(asks, listens)
        self.equal("what is told", [msg.payload for msg in got], [b"question", b"told"])
        await listens.close()
        await asks.close()
