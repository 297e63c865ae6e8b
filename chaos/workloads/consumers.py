"""A durable pull consumer with several clients: what is acked does not come again, nothing is left out
(checkers/consumers.py). Clients confirm acks, ack without confirmation, refuse, or forget what they got."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from chaos.history import History
from chaos.workloads.base import PATIENCE, RETRY, TROUBLE, Session, Workload
from testkit.client import Client, Msg
from testkit.consumer_client import SECOND, Inbox, Jet, ack_fields

WINDOW = 4
TRIES = 6
PAUSE = 0.03
BATCH = 20
EXPIRES = 0.5
CONSUMER = "WORK"
DRAIN_WITHIN = 60.0


class Arrivals(Inbox):
    """Knows when each message came."""

    def __init__(self, client: Client, history: History, subject: str = "") -> None:
        super().__init__(client, subject)
        self.times: deque[float] = deque()
        self._history = history

    def _take(self, msg: Msg) -> None:
        self.times.append(self._history.now())
        super()._take(msg)


class Consumers(Workload):
    name = "consumers"
    workers = 4
    consumer: ClassVar[dict[str, Any]] = {"ack_wait": 2 * SECOND, "max_ack_pending": 400}

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        await self._jet(client).consumer(CONSUMER, **self.consumer)

    def subject(self, turn: int) -> str:
        """The subject of the messages that a turn publishes."""
        return f"{self.name}.a"

    def inbox(self, client: Client) -> Arrivals:
        """A fresh inbox for a pull."""
        return Arrivals(client, self.history)

    def _jet(self, client: Client) -> Jet:
        return Jet(client, self.stream, 3, "jetcluster")

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        if worker.endswith("-0"):
            values = [f"{worker}-{turn * WINDOW + n}" for n in range(WINDOW)]
            await self.publish(session, worker, self.subject(turn), values, tries=TRIES)
            await asyncio.sleep(PAUSE)
        else:
            await self._fetch(await session.client(), worker, dice)
            if dice.random() < 0.02:
                session.leave()

    async def _fetch(self, client: Client, worker: str, dice: random.Random) -> None:
        async for arrived, msg in self._pulled(client):
            seq = self._delivered(worker, arrived, msg)
            await self.settle(client, worker, seq, msg, dice.random())

    async def settle(self, client: Client, worker: str, seq: int, msg: Msg, what: float) -> None:
        """`what`: in [0, 1), how the message is answered. May raise `TROUBLE`."""
        if what < 0.5:
            await self._ack(client, worker, seq, msg)
        elif what < 0.85:
            self._say(client, worker, "ack", seq, msg, b"+ACK")
        elif what < 0.95:
            client.publish(msg.reply.decode(), b"-NAK")

    def _say(self, client: Client, worker: str, f: str, seq: int, msg: Msg, text: bytes) -> None:
        """Without waiting for a confirmation: whether it has counted stays unknown."""
        self.history.end(self.history.invoke(self.name, f, worker, seq=seq), "info")
        client.publish(msg.reply.decode(), text)

    async def _pulled(self, client: Client) -> AsyncIterator[tuple[float, Msg]]:
        """The messages of one pull, with the times at which they came: one may wait here for the acks of others before
        it. Raises TimeoutError when the pull is not even ended in time."""
        inbox = self.inbox(client)
        self._jet(client).pull(CONSUMER, {"batch": BATCH, "expires": int(EXPIRES * SECOND)}, inbox=inbox)
        try:
            for _ in range(BATCH):  # a full batch ends without a status
                msg = await next_of(inbox)
                if msg.status:
                    return
                yield inbox.times.popleft(), msg
        finally:
            if not client.closed.is_set():
                inbox.close()

    def _delivered(self, worker: str, arrived: float, msg: Msg) -> int:
        deliveries, seq, _, _ = ack_fields(msg)
        subject = msg.subject.decode()
        self.history.note(
            self.name, "deliver", worker, since=arrived, subject=subject, msg_id=msg.data.decode(), seq=seq,
            count=deliveries,
        )  # fmt: skip
        return seq

    async def _ack(self, client: Client, worker: str, seq: int, msg: Msg) -> None:
        invoked = self.history.invoke(self.name, "ack", worker, seq=seq)
        answer = await self.ask(client, invoked, msg.reply.decode(), b"+ACK")
        self.history.end(invoked, "fail" if answer.status else "ok")

    async def finish(self, client: Client) -> None:
        """Takes and acks all that is left. Raises TimeoutError when the consumer does not run dry."""
        async with asyncio.timeout(DRAIN_WITHIN):
            while True:
                try:
                    async for arrived, msg in self._pulled(client):
                        await self._ack(client, "drain", self._delivered("drain", arrived, msg), msg)
                    if await self._is_dry(client):
                        self.history.note(self.name, "drained")
                        return
                except TROUBLE:
                    if client.closed.is_set():
                        raise
                await asyncio.sleep(RETRY)

    async def _is_dry(self, client: Client) -> bool:
        info = await self._jet(client).info(CONSUMER)
        return (info["num_ack_pending"], info["num_pending"]) == (0, 0)


async def next_of(inbox: Inbox) -> Msg:
    """Raises TimeoutError when the pull is not even ended in time."""
    try:
        return await inbox.one(EXPIRES + PATIENCE)
    except AssertionError:
        raise TimeoutError("neither a message nor a status") from None
