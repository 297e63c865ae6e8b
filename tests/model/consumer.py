"""A consumer: its next delivery, the messages that wait for their acks, and the effects of acks of all kinds."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.answers import ANY, MAYBE, Answer, Between, Name, Stamp, nanoseconds
from tests.model.reading import Unknown, time_of
from tests.model.stream import Message, Stream
from tests.model.subjects import matches

NANO = 1e9
REPLAYED = 4.0
"""Seconds within which a whole history was stored: who waits for as long gets all of it at its own pace."""
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
    group: str = ""
    id: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0


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
    marks: set[int] = field(default_factory=lambda: {0})
    """Consumer sequences that it has been at: a heartbeat tells one of them."""
    mixed: bool = False
    """Nobody knows the order of `again`."""
    paused: bool = False
    exhausted: set[int] = field(default_factory=set)
    """Messages that were delivered as often as `max_deliver` permits: retention keeps them."""
    unsure: bool = False
    """Nobody knows what it counts as acked."""
    asleep: bool = False
    """It may deliver, and nobody knows whether it noticed."""
    pin: Name | None = None
    """The id of the client that has the pin, in a group of the policy `pinned_client`."""
    awaited: tuple[int, float] | None = None
    """The message that a pull request waited for, and the time at which it fell due."""
    told: list[Answer] = field(default_factory=list)
    """Advisories that nobody took yet."""
    floor_loose: bool = False
    """The floor is what was looked at when the last ack came: it may be ahead of what was delivered."""

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def acks(self) -> str:
        return str(self.config["ack_policy"])

    @property
    def target(self) -> str:
        """Its deliver subject; "" for a pull consumer."""
        return str(self.config.get("deliver_subject") or "")

    @classmethod
    def new(cls, stream: Stream, config: dict[str, Any]) -> Consumer:
        made = cls(stream, config, 0, paused="pause_until" in config)
        made.next_seq = made._start()
        made.delivered = made.floor = (0, made.next_seq - 1)
        if config["deliver_policy"].startswith("last") and not any(map(made.wants, stream.messages.values())):
            made.delivered = made.floor = (0, 0)
        elif config["deliver_policy"] == "last_per_subject" and stream.config["max_msgs_per_subject"] == 1:
            made.delivered = made.floor = (0, stream.first_seq - 1)  # all that is there is the last of its subject
        made.floor_loose = config["deliver_policy"].startswith("last") or made.acks == "none"
        return made

    def _start(self) -> int:
        """The first sequence that is looked at."""
        policy = self.config["deliver_policy"]
        first, end = max(1, self.stream.first_seq), self.stream.last_seq + 1
        wanted = [one for one in self.stream.messages.values() if self.wants(one)]
        if policy == "last":
            if wanted and not self._filters() and not self.stream.rules.last_behind_deleted:
                return self.stream.last_seq
            return max((one.seq for one in wanted), default=end)
        if policy == "new":
            return end
        if policy == "by_start_sequence":
            return max(first, int(self.config["opt_start_seq"]))
        if policy == "by_start_time":
            since = nanoseconds(self.config["opt_start_time"])
            start = min((one.seq for one in self.stream.messages.values() if time_of(one) >= since), default=end)
            return start if self.stream.rules.starts_exact else self._moved_on(start)
        if policy == "last_per_subject":
            self.lasts = self._newest()
            return self.lasts[0] if self.lasts else end
        return first

    def _newest(self) -> list[int]:
        """The last messages of their subjects, as of now."""
        return sorted({one.subject: one.seq for one in self.stream.messages.values() if self.wants(one)}.values())

    def wants(self, message: Message) -> bool:
        return any(matches(one, message.subject) for one in self._filters() or [">"])

    def _moved_on(self, start: int) -> int:
        """nats-server's start for a time: the first message of a filter, if that is behind it and not the last."""
        firsts = []
        for one in self._filters():
            found = (message.seq for message in self.stream.messages.values() if matches(one, message.subject))
            first = min(found, default=0)
            if start <= first < self.stream.last_seq:
                firsts.append(first)
        return min(firsts, default=start)

    def _filters(self) -> list[str]:
        one = self.config.get("filter_subject")
        return self.config.get("filter_subjects") or ([one] if one else [])

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
        self.marks.add(number)
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

    def push(self, now: float) -> list[Answer]:
        """Deliveries of a push consumer whose subject has listeners, until it has to wait. Raises Unknown."""
        if self.target and (self.asleep or self.unsure):
            raise Unknown
        found: list[Answer] = []
        while self.target and not self.paused and (message := self._next()) is not None:
            if self.mixed and len(self.again) > 1:
                raise Unknown
            found.append(self._deliver(message, now))
            self._taken(found[-1:])
        return found

    def _taken(self, deliveries: list[Answer]) -> None:
        """A delivery without acks counts as acked."""
        if self.acks == "none":
            self.stream.unneeded([int(one.reply[5]) for one in deliveries])

    def pull(self, body: bytes, now: float) -> list[Answer]:
        """All that one request gets while nothing else happens."""
        if self.target:
            return [Answer("409 Consumer is push based")]
        wanted = pull_of(body)
        if wanted is None:
            return [Answer(ANY)]
        most = self.config.get("max_batch", 0)
        if 0 < most < wanted.batch:
            return [Answer(f"409 Exceeded MaxRequestBatch of {most}")]
        if refusal := self._refusal(wanted, body):
            return [Answer(refusal)]
        if self.unsure or (self.mixed and len(self.again) > 1):
            raise Unknown
        found: list[Answer] = []
        left = wanted.batch
        if self.config["replay_policy"] == "original" and wanted.expires < REPLAYED * NANO:
            raise Unknown  # how far it comes depends on when the messages were stored
        while left and not self.paused and self._serves(wanted) and (message := self._next()) is not None:
            found.append(self._pinned(self._deliver(message, now)))
            left -= 1
        if left and wanted.id and self.pin is None and not self.paused and self._next() is not None:
            counts = (("Nats-Pending-Messages", str(left)), ("Nats-Pending-Bytes", "0"))
            return [Answer("423 Nats-Wrong-Pin-Id", counts)]
        self._taken(found)
        if not left:
            return found
        most = self.config.get("max_ack_pending", 0)
        if wanted.no_wait and self.acks != "none" and 0 < most <= len(self.pending):
            raise Unknown  # max_ack_pending holds it back, and it waits for acks
        if wanted.no_wait and (found or not wanted.expires):
            return [*found, Answer("404 No Messages")]
        if later := self._waited_for(wanted, left, now):
            return [*found, later]
        counts = (("Nats-Pending-Messages", str(left)), ("Nats-Pending-Bytes", "0"))
        return [*found, Answer("408 Request Timeout", counts)]

    def follow(self, body: bytes, now: float) -> list[Answer]:
        """Messages for an ack that asks for more, as for an endless pull request. Raises Unknown where it waits."""
        found = self.pull(body, now)
        if any(one.status for one in found):
            raise Unknown
        return found

    def _waited_for(self, wanted: Pull, left: int, now: float) -> Answer | None:
        """Messages that fall due while a request waits. Raises Unknown where nobody knows which, or whether in time."""
        end = now + wanted.expires / NANO
        due = sorted(one.due for one in self.pending.values() if one.due < end + TOGETHER)
        for at, moment in enumerate(due):
            together = at + 1 < len(due) and due[at + 1] < moment + TOGETHER
            if left > 1 or together or moment > end - TOGETHER:
                raise Unknown
            self.pass_time(moment)
            if not self.paused and self._serves(wanted) and (message := self._next()) is not None:
                self.awaited = message.seq, moment
                return self._pinned(self._deliver(message, moment))
        return None

    def came(self, now: float) -> float:
        """Seconds by which a message was late that a request waited for; the next wait for its ack begins now."""
        if self.awaited is None:
            return 0.0
        seq, moment = self.awaited
        self.awaited = None
        if seq in self.pending:
            self.pending[seq].due += now - moment
        return now - moment

    # -- groups of clients

    def _refusal(self, wanted: Pull, body: bytes) -> str:
        """The status of a pull request that does not fit the consumer's priority policy; "" for one that does."""
        policy = self.config.get("priority_policy")
        if (wanted.min_pending or wanted.min_ack_pending) and policy != "overflow":
            return "400 Bad Request - Not a Overflow Priority consumer"
        if wanted.id and policy != "pinned_client":
            return "400 Bad Request - Not a Pinned Client Priority consumer"
        if not policy:
            return ""
        if not wanted.group:
            return "400 Bad Request - Priority Group missing"
        if wanted.group not in self.config["priority_groups"]:
            return "400 Bad Request - Invalid Priority Group"
        if wanted.id and self.pin is not None and self.pin.value != wanted.id:
            return "423 Nats-Pin-Id mismatch"
        return ""

    def _serves(self, wanted: Pull) -> bool:
        """True when its priority policy gives a request the next message."""
        if self.config.get("priority_policy") == "pinned_client":
            return wanted.id == (self.pin.value if self.pin else "") or (
                self.pin is not None and self.pin.value is None
            )
        if wanted.min_pending or wanted.min_ack_pending:
            pending = 0 < wanted.min_pending <= len(self.ahead())
            return pending or 0 < wanted.min_ack_pending <= len(self.pending)
        return True

    def _pinned(self, answer: Answer) -> Answer:
        if self.config.get("priority_policy") != "pinned_client":
            return answer
        self.pin = self.pin or Name()
        return answer._replace(headers=(*answer.headers, ("Nats-Pin-Id", self.pin)))

    # -- acks

    def ack(self, seq: int, number: int, word: bytes, now: float) -> None:
        kind, _, why = word.partition(b" ")
        if seq in self.pending and kind in (b"-NAK", b"+TERM"):
            name, event = ("MSG_NAKED", "nak") if kind == b"-NAK" else ("MSG_TERMINATED", "terminated")
            reason = {"reason": why.decode()} if why and kind == b"+TERM" else {}
            self._tell(name, event, seq, {"consumer_seq": number, **reason})
        if kind in (b"", b"+ACK", b"+OK", b"+TERM"):
            self._done(seq, number)
        elif seq in self.pending and kind == b"-NAK":
            delay = _delay(word[4:].strip())
            if delay:
                if self.stream.rules.progress_takes_back:
                    self.again = [one for one in self.again if one != seq]
                self.pending[seq].due = now + delay
            elif seq not in self.again:
                self.again.append(seq)
                self.pending[seq].due = math.inf
        elif (
            seq in self.pending and word == b"+WPI" and (self.stream.rules.progress_takes_back or seq not in self.again)
        ):
            self.again = [one for one in self.again if one != seq]
            self.pending[seq].due = now + self._wait(self.counts[seq])

    def _tell(self, name: str, event: str, seq: int, more: dict[str, Any]) -> None:
        told = {"type": f"io.nats.jetstream.advisory.v1.{event}", "id": ANY, "timestamp": ANY, "domain": MAYBE}
        told |= {"stream": self.stream.name, "consumer": self.name, "stream_seq": seq, "deliveries": self.counts[seq]}
        where = f"$JS.EVENT.ADVISORY.CONSUMER.{name}.{self.stream.name}.{self.name}"
        self.told.append(Answer("", (), told | more, where))

    def _done(self, seq: int, number: int) -> None:
        if self.acks == "all":
            if number <= self.floor[0] or seq <= self.floor[1]:
                return
            self._forget([one for one in self.pending if one <= seq])
            if self.stream.rules.floor_at_cursor:
                number = min((one.consumer_seq for one in self.pending.values()), default=self.delivered[0] + 1) - 1
            self._raise_floor((number, seq))
            return
        self._settle(seq)

    def _settle(self, seq: int) -> None:
        """This message waits no more."""
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

    def reset(self, seq: int) -> dict[str, Any]:
        """Begins again at a sequence, or behind the ack floor. The info after that. Raises Unknown."""
        if not seq and self.floor_loose and self.floor[1] != self._acked:
            raise Unknown
        self.next_seq = seq or self.floor[1] + 1
        self.delivered = self.floor = (0, self.next_seq - 1)
        self.pending.clear()
        self.counts.clear()
        self.again.clear()
        if self.config["deliver_policy"] == "last_per_subject":
            self.lasts = [seq for seq in self._newest() if seq >= self.next_seq]
        self.marks.add(0)
        told = self.info()
        if self.target:  # it may have begun to deliver
            told |= dict.fromkeys(("delivered", "ack_floor", "num_ack_pending", "num_pending", "num_redelivered"), ANY)
        return told

    def _forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.pending.pop(seq, None)
            self.counts.pop(seq, None)
            if seq in self.again:
                self.again.remove(seq)
        self.stream.unneeded(seqs)

    def needs(self, message: Message) -> bool:
        """True when it is still to be delivered or acked here, which interest retention keeps it for."""
        return message.seq in self.pending or message in self.ahead()

    def gone(self, seqs: list[int]) -> None:
        """Messages that were removed from the stream."""
        most = self.config.get("max_ack_pending", 0)
        held = bool(self.target) and 0 < most <= len(self.pending)
        if any(seq in self.pending for seq in seqs):
            self.unsure |= self.acks == "all" or not self.stream.rules.removal_exact
        elif self.again and not seqs:
            self.unsure |= not self.stream.rules.removal_exact
        for seq in seqs:
            if seq in self.again:
                self.again.remove(seq)
            self._settle(seq)
        if seqs or self.floor[1] < self.stream.first_seq - 1:  # a purge may go beyond what there is
            self._raise_floor(self.floor, loose=True)
        self.asleep |= held and len(self.pending) < most and not self.stream.rules.removal_wakes

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
                self.exhausted.add(seq)
                self._tell("MAX_DELIVERIES", "max_deliver", seq, {})
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
        if self.unsure:
            raise Unknown
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
        if self.exhausted and not self.stream.rules.given_up_settled:
            told |= {"ack_floor": ANY, "num_redelivered": ANY}
        if self.target:
            told["push_bound"] = True
        if groups := self.config.get("priority_groups"):
            told["priority_groups"] = [self._group_info(one) for one in groups]
        if self.paused:
            told |= {"paused": True, "pause_remaining": ANY}
        return told

    def _group_info(self, group: str) -> dict[str, Any]:
        if self.pin is None:
            return {"group": group, "pinned_ts": MAYBE}
        return {"group": group, "pinned_client_id": self.pin, "pinned_ts": ANY}


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
    return Pull(**{"batch": 1} | {key: value for key, value in asked.items() if key in Pull._fields and value})


def _delay(text: bytes) -> float:
    """Seconds of a NAK's delay."""
    if text.startswith(b"{"):
        return float(json.loads(text).get("delay", 0)) / NANO
    found = re.fullmatch(rb"(\d+)(ms|s|h)", text)
    return int(found[1]) * {b"ms": 0.001, b"s": 1.0, b"h": 3600.0}[found[2]] if found else 0.0
