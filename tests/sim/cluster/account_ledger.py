"""The streams, consumers and bytes of an account with limits, by what was asked for, and the error that comes next
(`Ledger`)."""

from __future__ import annotations

from dataclasses import dataclass, field

MANY_STREAMS = "400 10027 maximum number of streams reached"
MANY_CONSUMERS = "400 10026 maximum consumers limit reached"
NO_MEMORY = "500 10028 insufficient memory resources available"
NO_STORAGE = "500 10047 insufficient storage resources available"
STREAM_TOO_BIG = "400 10122 stream max bytes exceeds account limit max stream bytes"
"""Errors as clients get them."""
STREAMS, CONSUMERS, MEMORY, FILES = 3, 3, 300_000, 900_000
MEMORY_STREAM, FILE_STREAM = 200_000, 400_000
"""Limits of the account SMALL; STRICT has those of files, and requires max_bytes."""
ACCOUNTS = f"""
  SMALL {{
    jetstream: {{
      max_streams: {STREAMS}, max_consumers: {CONSUMERS}, max_mem: {MEMORY}, max_file: {FILES},
      mem_max_stream_bytes: {MEMORY_STREAM}, file_max_stream_bytes: {FILE_STREAM}
    }}
    users: [ {{ user: small, password: small }} ]
  }}
  STRICT {{
    jetstream: {{ max_bytes_required: true, max_mem: 0, max_file: {FILES}, file_max_stream_bytes: {FILE_STREAM} }}
    users: [ {{ user: strict, password: strict }} ]
  }}
  ZERO {{
    jetstream: {{ max_streams: 0, max_consumers: 0, max_mem: 0 }}
    users: [ {{ user: zero, password: zero }} ]
  }}
"""
"""More lines of `accounts`."""


@dataclass(slots=True)
class Kept:
    """One stream of the account."""

    storage: str
    replicas: int
    max_bytes: int
    max_consumers: int = -1
    consumers: set[str] = field(default_factory=set)

    @property
    def reserved(self) -> int:
        """Bytes that count for the account."""
        return max(self.max_bytes, 0) * self.replicas


class Ledger:
    """The streams of the account SMALL, by what it asked for, and which error comes next."""

    def __init__(self) -> None:
        self.streams: dict[str, Kept] = {}

    def left(self, storage: str, but: str = "") -> int:
        """Bytes that nobody else has reserved."""
        others = sum(one.reserved for name, one in self.streams.items() if one.storage == storage and name != but)
        return (MEMORY if storage == "memory" else FILES) - others

    def refusal(self, name: str, new: Kept) -> str:
        """The error of a stream that is made, or of one that is changed; "" for none."""
        known = name in self.streams
        if new.max_bytes > (MEMORY_STREAM if new.storage == "memory" else FILE_STREAM):
            return STREAM_TOO_BIG
        if new.max_consumers > CONSUMERS:
            return MANY_CONSUMERS
        if not known and len(self.streams) >= STREAMS:
            return MANY_STREAMS
        least = 0 if known else new.replicas  # one that is new is to have room for a byte
        if max(new.reserved, least) > self.left(new.storage, name):
            return NO_MEMORY if new.storage == "memory" else NO_STORAGE
        return ""

    def refusal_of_consumer(self, stream: str, name: str) -> str:
        found = self.streams[stream]
        most = min(one for one in (found.max_consumers, CONSUMERS) if one > 0)
        return MANY_CONSUMERS if name not in found.consumers and len(found.consumers) >= most else ""

    @property
    def numbers(self) -> dict[str, int]:
        """Fields of INFO. Reserved bytes are those of one replica there, as nats-server tells them."""
        sums = {"streams": len(self.streams), "reserved_memory": 0, "reserved_storage": 0}
        for one in self.streams.values():
            sums["reserved_memory" if one.storage == "memory" else "reserved_storage"] += max(one.max_bytes, 0)
        return {**sums, "consumers": sum(len(one.consumers) for one in self.streams.values())}
