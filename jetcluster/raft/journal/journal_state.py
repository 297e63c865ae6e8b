"""`JournalState`: the state of a node's journal, shared by its parts (`Restatement`, `Retention`); `Journal` adds the
operations. `RemovedGroups` remembers the groups that left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from itertools import pairwise
from typing import Any

from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.log import GroupLog
from jetcluster.records import dataclass

_REMOVED_HEAD = struct.Struct("<BI")
_REMOVED_RUN = struct.Struct("<II")
_REMOVED_VERSION = 1
MAX_REMOVED_GROUPS = 4096
"""Ids that are kept one by one: at most 32 KB in each segment."""


class RemovedGroups:
    """The removed groups of one journal, which forgets their records but must not forget their existence.

    A replica without a log may begin as a voter only if it never promised anything: otherwise it could vote twice in
    one term, and count for acknowledged entries that it does not have. The lack of a log proves nothing. So the ids of
    removed groups are kept, and repeated at the start of each segment in a REMOVE of group 0.

        body = version u8, floor u32, run*        run = first id u32, number of ids u32"""

    def __init__(self, gids: Collection[int] = (), floor: int = 0) -> None:
        self.floor = floor
        """Any group up to this id may have been here."""
        self._gids = set(gids)

    def __contains__(self, gid: int) -> bool:
        return gid in self._gids

    def __bool__(self) -> bool:
        return bool(self._gids or self.floor)

    def may_have_been(self, gid: int) -> bool:
        return gid <= self.floor or gid in self._gids

    def add(self, gid: int) -> None:
        self._gids.add(gid)
        if len(self._gids) > MAX_REMOVED_GROUPS:
            oldest = sorted(self._gids)[: MAX_REMOVED_GROUPS // 4]
            self._gids.difference_update(oldest)
            self.raise_floor(oldest[-1])

    def discard(self, gid: int) -> None:
        """Forget a group that is here again: it has a log."""
        self._gids.discard(gid)

    def raise_floor(self, gid: int) -> None:
        """Note that any group up to `gid` may have been here."""
        self.floor = max(self.floor, gid)

    def encode(self) -> bytes:
        return _REMOVED_HEAD.pack(_REMOVED_VERSION, self.floor) + b"".join(
            _REMOVED_RUN.pack(*run) for run in self._runs()
        )

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Return (first id, number of ids): ids ascend, and neighbours are often removed together."""
        gids = sorted(self._gids)
        starts = [0, *(at for at, (a, b) in enumerate(pairwise(gids), 1) if b != a + 1), len(gids)]
        return ((gids[start], end - start) for start, end in pairwise(starts) if end > start)


def decode_removed(body: bytes) -> RemovedGroups:
    """Decode what `encode` returned. Raises ValueError on anything else."""
    if len(body) < _REMOVED_HEAD.size or (len(body) - _REMOVED_HEAD.size) % _REMOVED_RUN.size:
        raise ValueError("removed groups: the record is cut short")
    version, floor = _REMOVED_HEAD.unpack_from(body)
    if version != _REMOVED_VERSION:
        raise ValueError(f"removed groups: version {version}")
    runs = list(_REMOVED_RUN.iter_unpack(body[_REMOVED_HEAD.size :]))
    if sum(count for _, count in runs) > MAX_REMOVED_GROUPS + 1:
        raise ValueError("removed groups: too many")
    return RemovedGroups([gid for first, count in runs for gid in range(first, first + count)], floor)


@dataclass(slots=True)
class JournalCounters:
    """Totals of this process for monitoring."""

    batches: int = 0
    bytes: int = 0
    full_episodes: int = 0
    shortages: int = 0
    """Writes that waited for a file descriptor."""
    carried_entries: int = 0
    deleted_segments: int = 0
    read_failures: int = 0
    pins_given_up: int = 0
    """Pins of logs, for peers that catch up, that took too much space."""


@dataclass(slots=True)
class OpenBatch:
    """The batch that collects records until it is sealed."""

    chunks: list[bytes] = field(default_factory=list)
    count: int = 0
    logs: dict[GroupLog, None] = field(default_factory=dict)
    moves: list[tuple[GroupLog, int, int, int, int]] = field(default_factory=list)
    sync: bool = False


@dataclass(slots=True)
class SealedBatch:
    """A batch on its way to the disk, with what it makes durable: `marks` per log, and `moves` of carried entries."""

    seq: int
    segment: int
    offset: int
    chunks: list[bytes]
    marks: list[tuple[GroupLog, tuple[int, int]]]
    moves: list[tuple[GroupLog, int, int, int, int]]
    new_segment: bool
    sync: bool
    size: int
    plain: Any = None
    """The job that writes it, where that is a `native.Write`."""


@dataclass(slots=True, frozen=True)
class PinLimits:
    """Bounds of the pinned logs of all groups of a node together."""

    bytes: int = 256 << 20
    share: float = 0.25
    """Bytes on disk, or this share of the free space above the reserve if that is more."""
    most: int = 32 << 30
    """Upper bound of these bytes: a restart reads all of them."""
    entries: int = 4 << 20
    """Entries: each takes 17 bytes of memory, and some 300 while a restart reads it."""


PINS = PinLimits()
OnDurable = Callable[[list[GroupLog]], None]
Report = Callable[[int, str], None]


class JournalState:
    """The fields that the parts of a journal share."""

    def __init__(self, options: JournalOptions, also_reserved: Callable[[], int]) -> None:
        """`also_reserved` returns the free bytes that the data store needs besides `reserve_bytes`."""
        self.options = options
        self.also_reserved = also_reserved
        self.pins = PINS
        self.on_durable: OnDurable = lambda logs: None
        self.report: Report = lambda gid, text: None
        self.counters = JournalCounters()
        self.groups: dict[int, GroupLog] = {}
        self.failed: BaseException | None = None
        """The error of a failed write or sync, or `MissingError`: nothing becomes durable any more."""
        self.missing = ""
        """Why the files on the disk are not those that this journal has open; "" while they are. It ends only with a
        restart: what has been promised since is not on the disk."""
        self.segment = 0
        """The segment of the next record."""
        self.fresh_segment = False
        """True while no batch of it is sealed."""
        self.seq = 1
        """Number of the open batch."""
        self.batch = OpenBatch()
        """The open batch."""
        self.queued_bytes = 0
        """Bytes that wait for the disk."""
        self.free = 0
        """Free bytes of the file system when last checked."""
        self.disk_size = 0
        """Its size in bytes; 0: unknown."""
        self.full = False
        """True while publishes must be refused: the free space is at or near the reserve."""
        self.scarce = False
        """True while entries of leaders must be refused as well: the reserve is being used up."""
        self.stuck = False
        """True while the last write is repeated because the disk had no space for it."""

    def serve(self, on_durable: OnDurable, report: Report = lambda gid, text: None, pins: PinLimits = PINS) -> None:
        """Work for the groups of a node: report what has become durable, and what is wrong with a group's log."""
        self.on_durable, self.report, self.pins = on_durable, report, pins

    @property
    def open_seq(self) -> int:
        """The batch of the newest record appended so far."""
        return self.seq if self.batch.count else self.seq - 1

    @property
    def newest_segment(self) -> int:
        """The segment of batch `open_seq`."""
        return self.segment if self.batch.count or not self.fresh_segment else self.segment - 1
