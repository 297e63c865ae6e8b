"""Messages in the answer to a Direct Get: header blocks whose last fields are the server's own.

A block is `NATS/1.0`, the stored fields, then `Nats-Stream`, `Nats-Subject`, `Nats-Sequence`, `Nats-Time-Stamp`,
`Nats-Num-Pending`, `Nats-Last-Sequence`. Stored fields may have the same names, so the search begins at the end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jetcluster.errors import PeerError

PLAIN: Final = b"NATS/1.0\r\n"
OWN_FIELDS: Final = b"\r\nNats-Stream: "
_SEQUENCE: Final = b"\r\nNats-Sequence: "
_PENDING: Final = b"\r\nNats-Num-Pending: "


class MessageBatch(NamedTuple):
    """Messages in the order of their sequences."""

    heads: list[bytes]
    payloads: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of header blocks and payloads."""
        return sum(map(len, self.heads)) + sum(map(len, self.payloads))


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
    return head[at : head.index(b"\r\n", at)].decode()


def position(heads: list[bytes], seq: int) -> int:
    """Returns the number of `heads`, which are in order, with a sequence below `seq`."""
    low, high = 0, len(heads)
    while low < high:
        middle = (low + high) // 2
        if sequence(heads[middle]) < seq:
            low = middle + 1
        else:
            high = middle
    return low


def is_whole(heads: list[bytes], left: int, last: int) -> bool:
    """Returns whether no message is missing between the first and the last frame of an answer: the pending count goes
    down by one per message, and the end has the same count (`left`) and last sequence (`last`)."""
    end = pending(heads[-1])
    return pending(heads[0]) - end == len(heads) - 1 and left == end and last == sequence(heads[-1])
