"""A mirror of the queue stream, whose replicas also answer Direct Gets for it (checkers/mirrors.py). Workers read what
was acked, by sequence, from any replica or mirror that answers for the queue; at the end the mirror must come to the
queue's end."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

from chaos.history import History
from chaos.target import Target
from chaos.workloads.base import RETRY, TROUBLE, Session, Workload
from chaos.workloads.queue import Queue
from jetcluster.pipeline.checkers.event import Event
from testkit.client import Client

ORIGIN = Queue.name
PAUSE = 0.02
WHOLE_WITHIN = 60.0
"""Seconds after the last fault within which the mirror must have everything."""


class Mirrors(Workload):
    name = "mirrors"
    workers = 2
    after: ClassVar[tuple[str, ...]] = (ORIGIN,)

    def __init__(self, target: Target, history: History, seed: int) -> None:
        super().__init__(target, history, seed)
        self._acked: list[Event] = []
        self._looked = 0

    async def create(self, client: Client, replicas: int) -> None:
        body = {
            "name": self.stream, "mirror": {"name": ORIGIN.upper()}, "mirror_direct": True, "allow_direct": True,
            "num_replicas": replicas, "storage": self.storage,
        }  # fmt: skip
        await client.api(f"STREAM.CREATE.{self.stream}", body)
        self.history.note(self.name, "mirror", subject=ORIGIN)

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        acked = self._known()
        if acked:
            recent = acked[-100:] if dice.random() < 0.5 else acked
            await self._direct(await session.client(), worker, dice.choice(recent))
        await asyncio.sleep(PAUSE)

    def _known(self) -> list[Event]:
        """Acked messages of the origin."""
        new = self.history.events[self._looked :]
        self._looked = len(self.history.events)
        self._acked += [e for e in new if e.workload == ORIGIN and e.f == "publish" and e.type == "ok"]
        return self._acked

    async def _direct(self, client: Client, worker: str, acked: Event) -> None:
        invoked = self.history.invoke(self.name, "direct", worker, subject=acked.subject)
        msg = await self.ask(client, invoked, f"$JS.API.DIRECT.GET.{ORIGIN.upper()}", b'{"seq":%d}' % acked.seq)
        if msg.status == 404:
            self.history.end(invoked, "ok")
        elif msg.status:
            self.history.end(invoked, "fail", error=f"status {msg.status}")
        else:
            seq, subject = int(msg.get("Nats-Sequence") or 0), msg.get("Nats-Subject") or ""
            self.history.end(invoked, "ok", seq=seq, subject=subject, msg_id=msg.data.decode())

    async def finish(self, client: Client) -> None:
        """Raises TimeoutError when the mirror does not come to the end of its origin."""
        last, told = -1, "nobody answers"
        try:
            async with asyncio.timeout(WHOLE_WITHIN):
                while True:
                    try:
                        origin = await client.api(f"STREAM.INFO.{ORIGIN.upper()}")
                        info = await client.api(f"STREAM.INFO.{self.stream}")
                    except TROUBLE as error:
                        if client.closed.is_set():
                            raise
                        told = f"(no answer: {error!r})"
                    else:
                        last = int(origin["state"]["last_seq"])
                        told = f"{info['state']['last_seq']}, {info.get('mirror')}"
                        if info["state"]["last_seq"] == last and not (info.get("mirror") or {}).get("lag"):
                            break
                    await asyncio.sleep(RETRY)
        except TimeoutError:
            raise TimeoutError(f"the mirror is at {told} after {WHOLE_WITHIN:.0f} s, its origin at {last}") from None
        self.history.note(self.name, "drained")
