"""Plays a history against a server and the model side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tests.model import answers
from tests.model.answers import Answer, rfc3339
from tests.model.history import Moment, Step, rendered
from tests.model.reading import Unknown
from tests.model.rules import Rules
from tests.model.server import ACK, API, CONSUMER, DIRECT, NEXT, Server
from tests.model.stream import Headers

EARLY = 0.15
LATE = 0.6
"""Seconds before and after a deadline within which nobody asks: a server is late by as much."""
FRESH = 1.0
"""Seconds within which every replica has what was acknowledged."""


class Connection(Protocol):
    """A client of a server."""

    def now(self) -> float:
        """Seconds of a clock that servers go by."""

    async def sleep(self, seconds: float) -> None: ...

    async def ask(self, subject: str, headers: Headers, body: bytes, wanted: int) -> list[Answer]:
        """All that comes back once `wanted` answers have, or no more come."""


class Differs(Exception):
    """A server answered otherwise than the model."""

    def __init__(self, at: int, step: Step, found: list[str]) -> None:
        super().__init__(f"step {at}, {step}:\n  " + "\n  ".join(found))
        self.at = at


class Disturbed(Exception):
    """Something ran out while the server was at work, so its answer may be either."""


class Player:
    def __init__(self, connection: Connection, rules: Rules) -> None:
        self.connection = connection
        self.model = Server(rules)
        self.deliveries: dict[str, list[str]] = {}
        """Ack subjects, by "ACK.<stream>.<consumer>"."""
        self.asked = 0
        self.changed = -math.inf
        """The time at which a message or an ack was last sent."""
        self.disturbed = False
        """Something ran out while the server was at work: the history ended there."""

    async def play(self, history: Sequence[Step]) -> None:
        """Raises Differs and Disturbed."""
        for at, step in enumerate(history):
            if step.wait:
                await self.connection.sleep(step.wait)
                continue
            if step.subject.startswith("ACK."):
                known = self.deliveries.get(step.subject, [])
                if not known:
                    continue
                step = replace(step, subject=known[-1 - step.turn % len(known)])
            await self._known(step)
            await self._settled()
            times = await self._times(at, step)
            await self._ask(at, step, rendered(step.body, times))
            if "STREAM.DELETE" in step.subject and self.model.rules.rest:
                await self.connection.sleep(self.model.rules.rest)

    async def _known(self, step: Step) -> None:
        """Waits until each replica has all messages, for a pull that a replica serves with what it has."""
        waits = step.subject.startswith(NEXT) and not step.body.get("no_wait")
        left = self.changed + FRESH - self.connection.now()
        if waits and self.model.rules.owners_lag and left > 0:
            await self.connection.sleep(left)

    async def _settled(self) -> None:
        """Waits until nothing is about to run out."""
        while True:
            now = self.connection.now()
            near = [moment for moment in self.model.deadlines() if now - LATE < moment < now + EARLY]
            if not near:
                return
            await self.connection.sleep(max(near) + LATE - now + 0.001)

    async def _times(self, at: int, step: Step) -> dict[Moment, str]:
        """The times of a request's moments; asks for the times of messages that were not seen yet."""
        times = {}
        for moment in step.body.values() if isinstance(step.body, dict) else ():
            if isinstance(moment, Moment):
                stream = self.model.streams.get(moment.stream)
                for message in list(stream.messages.values()) if stream else ():
                    if message.stamp.ns is None:
                        learn = Step(f"$JS.API.STREAM.MSG.GET.{moment.stream}", {"seq": message.seq})
                        await self._ask(at, learn, rendered(learn.body, {}))
                known = stream.messages.get(moment.seq) if stream else None
                ns = known.stamp.ns if known and known.stamp.ns else 1_600_000_000 * 10**9
                times[moment] = rfc3339(ns + moment.plus)
        return times

    async def _ask(self, at: int, step: Step, body: bytes) -> None:
        sent = self.connection.now()
        if not step.subject.startswith(API):
            self.changed = sent
        if step.subject.startswith((CONSUMER, ACK)):
            try:
                self.model.branch().ask(step.subject, step.headers, body, sent)
            except Unknown:
                return  # it would wait for what others do, or nobody knows
        wanted = self.model.ask(step.subject, step.headers, body, sent)
        found = await self.connection.ask(step.subject, step.headers, body, len(wanted))
        for one in found:
            if one.reply:
                self.deliveries.setdefault(f"ACK.{one.reply[2]}.{one.reply[3]}", []).append(
                    ".".join(map(str, one.reply))
                )
        told = compared(wanted, found)
        self.asked += 1
        while told and step.subject.startswith(DIRECT) and self.connection.now() < sent + FRESH:
            await self.connection.sleep(0.05)  # the replica that answered may not have the newest messages yet
            told = compared(wanted, await self.connection.ask(step.subject, step.headers, body, len(wanted)))
        answered = self.connection.now()
        if any(sent < moment < answered for moment in self.model.deadlines()):
            raise Disturbed
        if told:
            raise Differs(at, step, told)


def compared(wanted: list[Answer], found: list[Answer]) -> list[str]:
    """Differences."""
    if len(wanted) != len(found):
        return [f"{len(found)} answers instead of {len(wanted)}: {found}"]
    known = []
    for one, other in zip(wanted, found, strict=True):
        data: Any = other.data
        if isinstance(one.data, dict):
            try:
                data = json.loads(other.data)
            except ValueError:
                return [f"no JSON: {other.data!r}"]
        if isinstance(one.status, str) and one.status == "503":
            other = other._replace(status=other.status[:3])
        known.append(dict(other._replace(data=data)._asdict()))
    return answers.compared([one._asdict() for one in wanted], known)


async def shrink(
    history: Sequence[Step], fails: Callable[[Sequence[Step]], Awaitable[bool]], attempts: int = 200
) -> list[Step]:
    """A part of a history that still fails, by leaving out halves, quarters and so on of what is left."""
    kept, size = list(history), max(1, len(history) // 2)
    while size and attempts > 0:
        at = 0
        while at < len(kept) and attempts > 0:
            attempts -= 1
            fewer = kept[:at] + kept[at + size :]
            if fewer and await fails(fewer):
                kept = fewer
            else:
                at += size
        size //= 2
    return kept
