"""`Answers` renders and sends what a publisher is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    LeavingError,
    NotLeaderError,
    RaftError,
    StorageFullError,
)
from jetcluster.stream.acks import PubAcks

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
TOO_MANY_REQUESTS: Final = b"NATS/1.0 429 Too Many Requests\r\n\r\n"

_TOO_MANY: Final = errors.by_code(10167)
_FULL: Final = errors.by_code(10077, err="no space left on device")
_TOO_LARGE: Final = errors.by_code(errors.MESSAGE_TOO_LARGE)
_FAILED: Final = errors.by_code(10008)

_ACKS: Final = b"$JS.ACK."
"""An empty message there is an acknowledgement, which this stream has no right to give: the reply subject is that of a
delivery that came here."""


class RefusedError(RaftError):
    """There is no room for what is to be proposed: `error` is what the publisher is told."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error
        self.blame, self.retriable = error.blame, error.retriable


class Publisher(Protocol):
    """The part of a `Bus` that tells publishers something."""

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int: ...

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None: ...


class Answers:
    def __init__(self, bus: Publisher, acks: PubAcks, *, no_ack: bool = False) -> None:
        self.bus = bus
        self.acks = acks
        self.no_ack = no_ack
        """`no_ack` of the stream's configuration; set it when that changes."""
        self.refused = 0
        """Messages refused since the start (monitoring)."""

    def note(self, reply: bytes) -> None:
        """The empty answer to a message of an atomic batch that is not complete."""
        if reply and not self.no_ack and not reply.startswith(_ACKS):
            self.bus.publish(reply)

    def refuse(self, replies: Sequence[bytes], error: ApiError) -> None:
        self._refuse(replies, self.acks.error(error), b"")

    def too_many(self, replies: Sequence[bytes]) -> None:
        self._refuse(replies, self.acks.error(_TOO_MANY), TOO_MANY_REQUESTS)

    def not_proposed(self, replies: Sequence[bytes], error: RaftError) -> None:
        """Answers for what could not be proposed, and so was not stored here: `ingest` says what each reason is told
        as."""
        if isinstance(error, LeavingError):
            self._refuse(replies, b"", NO_RESPONDERS)
        elif isinstance(error, NotLeaderError):
            # Not a word, it would be a lie: the publisher's node may know of the next leader, too, which has taken the
            # same message.
            self.refused += len(replies)
        elif isinstance(error, BackpressureError):
            self.too_many(replies)
        else:
            self.refuse(replies, self.error_of(error) or _FAILED)

    @staticmethod
    def error_of(error: RaftError) -> ApiError | None:
        """Error that a publisher is told; None when it is not to be told in words."""
        if isinstance(error, LeavingError | NotLeaderError):
            return None
        if isinstance(error, BackpressureError):
            return _TOO_MANY
        if isinstance(error, RefusedError):
            return error.error
        if isinstance(error, EntryTooLargeError):
            return _TOO_LARGE
        return _FULL if isinstance(error, StorageFullError) else _FAILED

    def _refuse(self, replies: Sequence[bytes], body: bytes, headers: bytes) -> None:
        self.refused += len(replies)
        if self.no_ack:
            return
        for reply in replies:
            if reply and (body or not reply.startswith(_ACKS)):
                self.bus.publish(reply, body, b"", headers)
