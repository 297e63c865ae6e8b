"""`BucketHost`: the services of the replica that leads a bucket's stream, for the bucket's object service.

`BucketReplies`: hands the object service the ingest's answers to the chunks that it publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol.bus import Bus, Callback
from jetcluster.records import NamedTuple
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.lead.answers import PubAcks, Publisher

Done = Callable[[int | ApiError | None], None]
"""Takes the result of a command's apply; None when the leadership was lost and the result is unknown."""


class ObjectLimits(NamedTuple):
    """Limits of one bucket."""

    uploads: int = 1000
    """Most uploads at a time."""
    idle: float = 600.0
    """Seconds without a chunk after which an upload is dropped."""
    held_bytes: int = 32 << 20
    """Most bytes of chunks that wait until the outcome of earlier ones is known."""


class BucketHost:
    """The services of the leading replica."""

    def __init__(
        self,
        stream: str,
        store: BlockStore,
        bus: Bus,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], Any],
        publish: Callback,
        propose: Callable[[bytes, Done], bool],
        seq_of_id: Callable[[bytes], int | None],
        damaged: Callable[[DamagedError], None],
        limits: Callable[[], ObjectLimits],
        domain: str = "",
    ) -> None:
        self.store = store
        self.bus = bus
        self.clock = clock
        self.call_soon = call_soon
        self.publish = publish
        """The ingest's `on_message`; its answers go through `Bucket.replies`."""
        self.propose = propose
        """Appends a command to the log, False when that failed; `Done` is called in a later turn of the loop."""
        self.seq_of_id = seq_of_id
        """`StreamMachine.seq_of_id`."""
        self.damaged = damaged
        self.limits = limits
        self.acks = PubAcks(stream, domain or None)
        self.keys: dict[str, Any] = {"stream": stream} | ({"domain": domain} if domain else {})
        """First fields of the stream's PubAcks."""

    def tell(self, reply: bytes, body: bytes, headers: bytes = b"") -> None:
        if reply and headers:
            self.bus.publish(reply, body, b"", headers)
        elif reply:
            self.bus.publish_many([(reply, body)])

    def refuse(self, reply: bytes, error: ApiError) -> None:
        """Refuse with an error PubAck, which publishers expect."""
        self.tell(reply, self.acks.error(error))


_TOKEN_START: Final = 0x20
"""First byte of a token. No client's subject can begin with a blank."""

Answered = Callable[[bytes, bytes, bytes], None]
"""Takes (token, headers, body) of an answer to a publisher."""


class BucketReplies:
    """The `Publisher` of a bucket's ingest: answers to a `token` go to `answered`, in apply, which only notes them."""

    def __init__(self, bus: Publisher, answered: Answered) -> None:
        self._bus = bus
        self._answered = answered
        self._numbers = count(1)

    def token(self) -> bytes:
        return b" %d" % next(self._numbers)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        if subject[0] == _TOKEN_START:
            self._answered(subject, headers, payload)
            return 1
        return self._bus.publish(subject, payload, reply, headers)

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        others: list[tuple[bytes, bytes]] = []
        for message in messages:
            if message[0][0] == _TOKEN_START:
                self._answered(message[0], b"", message[1])
            else:
                others.append(message)
        if others:
            self._bus.publish_many(others)
