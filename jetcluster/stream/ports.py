"""The store as the state machine sees it: messages plus the small things that live and commit beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from jetcluster.store.api import MessageStore


class MachineStore(MessageStore, Protocol):
    """All of it goes into the same open write batch as the messages, so after a crash the messages, the machine's
    state and the side tables are those of one applied index."""

    def enforce(
        self, max_msgs: int, max_bytes: int, max_per_subject: int, touched_subjects: Sequence[bytes] | None
    ) -> int:
        """Removes the oldest messages until the limits hold (0: no limit), per subject first; only
        `touched_subjects` are looked at for the latter, None means all. Returns how many went."""
        ...

    def expire(self, before_ts: int) -> int:
        """Removes every message with a time < `before_ts`; returns how many."""
        ...

    def load_machine_state(self) -> bytes | None: ...

    def save_machine_state(self, state: bytes) -> None: ...

    def side_put(self, kind: int, key: bytes, value: bytes) -> None: ...

    def side_delete(self, kind: int, key: bytes) -> None: ...

    def side_scan(self, kind: int) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) in key order."""
        ...


SIDE_CONFIG = 1
"""One row, key b"": the configuration in force, as in UPDATE_CONFIG."""
SIDE_DEDUPE = 2
"""Rows of `dedupe.DedupeWindow`."""
