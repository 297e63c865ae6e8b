"""Exam of push consumers whose listener changes: the next one gets what the first had no more room or time for."""

from __future__ import annotations

import asyncio
from typing import Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND, Delivered

STREAM: Final = "LISTENED"
MESSAGES: Final = 50
BYTES: Final = 60_000
"""Size of each message: together they are more than the first window of flow control."""
STILL: Final = 2.0
"""Seconds after which nothing more comes to who confirms nothing."""
COMES: Final = 20.0


class ListenerExam(Exam):
    name = "exam-listeners"
    weight = 0
    judges = (Exact,)
    promises = (
        "who listens after a client that confirmed nothing gets the rest of a push consumer's messages, in order",
        "who listens after a client that acknowledged nothing gets that again, and the rest",
    )

    async def check(self) -> None:
        await self.examine([self._unconfirmed, self._unacknowledged], 2)

    async def _filled(self, session: Session, count: int, size: int) -> None:
        await self.create(session, STREAM, subjects=["listened"], num_replicas=self.rng.choice([1, 3]))
        for number in range(count):
            await self.store(session, "listened", f"listened {number}", payload=bytes(size))

    async def _unconfirmed(self, session: Session) -> None:
        await self._filled(session, MESSAGES, BYTES)
        first, got = await self._listens("first", confirms=False)
        await self.create_consumer(
            session, STREAM, "flow", deliver_subject="to.listener", ack_policy="none", flow_control=True,
            idle_heartbeat=SECOND, ack_wait=0,
        )  # fmt: skip
        count = -1
        while count != len(got):
            count = len(got)
            await asyncio.sleep(STILL)
        seqs = [Delivered.of(msg).seq for msg in got]
        self.equal("the first ones", seqs, list(range(1, len(seqs) + 1)))
        self.require(0 < len(seqs) < MESSAGES, f"who confirms nothing gets {len(seqs)} of {MESSAGES}")
        await first.close()
        await asyncio.sleep(STILL)
        second, rest = await self._listens("second", confirms=True)
        await self._has(rest, MESSAGES - len(seqs))
        self.equal("the rest", [Delivered.of(msg).seq for msg in rest], list(range(len(seqs) + 1, MESSAGES + 1)))
        await second.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _unacknowledged(self, session: Session) -> None:
        count, most = 6, 4
        await self._filled(session, count, 10)
        first, got = await self._listens("first", confirms=False)
        await self.create_consumer(
            session, STREAM, "acks", deliver_subject="to.listener", ack_wait=3 * SECOND, max_ack_pending=most
        )
        await self._has(got, most)
        await session.request(got[0].reply, b"+ACK")
        await self._has(got, most + 1)
        await first.close()
        second, rest = await self._listens("second", confirms=False)
        await self._has(rest, most)
        for msg in rest[:most]:
            await session.request(msg.reply, b"+ACK")
        await self._has(rest, count - 1)
        told = [(Delivered.of(msg).seq, Delivered.of(msg).count > 1) for msg in rest]
        self.equal("what comes to the second", sorted(told), [*((seq, True) for seq in (2, 3, 4, 5)), (6, False)])
        await second.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _listens(self, name: str, *, confirms: bool) -> tuple[Session, list[Msg]]:
        """A client, and the messages that it gets."""
        listener = await self.session(name)
        got: list[Msg] = []

        def take(msg: Msg) -> None:
            if not msg.status:
                got.append(msg)
            elif confirms and msg.reply:
                listener.publish(msg.reply)

        listener.subscribe("to.listener", take)
        await listener.flush()
        await asyncio.sleep(1.0)
        return listener, got

    async def _has(self, got: list[Msg], count: int) -> None:
        async def is_so() -> bool:
            return len(got) >= count

        await self.until(f"{count} messages come", is_so, COMES)
        await asyncio.sleep(0.5)
