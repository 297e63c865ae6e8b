"""The JetStream limits of an account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import by_code
from jetcluster.records import dataclass

NO_LIMITS: Final = 10120
FARTHEST_SEQ: Final = (1 << 63) - 1
"""The highest sequence to which a purge, archive, upstream or configuration may take a stream: as many again are left
for publishing, so the 64 bits of a sequence are never exhausted."""

_TIER: Final = re.compile(r"R([1-9][0-9]?)")


def tier_replicas(name: str) -> int:
    """Returns the number of replicas of the streams in a tier of this name; 0 for a name that no stream's tier has."""
    found = _TIER.fullmatch(name)
    return int(found[1]) if found else 0


@dataclass(slots=True, frozen=True)
class AccountLimits:
    """Bytes and counts, where -1 is unlimited, and nanoseconds (`duplicate_window_max`), where 0 is."""

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
    """`jetstream { limits { max_ack_pending } }`, for each consumer; 0 is unlimited."""
    max_request_batch: int = 0
    """`jetstream { limits { max_request_batch } }`, for `max_batch` of a consumer; 0 is unlimited."""
    default_max_consumers: int = 0
    """`jetstream { limits { default_max_consumers } }`, for a stream if neither it nor the account has a number."""
    replicas: int = 0
    """In the limits of a tier: its number of replicas. The bytes of a stream then count once, not per replica."""
    tiers: Mapping[str, AccountLimits] | None = None
    """Limits by `R1`, `R3` and so on, for an account with tiers. The other fields then apply to all tiers together."""

    def of(self, replicas: int) -> AccountLimits:
        """Returns the limits of streams with this number of replicas: the tier's, or those of the whole account."""
        return (self.tiers or {}).get(f"R{replicas}", self)

    def tier(self, replicas: int) -> AccountLimits:
        """Returns the same as `of`. Raises ApiError 10120 when the account has tiers, but not this one."""
        found = self.of(replicas)
        if self.tiers is not None and found is self:
            raise by_code(NO_LIMITS)
        return found

    def to_wire(self, *, duplicate_window_max: bool = False) -> dict[str, Any]:
        """Returns `limits` of `$JS.API.INFO`. Strict clients refuse `duplicate_window_max`, as nats-server has none."""
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
