"""One server that stands alone: it stores, reads and delivers as a cluster does, and refuses what only one could do."""

from __future__ import annotations

from typing import Any

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.workload import PASSING, Delivered, Writers, together

NEEDS_CLUSTER, NO_REPLICAS, NO_LEADER = 10010, 10074, 10008
"""Codes of errors."""
REFUSED: tuple[tuple[str, Any, int], ...] = (
    ("STREAM.CREATE.ALONEB", {"name": "ALONEB", "num_replicas": 3}, NO_REPLICAS),
    ("STREAM.UPDATE.ALONE", {"name": "ALONE", "subjects": ["alone.>"], "num_replicas": 3}, NO_REPLICAS),
    ("CONSUMER.CREATE.ALONE.b", {"stream_name": "ALONE", "config": {"name": "b", "num_replicas": 3}}, NO_REPLICAS),
    ("STREAM.LEADER.STEPDOWN.ALONE", None, NEEDS_CLUSTER),
    ("STREAM.PEER.REMOVE.ALONE", {"peer": "n2"}, NEEDS_CLUSTER),
    ("STREAM.CANCEL_MOVE.ALONE", None, NEEDS_CLUSTER),
    ("CONSUMER.LEADER.STEPDOWN.ALONE.one", None, NEEDS_CLUSTER),
)


class Alone(Writers):
    name = "alone"
    layout = "alone"
    examined = False
    judges = (Log, Exact)
    stream = "ALONE"
    promises = (
        "a server that stands alone keeps what it acknowledged, whatever happens to it, and delivers it",
        "it refuses what needs a cluster, and goes on as before",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.delivered: set[int] = set()
        self.admin = await self.session("admin")
        await self.create(self.admin, self.stream, subjects=["alone.>"], num_replicas=1)
        await self.create(self.admin, "ALONECOPY", mirror={"name": self.stream}, num_replicas=1)
        await self.create_consumer(self.admin, self.stream, "one")

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(self.writers)), self._administer(), self._consume())

    async def _write(self, number: int) -> None:
        session = await self.session(f"write{number}")
        async for count in self.turns(6.0):
            await self.store_logged(self.log, session, f"alone.{count % 3}", f"alone-{number}-{count}")

    async def _administer(self) -> None:
        session = await self.session("changes")
        async for _ in self.turns(2.0):
            try:
                await self._refusal(session, *self.rng.choice(REFUSED))
                for kind, found in (("STREAM.LIST", "streams"), (f"CONSUMER.LIST.{self.stream}", "consumers")):
                    listed = (await session.api(kind))[found]
                    self.require(all("cluster" not in one for one in listed), f"{kind} tells of a cluster: {listed}")
            except PASSING:
                self.count("unknown")

    async def _refusal(self, session: Session, subject: str, body: Any, code: int) -> None:
        """Raises Violation where it is done, or refused for another reason, PASSING while nobody can say."""
        try:
            await session.api(subject, body)
        except ApiError as error:
            if error.err_code == NO_LEADER:
                raise
            Exact.equal(f"{self.name}: the error of {subject}", error.err_code, code)
            self.count("refused")
        else:
            self.require(False, f"{subject} is done")

    async def _consume(self) -> None:
        session = await self.session("consume")
        while not self.stopping:
            await self._take_some(session)

    async def _take_some(self, session: Session) -> None:
        async def take(msg: Msg) -> None:
            seq = Delivered.of(msg).seq
            Exact.equal(
                f"{self.name}: message {seq}", msg.payload.decode(), self.log.acked.get(seq, msg.payload.decode())
            )
            self.delivered.add(seq)
            session.publish(msg.reply, b"+ACK")

        await self.pull(session, self.stream, "one", take, 20)

    async def check(self) -> None:
        for subject, body, code in REFUSED:

            async def refused(subject: str = subject, body: Any = body, code: int = code) -> bool:
                await self._refusal(self.admin, subject, body, code)
                return True

            await self.until(f"{subject} is refused", refused)
        await super().check()
        session = await self.session("rest")

        async def all_of_it() -> bool:
            await self._take_some(session)
            return self.log.acked.keys() <= self.delivered

        await self.until("the consumer has had everything", all_of_it)
        await self.everywhere("ALONECOPY", max(self.log.acked, default=0), self._look)
