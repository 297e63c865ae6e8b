"""`BucketHost`: what the object service of a bucket gets from the replica that leads the bucket's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol.bus import Bus, Callback
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.acks import PubAcks

Done = Callable[[int | ApiError | None], None]
"""The result of a command's apply; None when the leadership was lost and nobody knows."""


class ObjectLimits(NamedTuple):
    uploads: int = 1000
    """Most uploads of one bucket at a time."""
    idle: float = 600.0
    """Seconds without a chunk after which an upload is dropped."""
    held_bytes: int = 32 << 20
    """Most bytes of one bucket in chunks that wait until the fate of earlier ones is known."""


class BucketHost:
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
        limits: ObjectLimits,
        domain: str = "",
    ) -> None:
        self.store = store
        self.bus = bus
        self.clock = clock
        self.call_soon = call_soon
        """The loop's."""
        self.publish = publish
        """The ingest's `on_message`; the ingest's answers go through `Bucket.replies`."""
        self.propose = propose
        """Puts a command into the log, False when it could not; `Done` comes in a later turn of the loop."""
        self.seq_of_id = seq_of_id
        """See `StreamMachine.seq_of_id`."""
        self.damaged = damaged
        self.limits = limits
        self.acks = PubAcks(stream, domain or None)
        self.keys: dict[str, Any] = {"stream": stream} | ({"domain": domain} if domain else {})
        """Beginning of a PubAck of the stream."""

    def tell(self, reply: bytes, body: bytes, headers: bytes = b"") -> None:
        if reply:
            self.bus.publish(reply, body, b"", headers)

    def refuse(self, reply: bytes, error: ApiError) -> None:
        """As a PubAck with an error: publishers look for one."""
        self.tell(reply, self.acks.error(error))
