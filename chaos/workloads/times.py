"""A load of all that depends on the time: messages with a lifetime (TTL, max_age), schedules that fire once, message
ids that are sent again within the window for duplicates (checkers/times.py). Workers look at each when it must be there
and when it must be gone."""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from chaos.checkers.times import BOUND, EARLY, MAX_AGE
from chaos.history import History
from chaos.target import Target
from chaos.workloads.base import RETRY, TROUBLE, Session, Workload, outcome
from jetcluster.pipeline.checkers.event import Event
from testkit.client import Client

TTLS = (2, 3, MAX_AGE)
DUE = (2.0, 4.0)
AGAIN = (0.5, 2.5)
PAUSE = 0.05
NO_MESSAGE = 10037
LATER = 0.3


class Look(NamedTuple):
    at: float
    """On the history's clock."""
    value: str
    seq: int
    """0: the newest of `subject`."""
    subject: str


class Times(Workload):
    name = "times"
    workers = 2
    config: ClassVar[dict[str, Any]] = {
        "max_age": MAX_AGE * 10**9, "duplicate_window": MAX_AGE * 10**9, "allow_msg_ttl": True,
        "allow_msg_schedules": True,
    }  # fmt: skip
    read_back: ClassVar[bool] = False

    def __init__(self, target: Target, history: History, seed: int) -> None:
        super().__init__(target, history, seed)
        self._looks: list[Look] = []
        self._again: list[tuple[float, Event]] = []

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        client = await session.client()
        value = f"{worker}-{turn}"
        if worker.endswith("-0"):
            await self._put(client, worker, value, dice)
            await self._put_again(client)
        else:
            if turn % 4 == 0:
                await self._schedule(client, worker, value, dice)
            await self._look(client, worker)
        await asyncio.sleep(PAUSE)

    async def _put(self, client: Client, worker: str, value: str, dice: random.Random) -> None:
        lifetime = dice.choice(TTLS)
        subject = f"times.put.{worker}"
        invoked = self.history.invoke(self.name, "put", worker, subject=subject, msg_id=value, count=lifetime * 1000)
        done = await self._store(client, invoked, {} if lifetime == MAX_AGE else {"Nats-TTL": f"{lifetime}s"})
        if done.type == "ok":
            heapq.heappush(self._again, (done.t1 + dice.uniform(*AGAIN), done))
            there = done.t0 + lifetime - EARLY - LATER if dice.random() < 0.5 else done.t1
            for at in (there, done.t1 + lifetime + BOUND + LATER):
                heapq.heappush(self._looks, Look(at, value, done.seq, subject))

    async def _put_again(self, client: Client) -> None:
        while self._again and self._again[0][0] <= self.history.now():
            _, first = heapq.heappop(self._again)
            invoked = self.history.invoke(
                self.name, "put", first.client, subject=first.subject, msg_id=first.msg_id, count=first.count
            )
            await self._store(client, invoked, {})

    async def _store(self, client: Client, invoked: Event, headers: dict[str, str]) -> Event:
        value = invoked.msg_id
        msg = await self.ask(client, invoked, invoked.subject, value.encode(), headers | {"Nats-Msg-Id": value})
        kind, more = outcome(msg)
        return self.history.end(invoked, kind, **more)

    async def _schedule(self, client: Client, worker: str, value: str, dice: random.Random) -> None:
        seconds = dice.uniform(*DUE)
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        target = f"times.fired.{value}"
        invoked = self.history.invoke(
            self.name, "schedule", worker, subject=f"times.plan.{value}", msg_id=value, count=int(seconds * 1000)
        )
        headers = {"Nats-Schedule": f"@at {due.isoformat().replace('+00:00', 'Z')}", "Nats-Schedule-Target": target}
        done = await self._store(client, invoked, headers)
        if done.type == "ok":
            for at in (done.t0 + seconds - EARLY - LATER, done.t1 + seconds + BOUND + LATER):
                heapq.heappush(self._looks, Look(at, value, 0, target))

    async def _look(self, client: Client, worker: str) -> None:
        """At all whose turn it is."""
        while self._looks and self._looks[0].at <= self.history.now():
            look = heapq.heappop(self._looks)
            invoked = self.history.invoke(
                self.name, "look", worker, subject=look.subject, msg_id=look.value, seq=look.seq
            )
            request: dict[str, Any] = {"seq": look.seq} if look.seq else {"last_by_subj": look.subject}
            try:
                msg = await self.ask(
                    client, invoked, f"$JS.API.STREAM.MSG.GET.{self.stream}", json.dumps(request).encode()
                )
            except TROUBLE:
                heapq.heappush(self._looks, look._replace(at=self.history.now() + RETRY))
                raise
            error = {"err_code": 503} if msg.status else msg.json().get("error")
            if error is None:
                self.history.end(invoked, "ok", count=1)
            elif error.get("err_code") == NO_MESSAGE:
                self.history.end(invoked, "ok", count=0)
            else:
                self.history.end(invoked, "fail", error=str(error))
                heapq.heappush(self._looks, look._replace(at=self.history.now() + LATER))
                return

    async def finish(self, client: Client) -> None:
        """Until all that was written must be gone, and is looked at. Raises TimeoutError."""
        async with asyncio.timeout(MAX_AGE + DUE[1] + BOUND + 10.0):
            while self._looks:
                try:
                    await self._look(client, "finish")
                except TROUBLE:
                    if client.closed.is_set():
                        raise
                await asyncio.sleep(RETRY)
