"""Messages in the answer to a Direct Get: header blocks whose last fields are the server's own.

A block is `NATS/1.0`, the stored fields, then `Nats-Stream`, `Nats-Subject`, `Nats-Sequence`, `Nats-Time-Stamp`,
`Nats-Num-Pending`, `Nats-Last-Sequence`. Stored fields may have the same names, so the search begins at the end.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Final

from jetcluster.client.connection import Gather
from jetcluster.errors import PeerError

PLAIN: Final = b"NATS/1.0\r\n"
OWN_FIELDS: Final = b"\r\nNats-Stream: "
_SEQUENCE: Final = b"\r\nNats-Sequence: "
_PENDING: Final = b"\r\nNats-Num-Pending: "


class MissingFieldError(PeerError, ValueError):
    """A frame lacks a field that every message of a stream has."""


def number(head: bytes, name: bytes) -> int:
    """Returns the last field `name` (b"\\r\\nName: ") as a number. Raises MissingFieldError."""
    at = head.rfind(name)
    if at < 0:
        raise MissingFieldError(f"no{name.decode()}in {head[:200]!r}")
    at += len(name)
    try:
        return int(head[at : head.index(b"\r\n", at)])
    except ValueError as error:
        raise MissingFieldError(f"{name.decode().strip()} of {head[:200]!r} is no number") from error


def sequence(head: bytes) -> int:
    """Raises MissingFieldError."""
    return number(head, _SEQUENCE)


def pending(head: bytes) -> int:
    """Returns the number of messages that follow this one. Raises MissingFieldError."""
    return number(head, _PENDING)


def answering_stream(head: bytes) -> str:
    """Returns the stream whose replica answered, which may be a mirror. Raises MissingFieldError."""
    at = head.rfind(OWN_FIELDS)
    if at < 0:
        raise MissingFieldError(f"no Nats-Stream in {head[:200]!r}")
    at += len(OWN_FIELDS)
    return head[at : head.index(b"\r\n", at)].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages in the order of their sequences, two objects each."""

    heads: list[bytes]
    payloads: list[bytes]

    @property
    def count(self) -> int:
        return len(self.heads)

    @property
    def first(self) -> int:
        """The sequence of the first message. Raises MissingFieldError, and IndexError where there is none."""
        return sequence(self.heads[0])

    @property
    def last(self) -> int:
        return sequence(self.heads[-1])

    def sequences(self) -> list[int]:
        """Returns the sequences of all messages. Raises MissingFieldError."""
        return list(map(sequence, self.heads))

    @property
    def stream(self) -> str:
        """The stream whose replica answered, which may be a mirror."""
        return answering_stream(self.heads[-1])

    def is_whole(self, left: int, last: int) -> bool:
        """Returns whether no message is missing between the first and the last frame of an answer: the pending count
        goes down by one per message, and the end has the same count (`left`) and last sequence (`last`)."""
        end = pending(self.heads[-1])
        return pending(self.heads[0]) - end == self.count - 1 and left == end and last == self.last

    def below(self, seq: int) -> MessageBatch:
        """Returns the messages with smaller sequences."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if sequence(self.heads[middle]) < seq:
                low = middle + 1
            else:
                high = middle
        return MessageBatch(self.heads[:low], self.payloads[:low])


class ColumnBatch:
    """Messages in the order of their sequences, as compiled loops have put them into columns."""

    def __init__(self, columns: Any) -> None:
        """`columns` are of the compiled `Columns`, which have the whole answer. Raises MissingFieldError."""
        if columns.fault:
            raise MissingFieldError(columns.fault)
        self.count: int = columns.count
        self.stream: str = columns.stream.decode(errors="replace")
        self._pending = columns.first_pending, columns.last_pending
        self.seqs, self.times, self.subjects, self.blocks, self.payloads = columns.finish()
        """Sequences and nanoseconds as 64-bit numbers of this machine; pairs (offsets of 32 bits, bytes). A message
        without stored headers has an empty block. Only the first `count` are messages of this batch."""

    @property
    def first(self) -> int:
        """The sequence of the first message."""
        return self._numbers[0]

    @property
    def last(self) -> int:
        return self._numbers[self.count - 1]

    def sequences(self) -> list[int]:
        """Returns the sequences of all messages."""
        return self._numbers[: self.count].tolist()

    @property
    def _numbers(self) -> memoryview:
        return memoryview(self.seqs).cast("q")

    def is_whole(self, left: int, last: int) -> bool:
        """As `MessageBatch.is_whole`. Raises MissingFieldError."""
        first, end = self._pending
        if first < 0 or end < 0:
            raise MissingFieldError("a message without Nats-Num-Pending")
        return first - end == self.count - 1 and left == end and last == self.last

    def below(self, seq: int) -> ColumnBatch:
        """Returns the messages with smaller sequences: this batch, cut."""
        self.count = bisect.bisect_left(self._numbers, seq, 0, self.count)
        return self


Batch = MessageBatch | ColumnBatch


def taken(gather: Gather) -> Batch:
    """Returns the messages of an answer that has ended. Raises MissingFieldError."""
    if gather.columns is None:
        return MessageBatch(gather.heads, gather.payloads)
    if gather.heads and not gather.columns.fault:
        raise MissingFieldError(f"a message that compiled loops do not take: {gather.heads[0][:200]!r}")
    return ColumnBatch(gather.columns)
