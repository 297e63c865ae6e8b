"""What the delivery of consumers asks of the rooms around it: types only, each with a twin in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jetcluster.consumer.turn import Value
from jetcluster.protocol.bus import Bus, Outgoing
from jetcluster.store.api import Columns, Msg


class DeliveryBus(Bus, Protocol):
    """`Bus` with what deliveries need besides."""

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        """Routes messages to the takers of `target`, in order; the takers see the messages' own subjects. Returns how
        many takers the last one found. (A consumer's delivery: routed by reply or deliver_subject.) Permissions to
        publish do not apply. In a queue group a member that reads goes before one that is far behind."""
        ...

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """True when a member of queue group `queue` would get what is published to `subject`."""
        ...

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when somebody begins, or ceases, to take the literal `subject`, here or at another node: in the
        middle of that change, so the callback only makes a note. Returns what ends the watch."""
        ...


class Messages(Protocol):
    """The store, as deliveries read it. All of it may raise DamagedError."""

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def removals(self) -> int:
        """Counts up with every message removed, for whatever reason: what was counted before may be less now."""
        ...

    def next_seqs(self, filters: Sequence[bytes], seq: int, want: int) -> list[int]:
        """The first `want` sequences at or above `seq` whose subject matches one of `filters`, ascending."""
        ...

    def read(self, seqs: Sequence[int]) -> list[Msg]:
        """The messages at the ascending `seqs`; those no longer stored are left out."""
        ...

    def read_columns(self, seqs: Sequence[int]) -> Columns:
        """As `read`, several times cheaper."""
        ...

    def count_any(self, filters: Sequence[bytes], seq: int) -> int:
        """Messages at or above `seq` that match one of `filters`, which do not overlap."""
        ...

    def last_seqs_any(self, filters: Sequence[bytes], up_to: int | None = None) -> list[int]:
        """The last sequence (at or below `up_to`) of every subject that matches one of `filters`, ascending."""
        ...

    def seq_at_time(self, ts: int) -> int:
        """See `store.api.MessageStore`."""
        ...


class Turns(Protocol):
    """The way of an owner into the stream's log: ops of one loop turn, of all consumers of a stream on this node,
    become one CONSUMER_TURN (`consumer.operation_log`)."""

    def submit(self, kind: int, value: Value, token: object = None) -> None:
        """Adds an op of this owner. When it was applied here, `ConsumerOwner.applied(kind, value, outcome, token)` is
        called, in order of submission; when turns were lost, `ConsumerOwner.reset()` once instead, and none of the ops
        submitted before it will ever be applied."""
        ...


class Wakes(Protocol):
    """The one timer and the end-of-turn hook of all owners of a stream on this node."""

    def soon(self) -> None:
        """`ConsumerOwner.run` is called at the end of this loop turn (once, however often asked)."""
        ...

    def at(self, ns: int) -> None:
        """`ConsumerOwner.tick(now)` is called when the wall clock reaches `ns`; only the earliest time asked for since
        the last tick counts."""
        ...
