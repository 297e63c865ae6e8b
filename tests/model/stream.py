"""A stream's messages, and what limits, deletions and purges leave of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.model.answers import MAYBE, ZERO_TIME, Answer, Stamp
from tests.model.rules import Rules
from tests.model.subjects import matches, transformed

if TYPE_CHECKING:
    from tests.model.consumer import Consumer

Headers = tuple[tuple[str, str], ...]
NANO = 1e9
BATCH_PATIENCE = 10.0
"""Seconds for which an open batch waits for its next message."""


@dataclass(slots=True)
class Message:
    seq: int
    subject: str
    headers: Headers
    data: bytes
    at: float
    """Seconds, by the clock of whoever plays the history."""
    ttl: float | None = None
    """Seconds; infinite for one that stays whatever the stream's age limit; None where the message does not say."""
    stamp: Stamp = field(default_factory=Stamp)

    @property
    def block(self) -> bytes:
        """Its headers as they are stored."""
        if not self.headers:
            return b""
        return b"NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in self.headers).encode() + b"\r\n"

    def header(self, key: str) -> str | None:
        return next((value for name, value in self.headers if name == key), None)

    def size(self, storage: str) -> int:
        """Bytes that count: documented in docs of both servers' limits."""
        block = len(self.block)
        if storage == "memory":
            return 16 + len(self.subject) + block + len(self.data)
        return 22 + len(self.subject) + (block + 4 if block else 0) + len(self.data) + 8


@dataclass(slots=True)
class Stream:
    config: dict[str, Any]
    rules: Rules
    created: Stamp = field(default_factory=Stamp)
    messages: dict[int, Message] = field(default_factory=dict)
    """By sequence, ascending."""
    last_seq: int = 0
    last_stamp: Stamp | None = None
    last_id: str = ""
    removed: bool = False
    """Messages were removed: what ack subjects say is left is an estimate then, but for 0 (docs/consumers.md)."""
    begun: bool = False
    """It had a message, or was purged, or begins at a sequence."""
    ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Sequence and time of known messages."""
    batches: dict[str, list[Any]] = field(default_factory=dict)
    """Messages of open atomic batches, each with the time at which it came."""
    consumers: dict[str, Consumer] = field(default_factory=dict)
    republished: list[Answer] = field(default_factory=list, repr=False)

    @classmethod
    def new(cls, config: dict[str, Any], rules: Rules) -> Stream:
        first = config.get("first_seq", 0)
        return cls(config, rules, last_seq=max(0, first - 1), begun=first > 1 or (first == 1 and rules.first_of_one))

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def first_seq(self) -> int:
        if self.messages:
            return min(self.messages)
        return self.last_seq + 1 if self.begun else 0

    @property
    def bytes(self) -> int:
        return sum(one.size(self.config["storage"]) for one in self.messages.values())

    def of(self, subject: str) -> list[Message]:
        """Messages whose subject matches, ascending."""
        return [one for one in self.messages.values() if matches(subject, one.subject)]

    def last_of(self, subject: str) -> int:
        """The last sequence of a subject; 0 for none."""
        if subject == ">" and not self.rules.last_behind_deleted and self.last_seq not in self.messages:
            return 0
        return max((one.seq for one in self.of(subject)), default=0)

    # -- changes

    def append(self, subject: str, headers: Headers, data: bytes, at: float, ttl: float | None = None) -> Message:
        before = self.last_of(subject)
        drops = self.config["retention"] == "interest" and not self.rules.unwanted_republished
        self.last_seq += 1
        self.begun = True
        message = Message(self.last_seq, subject, headers, data, at, ttl)
        if not drops or self._wanted(message):
            self._republish(message, before)
        self.messages[message.seq] = message
        self.last_stamp = message.stamp
        self.last_id = message.header("Nats-Msg-Id") or ""
        if self.last_id:
            self.ids[self.last_id] = message.seq, at
        return message

    def _wanted(self, message: Message) -> bool:
        return any(each.wants(message) for each in self.consumers.values())

    def _republish(self, message: Message, before: int) -> None:
        """`before`: the last sequence of its subject until now."""
        wanted = self.config.get("republish")
        target = transformed(wanted.get("src") or ">", wanted["dest"], message.subject) if wanted else None
        if wanted is None or target is None:
            return
        bare = wanted.get("headers_only")
        own: tuple[tuple[str, Any], ...] = (
            ("Nats-Stream", self.name),
            ("Nats-Subject", message.subject),
            ("Nats-Sequence", str(message.seq)),
            ("Nats-Time-Stamp", message.stamp),
            ("Nats-Last-Sequence", str(before)),
        )
        size = (("Nats-Msg-Size", str(len(message.data))),) if bare else ()
        self.republished.append(Answer("", (*message.headers, *own, *size), b"" if bare else message.data, target))

    def remove(self, seqs: list[int]) -> int:
        self.removed |= bool(seqs)
        for seq in seqs:
            del self.messages[seq]
        for consumer in self.consumers.values():
            consumer.gone(seqs)
        return len(seqs)

    def unneeded(self, seqs: list[int]) -> None:
        """Consumers are done with these messages, which go as the stream's retention has it."""
        kept = {seq for each in self.consumers.values() for seq in each.exhausted}
        found = [self.messages[seq] for seq in seqs if seq in self.messages and seq not in kept]
        if self.config["retention"] == "interest":
            found = [one for one in found if not any(each.needs(one) for each in self.consumers.values())]
        if self.config["retention"] != "limits":
            self.remove([one.seq for one in found])

    def limit(self, changed: str = "") -> None:
        """Removes what is over the limits; `changed`: only this subject may have too many."""
        most = self.config["max_msgs_per_subject"]
        if most > 0:
            for subject in [changed] if changed else {one.subject for one in self.messages.values()}:
                own = [one.seq for one in self.messages.values() if one.subject == subject]
                self.remove(own[: max(0, len(own) - most)])
        if self.config["discard"] == "new":
            return
        if self.config["max_msgs"] > 0:
            self.remove(sorted(self.messages)[: max(0, len(self.messages) - self.config["max_msgs"])])
        while 0 < self.config["max_bytes"] < self.bytes:
            self.remove([min(self.messages)])

    def ends(self, message: Message) -> float | None:
        """The time at which a message expires, or None."""
        if message.ttl is not None:
            return message.at + message.ttl
        return message.at + self.config["max_age"] / NANO if self.config["max_age"] else None

    def pass_time(self, now: float) -> None:
        for consumer in list(self.consumers.values()):
            consumer.pass_time(now)
        self.batches = {key: held for key, held in self.batches.items() if held[-1].at + BATCH_PATIENCE > now}
        window = self.config["duplicate_window"] / NANO
        self.ids = {key: (seq, at) for key, (seq, at) in self.ids.items() if at + window > now}
        gone = [one for one in self.messages.values() if (end := self.ends(one)) is not None and end <= now]
        gone.sort(key=lambda one: (self.ends(one), one.seq))
        for message in gone:
            self.remove([message.seq])
            marker = self.config.get("subject_delete_marker_ttl", 0)
            if marker and not self.of(message.subject) and not message.header("Nats-Marker-Reason"):
                headers = (
                    ("Nats-Marker-Reason", "MaxAge"),
                    ("Nats-TTL", f"{marker // 10**9}s"),
                    ("Nats-Rollup", "sub"),
                )
                end = self.ends(message) or now
                self.append(message.subject, headers, b"", end, marker / NANO)
                self.limit(message.subject)

    def deadlines(self) -> list[float]:
        """Moments at which time alone changes something."""
        window = self.config["duplicate_window"] / NANO
        ends = [end for one in self.messages.values() if (end := self.ends(one)) is not None]
        ends += [one.due for consumer in self.consumers.values() for one in consumer.pending.values()]
        ends += [held[-1].at + BATCH_PATIENCE for held in self.batches.values()]
        return ends + [at + window for _, at in self.ids.values()]

    # -- what is told of it

    def state(self, *, subjects: str = "", deleted: bool = False) -> dict[str, Any]:
        first = self.messages[min(self.messages)] if self.messages else None
        told: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "first_ts": first.stamp if first else ZERO_TIME,
            "last_seq": self.last_seq,
            "last_ts": self.last_stamp or ZERO_TIME,
            "consumer_count": len(self.consumers),
        }
        counts = Counter(one.subject for one in self.messages.values())
        if counts:
            told["num_subjects"] = len(counts)
        if subjects and (found := {key: n for key, n in counts.items() if matches(subjects, key)}):
            told["subjects"] = found
        holes = [seq for seq in range(self.first_seq, self.last_seq + 1) if seq not in self.messages]
        if not self.messages:
            holes = []
            if self.rules.holes_in_nothing and self.config["storage"] == "file":
                told |= {"num_deleted": MAYBE, "deleted": MAYBE}
        if holes:
            told["num_deleted"] = len(holes)
            if deleted:
                told["deleted"] = holes
        return told

    def info(self, **wanted: Any) -> dict[str, Any]:
        return {
            "config": self.config,
            "created": self.created,
            "state": self.state(**wanted),
            "domain": MAYBE,
            "cluster": MAYBE,
            "ts": MAYBE,
        }
