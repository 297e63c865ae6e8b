"""A durable pull consumer in order per key, with several clients that forget and refuse: of each key one message is out
at a time, and in order. After the faults members share the keys for a while without coming or going: each key is at one
of them (checkers/keys.py)."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from chaos.workloads.base import RETRY, Session
from chaos.workloads.consumers import CONSUMER, TRIES, Arrivals, Consumers, next_of
from testkit.client import Client
from testkit.consumer_client import SECOND

KEYS = 7
MEMBERS = 3
"""Members in the calm. They have one request each all the time, so none goes."""
CALM_TURNS = 20
"""Messages of each key in the calm."""
CALM_WITHIN = 60.0

_numbers = itertools.count(1)


class Keys(Consumers):
    name = "keys"
    consumer: ClassVar[dict[str, Any]] = {
        "ack_wait": SECOND, "max_ack_pending": 400, "metadata": {"jetcluster.max_ack_pending_per_subject": "1"}
    }  # fmt: skip

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        self.history.note(self.name, "keyed")

    def subject(self, turn: int) -> str:
        return f"{self.name}.k{turn % KEYS}"

    def inbox(self, client: Client) -> Arrivals:
        """An inbox like those of official clients, by which a connection is a member."""
        unique = f"{id(client):012x}"[-12:] + f"{next(_numbers):010}"
        return Arrivals(client, self.history, f"_INBOX.{unique}")

    async def finish(self, client: Client) -> None:
        await self.calm(client)
        await super().finish(client)

    async def calm(self, client: Client) -> None:
        """Some members share the keys, and none comes or goes. Noted only if the consumer had one owner all the while,
        as a new one learns the members as they ask. Raises TimeoutError where not all come, or not all is acked."""
        async with asyncio.timeout(CALM_WITHIN), AsyncExitStack() as stack:
            for at in range(MEMBERS):
                name = self.target.names[at % len(self.target.names)]
                member = await stack.enter_async_context(await Client.connect(self.target.url(name), within=5.0))
                task = asyncio.create_task(self._share(member, f"{self.name}-calm-{at}"))
                stack.callback(task.cancel)
            owner = await self._shared_by(client, MEMBERS)
            begin = self.history.now()
            session = Session(self.target, random.Random(self.seed))
            stack.callback(session.leave)
            for turn in range(KEYS):
                values = [f"calm-{turn}-{number}" for number in range(CALM_TURNS)]
                await self.publish(session, f"{self.name}-calm", self.subject(turn), values, tries=TRIES)
            while True:
                await asyncio.sleep(RETRY)
                if await self._is_dry(client):
                    break
            if await self._shared_by(client, MEMBERS) == owner:
                self.history.note(self.name, "calm", since=begin, count=MEMBERS)

    async def _share(self, member: Client, worker: str) -> None:
        inbox = self.inbox(member)
        self._jet(member).pull(CONSUMER, {"batch": 1_000_000, "expires": int(CALM_WITHIN * SECOND)}, inbox=inbox)
        while True:
            try:
                msg = await next_of(inbox)
            except TimeoutError:
                continue
            if msg.status:
                return
            seq = self._delivered(worker, inbox.times.popleft(), msg)
            self._say(member, worker, "ack", seq, msg, b"+ACK")

    async def _shared_by(self, client: Client, members: int) -> str:
        """Wait until so many members share the keys; return the consumer's owner."""
        while True:
            info = await self._jet(client).info(CONSUMER)
            if info["order_per_key"]["members"] == members:
                return str(info["cluster"]["leader"])
            await asyncio.sleep(RETRY)
