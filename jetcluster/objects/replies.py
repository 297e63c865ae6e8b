"""`BucketReplies`: hands the object service what publishers of its own chunks are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from jetcluster.stream.answers import Publisher

_OWN: Final = 0x20
"""First byte of a token. No subject of a client can begin with a blank."""

Answered = Callable[[bytes, bytes, bytes], None]
"""(token, headers, body) of what a publisher is told."""


class BucketReplies:
    """The `Publisher` of a bucket's ingest. `token` gives a reply subject that `answered` is called for, from inside
    apply: it must only note what it is told."""

    def __init__(self, bus: Publisher, answered: Answered) -> None:
        self._bus = bus
        self._answered = answered
        self._numbers = count(1)

    def token(self) -> bytes:
        return b" %d" % next(self._numbers)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        if subject[0] == _OWN:
            self._answered(subject, headers, payload)
            return 1
        return self._bus.publish(subject, payload, reply, headers)

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        others: list[tuple[bytes, bytes]] = []
        for message in messages:
            if message[0][0] == _OWN:
                self._answered(message[0], b"", message[1])
            else:
                others.append(message)
        if others:
            self._bus.publish_many(others)
