"""Plays a history against a server and the model side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tests.model import answers
from tests.model.answers import Answer, rfc3339
from tests.model.history import PIN, Moment, Step, moments, rendered
from tests.model.reading import Unknown
from tests.model.rules import Rules
from tests.model.server import ACK, API, CONSUMER, DIRECT, NEXT, Server
from tests.model.stream import Headers

EARLY = 0.15
LATE = 0.6
"""Seconds before and after a deadline within which nobody asks: a server is late by as much."""
COMES = 1.5
"""Seconds by which a message that a pull request waits for may come late: a timer, and a request that is repeated."""
SETTLES = 5.0
"""Seconds within which what a new configuration removes is gone."""
RESTLESS = 5
"""Times that a moment is waited for at which nothing is about to run out."""
LISTENED = ("push.", "again.")
"""Beginnings of subjects that the player subscribes to."""
UPDATE = f"{API}STREAM.UPDATE."
FRESH = 1.0
"""Seconds within which every replica has what was acknowledged."""


class Connection(Protocol):
    """A client of a server."""

    def now(self) -> float:
        """Seconds of a clock that servers go by."""

    async def sleep(self, seconds: float) -> None: ...

    async def ask(
        self, subject: str, headers: Headers, body: bytes, wanted: int, patience: float = 0.0
    ) -> list[Answer]:
        """All that comes back once `wanted` answers have, or no more come. `patience`: seconds for which the request
        itself waits."""

    def listen(self, subject: str) -> None:
        """Subscribes to a deliver subject, or to those of republished messages, if that was not done before."""

    async def heard(self, wanted: int) -> list[Answer]:
        """All that came there since this was asked last, once `wanted` of it have, heartbeats not counted, or
        no more come. A delivery has its message's subject and an ack subject."""


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
        self.pins: dict[str, str] = {}
        """Pin ids, by "<stream>.<consumer>"."""
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
            if step.listen:
                self.connection.listen(step.listen)
                self.model.listened.append(step.listen)
                await self.connection.sleep(FRESH)  # until all servers know
                continue
            if step.subject.startswith("ACK."):
                known = self.deliveries.get(step.subject, [])
                if not known:
                    continue
                step = replace(step, subject=known[-1 - step.turn % len(known)])
            if isinstance(step.body, dict) and step.body.get("id") == PIN:
                step = replace(step, body=step.body | {"id": self.pins.get(step.subject.removeprefix(NEXT), "none")})
            self._listen(step.body)
            await self._known(step)
            await self._settled(step)
            times = await self._times(at, step)
            await self._ask(at, step, rendered(step.body, times))
            if "STREAM.DELETE" in step.subject and self.model.rules.rest:
                await self.connection.sleep(self.model.rules.rest)
        end = Step("the end")
        await self._settled(end)  # the last step may have been to wait, for what fell due
        await self._hear(len(history), end)

    def _listen(self, body: Any) -> None:
        asked = body if isinstance(body, dict) else {}
        consumer, stream = asked.get("config") or {}, asked.get("republish") or {}
        for target in (consumer.get("deliver_subject"), stream.get("dest")):
            if target and target.startswith(LISTENED) and "*" not in target:
                self.connection.listen(target)

    async def _known(self, step: Step) -> None:
        """Waits until each replica has all messages, for a pull that a replica serves with what it has."""
        waits = step.subject.startswith(NEXT) and not step.body.get("no_wait")
        left = self.changed + FRESH - self.connection.now()
        if waits and self.model.rules.owners_lag and left > 0:
            await self.connection.sleep(left)

    def _coming(self, step: Step) -> list[float]:
        """When what is there will have, or would have, run out by the `max_age` of an update."""
        asked = step.body if step.subject.startswith(UPDATE) and isinstance(step.body, dict) else {}
        stream = self.model.streams.get(step.subject.removeprefix(UPDATE))
        age = asked.get("max_age")
        if stream is None or type(age) is not int or age <= 0:
            return []
        return [message.at + age / 1e9 for message in stream.messages.values()]

    async def _settled(self, step: Step) -> None:
        """Waits until nothing is about to run out. Raises Disturbed where that does not come: messages that are pushed
        again and again may leave no quiet moment."""
        for _ in range(RESTLESS):
            now = self.connection.now()
            self._pass_time(now - LATE)
            moments_ahead = [*self.model.deadlines(), *self._coming(step)]
            near = [moment for moment in moments_ahead if now - LATE < moment < now + EARLY]
            if not near:
                return
            await self.connection.sleep(max(near) + LATE - now + 0.001)
        raise Disturbed

    async def _times(self, at: int, step: Step) -> dict[Moment, str]:
        """The times of a request's moments; asks for the times of messages that were not seen yet."""
        times = {}
        for moment in moments(step.body):
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
        try:
            wanted = self.model.ask(step.subject, step.headers, body, sent)
        except Unknown:
            raise Disturbed from None  # of a push consumer, which does not wait to be asked
        asks = step.subject, step.headers, body, len(wanted)
        found = await self.connection.ask(*asks, _expires(step))
        answered = self.connection.now()
        self._note(found)
        told = compared(wanted, found)
        self.asked += 1
        late = self.model.came(answered)
        if not told and not -EARLY <= late <= COMES:
            told = [f"it came {late:.3f} s after it fell due"]
        again = SETTLES if step.settles else FRESH if step.subject.startswith(DIRECT) else 0.0
        while told and self.connection.now() < sent + again:
            await self.connection.sleep(0.05)  # the replica that answered may not have the newest messages yet
            told = compared(wanted, await self.connection.ask(*asks))
            answered = self.connection.now()
        if any(sent < moment < answered for moment in self.model.deadlines()):
            raise Disturbed
        if told:
            raise Differs(at, step, told)
        await self._hear(at, step)

    def _pass_time(self, now: float) -> None:
        try:
            self.model.pass_time(now)
        except Unknown:
            raise Disturbed from None

    def _note(self, found: list[Answer]) -> None:
        for one in found:
            if one.reply:
                where = f"{one.reply[2]}.{one.reply[3]}"
                self.deliveries.setdefault(f"ACK.{where}", []).append(".".join(map(str, one.reply)))
                if pin := dict(one.headers).get("Nats-Pin-Id"):
                    self.pins[where] = pin

    async def _hear(self, at: int, step: Step) -> None:
        """Holds what was pushed meanwhile against the model, each consumer's and stream's in its order."""
        wanted, self.model.pushed = self.model.pushed, []
        found = await self.connection.heard(len(wanted))
        self._note(found)
        beats = [one for one in found if one.status]
        told = [text for one in beats for text in self._beat(one)]
        sides = _sorted_out(wanted), _sorted_out([one for one in found if not one.status])
        for key in sides[0].keys() | sides[1].keys():
            told += [f"pushed to {key}: {text}" for text in compared(*(side.get(key, []) for side in sides))]
        if told:
            raise Differs(at, step, told)

    def _beat(self, beat: Answer) -> list[str]:
        """Differences of a heartbeat, which tells how far its consumer was when it left."""
        _, stream, name = beat.subject.split(".")
        known = self.model.streams[stream].consumers.get(name) if stream in self.model.streams else None
        if known is None:
            return []
        (first, consumer_seq), (second, stream_seq), *_ = (*beat.headers, ("", "0"), ("", "0"))
        well = beat.status == "100 Idle Heartbeat" and (first, second) == ("Nats-Last-Consumer", "Nats-Last-Stream")
        well &= int(consumer_seq) in known.marks and int(stream_seq) <= known.stream.last_seq
        return [] if well else [f"{beat} of a consumer that was at {known.marks}"]


def _expires(step: Step) -> float:
    """Seconds for which a pull request waits."""
    waits = step.subject.startswith(NEXT) and isinstance(step.body, dict)
    return float(step.body.get("expires", 0)) / 1e9 if waits else 0.0


def _sorted_out(pushed: list[Answer]) -> dict[str, list[Answer]]:
    """By consumer, or by the stream that republished them, or advisories by their subject."""
    found: dict[str, list[Answer]] = {}
    for one in pushed:
        if one.subject.startswith("$JS.EVENT."):
            key = one.subject
        else:
            key = f"{one.reply[2]}.{one.reply[3]}" if one.reply else dict(one.headers)["Nats-Stream"]
        found.setdefault(key, []).append(one)
    return found


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
