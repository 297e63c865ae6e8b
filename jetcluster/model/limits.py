"""The limits of an account on JetStream, as the server's configuration gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jetcluster.errors import by_code

NO_LIMITS: Final = 10120
FARTHEST_SEQ: Final = (1 << 63) - 1
"""No purge, archive, upstream or configuration takes a stream beyond this sequence: as many again are left to publish,
so the end of what a sequence can be is never reached."""


_TIER: Final = re.compile(r"R([1-9][0-9]?)")


def tier_replicas(name: str) -> int:
    """The replicas of the streams that are in a tier of this name; 0 for one that no stream can be in."""
    found = _TIER.fullmatch(name)
    return int(found[1]) if found else 0


@dataclass(slots=True, frozen=True)
class AccountLimits:
    """-1 is unlimited; bytes, counts, and nanoseconds (`duplicate_window_max`, where 0 is unlimited)."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    duplicate_window_max: int = 0
    server_max_ack_pending: int = 0
    """`jetstream { limits { max_ack_pending } }`: of every consumer; 0 is unlimited."""
    max_request_batch: int = 0
    """`jetstream { limits { max_request_batch } }`: largest `max_batch` of a consumer; 0 is unlimited."""

    default_max_consumers: int = 0
    """`jetstream { limits { default_max_consumers } }`: of a stream, where neither it nor the account says a number."""
    replicas: int = 0
    """These are the limits of a tier: of the streams with so many replicas, whose bytes count once."""
    tiers: Mapping[str, AccountLimits] | None = None
    """`R1`, `R3` and so on, for an account that has tiers. The other fields are then those of all tiers together."""

    def of(self, replicas: int) -> AccountLimits:
        """The limits of streams with so many replicas and of their consumers: the tier's, or without one those of all
        tiers together."""
        return (self.tiers or {}).get(f"R{replicas}", self)

    def tier(self, replicas: int) -> AccountLimits:
        """As `of`. Raises ApiError 10120 where the account may have no such stream."""
        found = self.of(replicas)
        if self.tiers is not None and found is self:
            raise by_code(NO_LIMITS)
        return found

    def to_wire(self, *, duplicate_window_max: bool = False) -> dict[str, Any]:
        """The `limits` object of `$JS.API.INFO`. `duplicate_window_max` is in the specification and not in nats-server,
        and strict clients refuse a field that they do not know."""
        return {
            "max_memory": self.max_memory,
            "max_storage": self.max_storage,
            "max_streams": self.max_streams,
            "max_consumers": self.max_consumers,
            "max_ack_pending": self.max_ack_pending,
            "memory_max_stream_bytes": self.memory_max_stream_bytes,
            "storage_max_stream_bytes": self.storage_max_stream_bytes,
            "max_bytes_required": self.max_bytes_required,
            **({"duplicate_window_max": self.duplicate_window_max} if duplicate_window_max else {}),
        }


UNLIMITED = AccountLimits()
