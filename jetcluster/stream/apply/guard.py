"""`RetentionGuard`: what the limits of a stream may remove while a consumer has yet to acknowledge it.

The guard is the consumer that the configuration names (`retention_guard`), so it is in the log, on every replica and in
backups like any other. Limits by age, number, bytes and subject remove nothing from its first unacknowledged message
on; without such a consumer, nothing at all. What somebody asks for wins: purges, deletions, rollups, `Nats-TTL`.

The messages that wait for the consumer have at most the guard's `max_bytes`, and none of them is older than its
`max_age`. Beyond that either publishes are refused (discard `new`), or the guard gives the oldest messages up, and the
limits go on as if they were acknowledged (`old`):

    side table 19   (empty key)   ->   u64 sequence below which messages are given up | u64 sequence below which
                                       they are counted | u64 messages given up | u64 time, nanoseconds (little-endian)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from jetcluster import errors
from jetcluster.errors import ApiError, DiskError
from jetcluster.model.retention_guard import GuardRules
from jetcluster.model.times import rfc3339
from jetcluster.records import NamedTuple
from jetcluster.store.block_store import BlockStore
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream.ports import SIDE_GUARD
from jetcluster.stream.rules import StreamRules

_ROW: Final = struct.Struct("<QQQQ")
_SLACK: Final = 8
"""The guard gives up an eighth of its bytes at a time, so that not every publish has to look how far."""
_FULL: Final = errors.by_code(10077, err="maximum bytes exceeded while messages wait for the retention guard")
_OLD: Final = errors.by_code(10077, err="maximum age exceeded of a message that waits for the retention guard")


class GuardRowError(DiskError):
    """The stored row has another version or is cut off."""


class Overrun(NamedTuple):
    """Messages that the guard gave up since the stream was created."""

    to: int = 0
    """Messages below this sequence are given up; 0 again when the guard is changed."""
    counted: int = 0
    """Messages below this sequence were given up at some time, and are counted."""
    messages: int = 0
    """Messages given up before they were acknowledged."""
    last: int = 0
    """Time of the command that gave up the last ones, Unix nanoseconds."""


class RetentionGuard:
    """The guard of one stream. Without one in its configuration limits are free."""

    def __init__(self, store: BlockStore, rules: StreamRules, floor_of: Callable[[str], int | None]) -> None:
        """`floor_of` returns the sequence up to which a consumer has acknowledged all, None when there is none. Raises
        GuardRowError."""
        self.rules = rules
        self._store = store
        self._floor_of = floor_of
        self._full = 0, 0
        """`kept_from`, and the bytes that waited, when they last were too many in this process: for monitoring only."""
        self._below_of = 0, 0
        self._below = 0
        """Bytes of the messages below `kept_from`, by it and the number of sequences without a message. That grows with
        each removal, and nothing else changes what lies below."""
        row = store.side_get(SIDE_GUARD, b"")
        if row is not None and len(row) != _ROW.size:
            raise GuardRowError(f"retention guard of {len(row)} bytes")
        self.overrun = Overrun(*_ROW.unpack(row)) if row is not None else Overrun()

    @property
    def floor(self) -> int | None:
        """Sequence up to which the consumer has acknowledged all; None without a guard, or without its consumer."""
        guard = self.rules.guard
        return None if guard is None else self._floor_of(guard.consumer)

    @property
    def kept_from(self) -> int:
        """Sequence from which on limits remove nothing."""
        guard = self.rules.guard
        if guard is None:
            return MAX_SEQ
        return max((self._floor_of(guard.consumer) or 0) + 1, self.overrun.to)

    @property
    def oldest(self) -> int:
        """Time of the oldest message that waits for the guard, Unix nanoseconds; 0 when none waits."""
        if self.rules.guard is None:
            return 0
        blocks = self._store.blocks
        seq = blocks.next_live(self.kept_from)
        if seq is None:
            return 0
        at = blocks.find(seq)
        return blocks.times[at] + seq - blocks.firsts[at]

    @property
    def waiting(self) -> int:
        """Number of messages that wait for the guard."""
        return 0 if self.rules.guard is None else self._store.blocks.live_at_or_above(self.kept_from)

    @property
    def next_due(self) -> int | None:
        """Time at which the leader should propose EXPIRE, as the oldest message must be given up then."""
        guard = self.rules.guard
        if guard is None or guard.refuses or not guard.max_age:
            return None
        oldest = self.oldest
        return oldest + guard.max_age if oldest else None

    def configure(self, rules: StreamRules) -> None:
        """Puts other rules in force. A guard that is changed holds what is still stored of the given up messages."""
        if rules.guard != self.rules.guard and self.overrun.to:
            self._put(self.overrun._replace(to=0))
        self.rules = rules

    def holds(self, seq: int) -> bool:
        """True when limits must not remove the message at `seq`."""
        return seq >= self.kept_from

    def may_refuse(self, now: int, size: int) -> bool:
        """True when one of the messages of a command at `now`, of `size` bytes together, may have to be refused."""
        guard = self.rules.guard
        if guard is None or not guard.refuses:
            return False
        full = self._outgrows(guard, self._store.byte_count + size)
        return full or (bool(guard.max_age) and 0 < self.oldest < now - guard.max_age)

    def refusal(self, now: int, byte_count: int, size: int) -> ApiError | None:
        """The reason to refuse one message of `size` bytes at `now`, or None. `byte_count`: the bytes of the stream
        with the messages of the command before this one, which wait already."""
        guard = self.rules.guard
        if guard is None or not guard.refuses:
            return None
        if self._outgrows(guard, byte_count + size) and (byte_count > self._store.byte_count or self.oldest):
            self._full = self.kept_from, byte_count - self._bytes_below()
            return _FULL
        return _OLD if guard.max_age and 0 < self.oldest < now - guard.max_age else None

    def _outgrows(self, guard: GuardRules, byte_count: int) -> bool:
        """True when too many bytes wait in a stream of `byte_count` bytes, of which new ones wait."""
        return 0 < guard.max_bytes < byte_count and guard.max_bytes < byte_count - self._bytes_below()

    def _bytes_below(self) -> int:
        """Bytes of the messages that do not wait. Raises DamagedError."""
        store, kept_from = self._store, self.kept_from
        if kept_from > store.last_seq:
            return store.byte_count
        of = kept_from, store.last_seq - store.messages
        if of != self._below_of:
            self._below = store.byte_count - store.bytes_from(kept_from)
            self._below_of = of
        return self._below

    def refuses_now(self, now: int) -> str | None:
        """The reason for which publishes are refused at `now`, None when they are not: even the smallest would be, or
        one was, and since then the guard has not gone on and no smaller one was stored."""
        guard, size = self.rules.guard, self._store.byte_count
        if guard is None or not guard.refuses or not self.oldest:
            return None
        try:
            was_full = self._full[0] == self.kept_from and size - self._bytes_below() <= self._full[1]
            refused = _FULL if was_full else self.refusal(now, size, 1)
        except DiskError:  # the next publish that has to know it meets it too, and has the replica repaired
            return None
        return refused.description if refused is not None else None

    def info(self, now: int) -> dict[str, Any] | None:
        """The object `retention_guard` of STREAM.INFO; None without a guard."""
        guard, floor, oldest = self.rules.guard, self.floor, self.oldest
        if guard is None:
            return None
        found: dict[str, Any] = {
            "consumer": guard.consumer,
            "found": floor is not None,
            "ack_floor": floor or 0,
            "num_waiting": self.waiting,
        }
        if oldest:
            found["oldest_ts"] = rfc3339(oldest)
        if reason := self.refuses_now(now):
            found["refuses"] = reason
        if self.overrun.messages:
            last = rfc3339(self.overrun.last)
            found["overrun"] = {"messages": self.overrun.messages, "below_seq": self.overrun.to, "last_ts": last}
        return found

    def follow_bytes(self, now: int) -> None:
        """Gives up the oldest messages when those that wait have more bytes than they may."""
        guard, store = self.rules.guard, self._store
        if guard is not None and not guard.refuses and self._outgrows(guard, store.byte_count):
            self._give_up(store.seq_within(guard.max_bytes - guard.max_bytes // _SLACK), now)

    def follow_age(self, now: int) -> None:
        """Gives up the messages that are too old at `now`."""
        guard = self.rules.guard
        if guard is not None and not guard.refuses and 0 < guard.max_age <= now:
            self._give_up(self._store.seq_at_time(now - guard.max_age + 1), now)

    def _give_up(self, to: int, now: int) -> None:
        before = self.kept_from
        if to <= before:
            return
        blocks, known = self._store.blocks, self.overrun
        more = blocks.live_at_or_above(max(before, known.counted)) - blocks.live_at_or_above(to)
        self._put(Overrun(to, max(to, known.counted), known.messages + max(more, 0), now))

    def _put(self, overrun: Overrun) -> None:
        self.overrun = overrun
        self._store.side_put(SIDE_GUARD, b"", _ROW.pack(*overrun))
