"""Read-only access to the journal of a stopped node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jetcluster.files import Files, names_in, read, read_beginning
from jetcluster.raft.journal import records
from jetcluster.raft.journal.disk import SEGMENT_SUFFIX, segment_number, segment_numbers
from jetcluster.raft.journal.log import Place
from jetcluster.raft.journal.recovery import Damage, Recovered, RecoveredGroup, scan
from jetcluster.raft.journal.seals import Seals
from jetcluster.raft.membership import Config
from jetcluster.sealing.api import SegmentKeys


class Entry(NamedTuple):
    """One entry of a log."""

    at: int
    """The entry's index."""
    term: int
    kind: int
    """`codec.REGULAR` and so on."""
    command: bytes


class ReadDisk:
    """The reading part of `disk.Disk`; it opens files for reading only."""

    def __init__(self, directory: Path, files: Files = os) -> None:
        self._directory = directory
        self._files = files

    def segments(self) -> list[int]:
        return segment_numbers(self._directory, self._files)

    def load(self, number: int) -> bytes:
        return read(self._path(number), self._files)

    def beginning(self, number: int) -> tuple[bytes, int]:
        return read_beginning(self._path(number), self._files)

    def read(self, number: int, offset: int, length: int) -> bytes:
        descriptor = self._files.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._files.pread(descriptor, length, offset)
        finally:
            self._files.close(descriptor)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016x}{SEGMENT_SUFFIX}"


@dataclass(slots=True)
class LogView:
    """One group's log, as a start of the server would find it."""

    found: RecoveredGroup
    _disk: ReadDisk
    _seals: Seals | None = None
    _seeds: dict[int, int | None] = field(default_factory=dict)

    @property
    def configs(self) -> list[tuple[int, Config]]:
        """See `GroupLog.configs`."""
        found = self.found
        base = [(found.base_index, found.base_config or Config(()))]
        return base + [(i, p.config) for i, p in sorted(found.entries.items()) if p.config is not None]

    @property
    def config(self) -> Config:
        return self.configs[-1][1]

    @property
    def last_term(self) -> int:
        return self.term_at(self.found.last_index) or 0

    def term_at(self, index: int) -> int | None:
        """Return the term of `index`; None when the log does not hold it."""
        if index == self.found.base_index:
            return self.found.base_term
        place = self.found.entries.get(index)
        return place.term if place is not None else None

    def entries_after(self, index: int) -> Iterator[Entry]:
        """Yield the entries after `index` in order, up to the end or the first unreadable one."""
        for at in range(index + 1, self.found.last_index + 1):
            place = self.found.entries.get(at)
            record = self._read(place) if place is not None else None
            if place is None or record is None:
                return
            yield Entry(at, place.term, place.kind, record.body)

    def _read(self, place: Place) -> records.Record | None:
        """Return the record there; None when it does not validate."""
        seed, length = self._seed(place.segment), place.length
        if self._seals is not None and length:
            length += self._seals.more(place.segment)
        start = place.offset - records.RECORD_HEAD_BYTES
        data = self._disk.read(place.segment, start, records.RECORD_HEAD_BYTES + length)
        record = records.read_record(data, 0, len(data), seed) if seed is not None else None
        return record if self._seals is None else self._seals.readable(place.segment, record, place.offset)

    def _seed(self, segment: int) -> int | None:
        if segment not in self._seeds:
            head = records.read_segment_head(self._disk.read(segment, 0, records.SEGMENT_HEAD_BYTES), segment)
            self._seeds[segment] = None if head is None else records.salt(segment, head.nonce)
        return self._seeds[segment]


@dataclass(slots=True)
class JournalView:
    """The groups of a journal, and the damage found."""

    groups: dict[int, LogView]
    damage: list[Damage]


def read_journal(directory: Path, marked: int = 0, keys: SegmentKeys | None = None, files: Files = os) -> JournalView:
    """Read the journal. `marked`: see `recovery.scan`. `keys`: of an encrypted one. Raises what `scan` does."""
    disk, seals = ReadDisk(directory, files), Seals(keys) if keys is not None else None
    found: Recovered = scan(disk, marked, seals)
    return JournalView({gid: LogView(group, disk, seals) for gid, group in found.groups.items()}, found.damage)


def has_sealed(directory: Path, files: Files = os) -> bool:
    """Return True when the head of a segment there says that it is sealed. Raises OSError."""
    for name in names_in(directory, files):
        number = segment_number(name)
        if number is None:
            continue
        descriptor = files.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = records.read_segment_head(files.pread(descriptor, records.SEGMENT_HEAD_BYTES, 0), number)
        finally:
            files.close(descriptor)
        if head is not None and head.seal:
            return True
    return False
