"""`JournalState`: the state of a node's journal, which its parts share (`Restatement`, `Retention`); `Journal` is this
state with all that is done to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jetcluster.raft.config import JournalOptions
from jetcluster.raft.grouplog import GroupLog


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
    """Logs that were kept for peers that catch up, and took too much space."""


@dataclass(slots=True)
class OpenBatch:
    """The batch that records are added to; it is sealed at the end of the loop's turn."""

    chunks: list[bytes] = field(default_factory=list)
    count: int = 0
    logs: dict[GroupLog, None] = field(default_factory=dict)
    moves: list[tuple[GroupLog, int, int, int, int]] = field(default_factory=list)
    sync: bool = False


@dataclass(slots=True)
class SealedBatch:
    """A batch on its way to the disk, with what becomes durable by it: `marks` per log, and `moves` of entries that
    were carried into this segment."""

    seq: int
    segment: int
    offset: int
    chunks: list[bytes]
    marks: list[tuple[GroupLog, tuple[int, int]]]
    moves: list[tuple[GroupLog, int, int, int, int]]
    new_segment: bool
    sync: bool
    size: int


class JournalState:
    """The fields that the parts of a journal share. One object, so that a failure stops all of them."""

    def __init__(self, options: JournalOptions) -> None:
        self.options = options
        self.counters = JournalCounters()
        self.groups: dict[int, GroupLog] = {}
        self.failed: BaseException | None = None
        """A write or a sync has failed: nothing is vouched for any more."""
        self.segment = 0
        """Where the next record goes."""
        self.fresh_segment = False
        """Nothing of it was written yet."""
        self.seq = 1
        """Number of the open batch."""
        self.batch = OpenBatch()
        """The open one."""
        self.queued_bytes = 0
        """Bytes that wait for the disk."""
        self.free = 0
        """Bytes of the file system, when last looked up."""
        self.also_reserved: Callable[[], int] = lambda: 0
        """Free bytes that the data store needs besides `reserve_bytes`."""
        self.full = False
        """Publishes are to be refused: there is no space, or hardly any."""
        self.scarce = False
        """The reserve is being used up: entries of leaders are refused as well."""
        self.stuck = False
        """The last write failed for want of space, and is being repeated."""

    @property
    def open_seq(self) -> int:
        """The last batch that holds anything of what was appended so far."""
        return self.seq if self.batch.count else self.seq - 1

    @property
    def newest_segment(self) -> int:
        """That of batch `open_seq`."""
        return self.segment if self.batch.count or not self.fresh_segment else self.segment - 1
