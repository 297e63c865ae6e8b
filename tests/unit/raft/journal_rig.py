"""A journal over memory, for the tests of its parts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from jetcluster.raft.codec import REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal import records
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.journal.recovery import Recovered, scan
from jetcluster.raft.journal.seals import Seals
from jetcluster.raft.membership import Config
from testkit.twins.encryption import segment_keys
from testkit.twins.journal import InlineWriter, JournalDisk, MemoryMark
from testkit.twins.time import ManualTime, SeededRng

ABC = Config(("A", "B", "C"))
OPTIONS = JournalOptions(segment_bytes=4_096, reserve_bytes=0, node_retain_bytes=16_384, retry_delay=0.1)


class Rig:
    """One disk and the journal that is open on it. `cipher`: of encryption at rest, "" for none."""

    cipher: ClassVar[str] = ""

    def __init__(self, **options: Any) -> None:
        self.time = ManualTime()
        self.disk = JournalDisk()
        self.mark = MemoryMark()
        self.options = dataclasses.replace(OPTIONS, **options)
        self.fatal: list[BaseException] = []
        self.opens = 0
        self.journal: Journal
        self.found: Recovered
        self.open()

    def open(self) -> Journal:
        self.opens += 1
        self.writer = InlineWriter(self.time)
        rng = SeededRng(self.opens)
        self.keys = segment_keys(self.cipher, rng) if self.cipher else None
        self.journal = Journal(
            self.disk, self.writer, self.time, rng, self.options, self.fatal.append, self.mark, keys=self.keys
        )
        self.found = self.journal.open()
        return self.journal

    def scan(self) -> Recovered:
        return scan(self.disk, seals=Seals(self.keys) if self.keys is not None else None)

    def settle(self, seconds: float = 0.0) -> None:
        self.time.advance(seconds)

    def fill(self, log: GroupLog, count: int, term: int = 1, size: int = 20, seconds: float = 0.0) -> None:
        """Appends entries, and lets the journal write."""
        fill(log, count, term, size)
        self.settle(seconds)

    def housekeep(self, seconds: float = 0.0) -> None:
        self.journal.housekeep()
        self.settle(seconds)

    def log(self, gid: int = 1, durable: bool = True) -> GroupLog:
        log = self.journal.groups.get(gid)
        return log if log is not None else self.journal.create(gid, ABC, durable)

    def kill(self) -> None:
        """The process is gone: the disk stays as it is, and what the journal still does reaches another one."""
        self.disk, self.mark = copy.deepcopy(self.disk), copy.deepcopy(self.mark)

    def crash(self) -> Journal:
        """Loses what was not synced, and opens the journal again."""
        self.kill()
        self.disk.crash(SeededRng(5))
        return self.open()


def batches(disk: JournalDisk) -> list[tuple[int, int, int]]:
    """(segment, start, end) of every batch."""
    found = []
    for number in disk.segments():
        data = disk.load(number)
        head = records.read_segment_head(data, number)
        if head is None:
            continue
        at = records.SEGMENT_HEAD_BYTES
        while (batch := records.read_batch(data, at, records.salt(number, head.nonce))) is not None:
            found.append((number, at, batch.end))
            at = batch.end
    return found


def spoil(disk: JournalDisk, index: int, data: bytes, at: int = 0) -> None:
    """Writes over a batch: `at` bytes behind its start, or, below 0, before its end."""
    number, start, end = batches(disk)[index]
    disk.corrupt(number, (end if at < 0 else start) + at, data)


def wipe(disk: JournalDisk, index: int, byte: bytes) -> None:
    """Writes over a whole batch."""
    number, start, end = batches(disk)[index]
    disk.corrupt(number, start, byte * (end - start))


def filled(count: int, **options: Any) -> tuple[Rig, GroupLog]:
    """A journal with a log that has so many entries."""
    rig = Rig(**options)
    log = rig.log()
    rig.fill(log, count)
    return rig, log


def barrier(rig: Rig, number: int) -> list[int]:
    """The list to which a barrier of now adds its number."""
    called: list[int] = []
    rig.journal.barrier(lambda: called.append(number))
    return called


def fill(log: GroupLog, count: int, term: int = 1, size: int = 20) -> None:
    for _ in range(count):
        log.append(REGULAR, term, b"%06d" % (log.last_index + 1) + b"." * size)


def content(log: GroupLog) -> list[tuple[int, int, bytes]]:
    return [(i, log.term_at(i) or 0, log.command(i)) for i in range(log.base_index + 1, log.last_index + 1)]


def forget(log: GroupLog, index: int) -> None:
    """Compacts as if the state machine had everything up to `index` durably."""
    log.compactable = max(log.compactable, index)
    log.compact(index)
