"""A pull consumer: what it delivers next, what waits for its ack, and what acks of all kinds do."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.answers import ANY, MAYBE, Answer, Between, Stamp, nanoseconds
from tests.model.reading import Unknown, time_of
from tests.model.stream import Message, Stream
from tests.model.subjects import matches

NANO = 1e9
TOGETHER = 0.6
"""Seconds: a server may see what falls due within them at once, or one after the other."""


@dataclass(slots=True)
class Pending:
    """A message that was delivered and waits for its ack."""

    consumer_seq: int
    """The consumer sequence of its first delivery."""
    due: float
    """The time of its redelivery."""


class Pull(NamedTuple):
    batch: int = 1
    no_wait: bool = False
    expires: int = 0
    max_bytes: int = 0


@dataclass(slots=True)
class Consumer:
    stream: Stream
    config: dict[str, Any]
    next_seq: int
    created: Stamp = field(default_factory=Stamp)
    lasts: list[int] = field(default_factory=list)
    """With `last_per_subject`: the sequences that come first."""
    delivered: tuple[int, int] = (0, 0)
    """Last consumer and stream sequence."""
    floor: tuple[int, int] = (0, 0)
    pending: dict[int, Pending] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    """Stream sequences that are to be delivered again, in this order."""
    counts: dict[int, int] = field(default_factory=dict)
    """Deliveries of each message that waits for its ack."""
    mixed: bool = False
    """Nobody knows the order of `again`."""
    paused: bool = False
    floor_loose: bool = False
    """The floor is what was looked at when the last ack came: it may be ahead of what was delivered."""

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def acks(self) -> str:
        return str(self.config["ack_policy"])

    @classmethod
    def new(cls, stream: Stream, config: dict[str, Any]) -> Consumer:
        made = cls(stream, config, 0, paused="pause_until" in config)
        made.next_seq = made._start()
        made.delivered = made.floor = (0, made.next_seq - 1)
        if config["deliver_policy"] == "last_per_subject" and not made.lasts:
            made.delivered = made.floor = (0, 0)
        made.floor_loose = config["deliver_policy"].startswith("last") or made.acks == "none"
        return made

    def _start(self) -> int:
        """The first sequence that is looked at."""
        policy = self.config["deliver_policy"]
        first, end = max(1, self.stream.first_seq), self.stream.last_seq + 1
        wanted = [one for one in self.stream.messages.values() if self.wants(one)]
        if policy == "last":
            return max((one.seq for one in wanted), default=end)
        if policy == "new":
            return end
        if policy == "by_start_sequence":
            return max(first, int(self.config["opt_start_seq"]))
        if policy == "by_start_time":
            since = nanoseconds(self.config["opt_start_time"])
            return min((one.seq for one in self.stream.messages.values() if time_of(one) >= since), default=end)
        if policy == "last_per_subject":
            self.lasts = sorted({one.subject: one.seq for one in wanted}.values())
            return self.lasts[0] if self.lasts else end
        return first

    def wants(self, message: Message) -> bool:
        filters = self.config.get("filter_subjects") or [self.config.get("filter_subject") or ">"]
        return any(matches(one, message.subject) for one in filters)

    # -- deliveries

    def ahead(self) -> list[Message]:
        """Messages that were not delivered yet."""
        found = [one for one in self.stream.messages.values() if one.seq >= self.next_seq and self.wants(one)]
        if not self.lasts:
            return found
        return [one for one in found if one.seq in self.lasts or one.seq > max(self.lasts)]

    def _next(self) -> Message | None:
        while self.again:
            message = self.stream.messages.get(self.again[0])
            if message is not None:
                return message
            self.again.pop(0)
        most = self.config.get("max_ack_pending", 0)
        if self.acks != "none" and 0 < most <= len(self.pending):
            return None
        return next(iter(self.ahead()), None)

    def _deliver(self, message: Message, now: float) -> Answer:
        seq = message.seq
        if seq in self.again:
            self.again.remove(seq)
        else:
            self.next_seq = seq + 1
        count = self.counts.get(seq, 0) + 1
        number = self.delivered[0] + 1
        self.delivered = (number, max(self.delivered[1], seq))
        if self.acks == "none":
            self._raise_floor(self.delivered, loose=True)
        else:
            self.counts[seq] = count
            known = self.pending.get(seq)
            self.pending[seq] = Pending(known.consumer_seq if known else number, now + self._wait(count))
        ahead = len(self.ahead())
        exact = self.stream.rules.pending_exact and not (ahead and self.stream.removed)
        left = str(ahead) if exact else ANY
        ack = ("$JS", "ACK", self.stream.name, self.name, str(count), str(seq), str(number), message.stamp, left)
        own = message.headers
        if self.config.get("headers_only"):
            own = (*own, ("Nats-Msg-Size", str(len(message.data))))
        data = b"" if self.config.get("headers_only") else message.data
        return Answer("", own, data, message.subject, ack)

    def _wait(self, count: int) -> float:
        backoff = self.config.get("backoff")
        return (backoff[min(count, len(backoff)) - 1] if backoff else self.config["ack_wait"]) / NANO

    def pull(self, body: bytes, now: float) -> list[Answer]:
        """All that one request gets while nothing else happens."""
        wanted = pull_of(body)
        if wanted is None:
            return [Answer(ANY)]
        most = self.config.get("max_batch", 0)
        if 0 < most < wanted.batch:
            return [Answer(f"409 Exceeded MaxRequestBatch of {most}")]
        if self.mixed and len(self.again) > 1:
            raise Unknown
        found: list[Answer] = []
        left = wanted.batch
        while left and not self.paused and (message := self._next()) is not None:
            found.append(self._deliver(message, now))
            left -= 1
        if self.acks == "none" and self.stream.config["retention"] != "limits":
            self.stream.remove([int(one.reply[5]) for one in found])
        if not left:
            return found
        most = self.config.get("max_ack_pending", 0)
        if wanted.no_wait and self.acks != "none" and 0 < most <= len(self.pending):
            raise Unknown  # max_ack_pending holds it back, and it waits for acks
        if wanted.no_wait and (found or not wanted.expires):
            return [*found, Answer("404 No Messages")]
        counts = (("Nats-Pending-Messages", str(left)), ("Nats-Pending-Bytes", "0"))
        return [*found, Answer("408 Request Timeout", counts)]

    # -- acks

    def ack(self, seq: int, number: int, word: bytes, now: float) -> None:
        kind = word.split(b" ")[0]
        if kind in (b"", b"+ACK", b"+OK", b"+TERM"):
            self._done(seq, number)
        elif seq in self.pending and kind == b"-NAK":
            delay = _delay(word[4:].strip())
            if delay:
                self.pending[seq].due = now + delay
            elif seq not in self.again:
                self.again.append(seq)
                self.pending[seq].due = math.inf
        elif (
            seq in self.pending and word == b"+WPI" and (self.stream.rules.progress_takes_back or seq not in self.again)
        ):
            self.again = [one for one in self.again if one != seq]
            self.pending[seq].due = now + self._wait(self.counts[seq])

    def _done(self, seq: int, number: int) -> None:
        if self.acks == "all":
            if number <= self.floor[0] or seq <= self.floor[1]:
                return
            self._raise_floor((number, seq))
            self._forget([one for one in self.pending if one <= seq])
            return
        known = self.pending.get(seq)
        if known is None:
            return
        self._forget([seq])
        if not self.pending:
            self._raise_floor((self.delivered[0], self.delivered[1]), loose=True)
        elif known.consumer_seq == self.floor[0] + 1:
            first = min(self.pending)
            after = self.pending[first].consumer_seq - 1 if first > seq else known.consumer_seq
            self._raise_floor((after, first - 1 if first > seq else seq))

    def _raise_floor(self, floor: tuple[int, int], *, loose: bool = False) -> None:
        self.floor, self.floor_loose = floor, loose

    def _forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.pending.pop(seq, None)
            self.counts.pop(seq, None)
            if seq in self.again:
                self.again.remove(seq)
        if self.stream.config["retention"] == "workqueue":
            self.stream.remove([seq for seq in seqs if seq in self.stream.messages])

    def gone(self, seqs: list[int]) -> None:
        """Messages that were removed from the stream."""
        for seq in seqs:
            if seq in self.again:
                self.again.remove(seq)

    def pass_time(self, now: float) -> None:
        late = sorted((one.due, seq) for seq, one in self.pending.items() if one.due <= now)
        if len(self.again) < 2:
            self.mixed = False
        self.mixed |= any(
            other < seq and then < due + TOGETHER for (due, seq), (then, other) in itertools.combinations(late, 2)
        )
        for _, seq in late:
            self.pending[seq].due = math.inf
            if 0 < self.config["max_deliver"] <= self.counts[seq]:
                number = self.pending[seq].consumer_seq
                self._done(seq, number)
            elif seq not in self.again:
                self.again.append(seq)

    # -- what is told of it

    @property
    def _looked(self) -> int:
        """The last sequence before the next message."""
        ahead = self.ahead()
        return ahead[0].seq - 1 if ahead else self.stream.last_seq

    @property
    def _acked(self) -> int:
        """The last sequence before what waits for its ack."""
        return min(self.pending) - 1 if self.pending else self._looked

    def info(self, *, listed: bool = False) -> dict[str, Any]:
        config = dict(self.config)
        if listed:
            shown = {key: value for key, value in config["metadata"].items() if value is not ANY}
            config["metadata"] = shown
        told: dict[str, Any] = {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": self.created,
            "config": config,
            "delivered": _sequences(self.delivered, self._looked),
            "ack_floor": _sequences(self.floor, self._acked if self.floor_loose else self.floor[1]),
            "num_ack_pending": len(self.pending),
            "num_redelivered": sum(count > 1 for count in self.counts.values())
            if self.config["max_deliver"] != 1
            else 0,
            "num_waiting": 0,
            "num_pending": len(self.ahead()) if self.stream.rules.pending_exact else ANY,
            "cluster": MAYBE,
            "ts": MAYBE,
        }
        if self.paused:
            told |= {"paused": True, "pause_remaining": ANY}
        return told


def _sequences(pair: tuple[int, int], most: int) -> dict[str, Any]:
    """A server may have looked ahead for messages that match, up to the stream sequence `most`."""
    return {"consumer_seq": pair[0], "stream_seq": Between(pair[1], max(pair[1], most)), "last_active": MAYBE}


def pull_of(body: bytes) -> Pull | None:
    """A pull request; None for one that says nothing that is known."""
    text = body.strip()
    if not text.startswith(b"{"):
        return Pull(int(text)) if text.isdigit() and int(text) else Pull()
    try:
        asked = json.loads(text)
    except ValueError:
        return None
    return Pull(max(1, asked.get("batch") or 1), asked.get("no_wait") or False, asked.get("expires") or 0)


def _delay(text: bytes) -> float:
    """Seconds of a NAK's delay."""
    if text.startswith(b"{"):
        return float(json.loads(text).get("delay", 0)) / NANO
    found = re.fullmatch(rb"(\d+)(ms|s|h)", text)
    return int(found[1]) * {b"ms": 0.001, b"s": 1.0, b"h": 3600.0}[found[2]] if found else 0.0
