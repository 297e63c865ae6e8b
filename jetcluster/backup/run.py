"""`BackupRun`: one backup of an account, from the lock to the restore point."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, Protocol

from jetcluster.backup import plan, segment
from jetcluster.backup.account import StreamSeen
from jetcluster.backup.lock import BackupLock
from jetcluster.backup.plan import ReadPlan, StreamProgress
from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.segment import SEGMENT_BYTES, StoredMessage
from jetcluster.backup.sequences import DamagedBackupError, Sequences
from jetcluster.backup.storage import BackupStorage, PresentError, read_blob
from jetcluster.clock import Clock, Rng
from jetcluster.errors import CallerError

Fields = dict[str, Any]
Say = Callable[[str], None]
SECOND: Final = 1_000_000_000


class NoSuchStreamError(CallerError):
    """A stream that was asked for does not exist."""


class Account(Protocol):
    """Questions of a backup to the servers (`account.AccountReader`)."""

    @property
    def read_bytes(self) -> int: ...
    def info(self) -> Fields: ...
    def configs(self) -> dict[str, Fields]: ...
    def look(self, name: str) -> StreamSeen | None: ...
    def consumers(self, name: str) -> dict[str, Fields]: ...
    def whole(self, name: str) -> Iterator[StoredMessage]: ...
    def messages(self, stream: StreamSeen, wanted: Sequences) -> Iterator[StoredMessage]: ...
    def singles(self, name: str, wanted: Sequences) -> list[StoredMessage]: ...


class BackupRun:
    """One run. `streams` are the wanted ones; none: all."""

    def __init__(
        self, account: Account, storage: BackupStorage, clock: Clock, rng: Rng, say: Say, streams: Sequence[str] = ()
    ) -> None:
        self._account = account
        self._storage = storage
        self._catalog = PointCatalog(storage)
        self._clock = clock
        self._say = say
        self._streams = streams
        self._lock = BackupLock(storage, clock, rng)
        self._held: dict[str, int] = {}
        """Path -> bytes of the blobs that are there."""
        self._points: list[RestorePoint] = []
        self._written_bytes = 0

    def run(self, keep: int = 0) -> RestorePoint:
        """Makes a restore point, and removes all but the newest `keep` (0: none is removed). Raises NoSuchStreamError,
        BackupLockedError, DamagedBackupError, the storage's errors and the account's."""
        with self._lock:
            point = self._make()
            if keep:
                points, blobs = self._catalog.prune(keep, self._lock.check)
                self._say(f"removed {points} older points and {blobs} blobs that none needs")
            return point

    def _make(self) -> RestorePoint:
        started = self._clock.time_ns()
        configs = self._account.configs()
        if missing := sorted(set(self._streams) - set(configs)):
            raise NoSuchStreamError(f"there is no stream {missing[0]}")
        self._held = self._catalog.blobs()
        self._points = self._readable_points()
        names = [name for name in plan.order(configs) if not self._streams or name in self._streams]
        made = [found for name in names if (found := self._stream(name)) is not None]
        point = RestorePoint(
            name="", started=started, finished=self._clock.time_ns(), streams=tuple(made),
            account=self._account.info(), read_bytes=self._account.read_bytes, written_bytes=self._written_bytes,
        )  # fmt: skip
        point = self._commit(point)
        for stream in names:
            self._catalog.forget_progress(stream)
        return point

    def _readable_points(self) -> list[RestorePoint]:
        """A damaged point keeps nobody from making a new one."""
        found = []
        for name in self._catalog.names():
            try:
                found.append(self._catalog.point(name))
            except DamagedBackupError as error:
                self._say(f"{error}: it is left out")
        return found

    def _commit(self, point: RestorePoint) -> RestorePoint:
        """Writes the point, under a name behind those that are there."""
        names = self._catalog.names()
        while True:
            named = replace(point, name=next_name(point.started, names))
            self._lock.check()
            try:
                self._storage.create(named.path, named.to_json())
            except PresentError:
                names.append(named.name)
            else:
                return named

    # ---- one stream

    def _stream(self, name: str) -> StreamPoint | None:
        seen = self._account.look(name)
        # Consumers first: what they acknowledge from now on comes again after a restore, and nothing is left out.
        consumers = self._account.consumers(name) if seen is not None and seen.consumers else {}
        if consumers:
            seen = self._account.look(name)
        if seen is None:
            self._say(f"{name}: deleted meanwhile")
            return None
        base = self._base(seen)
        kept, wanted, live = self._to_read(seen, base)
        before = self._account.read_bytes
        writer = SegmentWriter(self, name, seen.created, kept, base.anchor if kept else (0, ""))
        if live is None:
            live = Sequences.of(writer.take_after(plan.end_of(base.segments), self._account.whole(name)))
        else:
            found = Sequences.of(writer.take(self._account.messages(seen, wanted)))
            live = live.without(wanted.without(found))
        writer.flush()
        self._say(
            f"{name}: {writer.messages} new messages, {self._account.read_bytes - before} bytes read; {len(live)} in it"
        )
        state = seen.state | {"messages": len(live), "first_seq": live.first or seen.last + 1}
        return StreamPoint(
            name=name, created=seen.created, config=seen.config, state=state, live=self.put(live.packed()),
            segments=self._rewritten(tuple(writer.segments), live), anchor=writer.anchor,
            consumers=self.put(zlib.compress(json.dumps(consumers, sort_keys=True).encode())) if consumers else None,
        )  # fmt: skip

    def _to_read(
        self, seen: StreamSeen, base: StreamProgress
    ) -> tuple[tuple[Segment, ...], Sequences, Sequences | None]:
        """(segments that stay, sequences to read, sequences that are stored)."""
        if seen.live is None:
            return base.segments, Sequences(), None
        found: ReadPlan = plan.reading(base, seen.live, seen.last)
        return found.kept, found.wanted, seen.live

    def _base(self, seen: StreamSeen) -> StreamProgress:
        """The segments that this stream has in the destination, if it is the same stream as then."""
        base = plan.longer(
            plan.base_of(self._points, seen.name, seen.created), self._catalog.progress(seen.name)
        )  # fmt: skip
        if plan.end_of(base.segments) > seen.last:
            return StreamProgress(base.created, ())  # a stream of the same time, and not the same
        whole = []
        for one in base.segments:
            if self._held.get(one.blob.path) != one.blob.size:
                self._say(f"{seen.name}: {one.blob.path} is missing: reading again from {one.first}")
                break
            whole.append(one)
        if len(whole) < len(base.segments):
            return StreamProgress(base.created, tuple(whole))
        seq, told = base.anchor
        if seq:
            there = self._account.singles(seen.name, Sequences.of([seq]))
            if there and hash_of(there[0]) != told:
                self._say(f"{seen.name}: its message {seq} is another one than in the backup: reading all")
                return StreamProgress(base.created, ())
        return base

    def _rewritten(self, segments: tuple[Segment, ...], live: Sequences) -> tuple[Segment, ...]:
        """The segments, with those joined that are small or mostly deleted messages."""
        found: list[Segment] = []
        at = 0
        for one in plan.rewriting(segments, live):
            stretch = segments[one.start : one.end]
            found += segments[at : one.start]
            try:
                found += self._joined(stretch, live)
            except DamagedBackupError as error:
                self._say(f"{error}: `jetcluster backup verify` says what it means")
                found += stretch
            at = one.end
        return (*found, *segments[at:])

    def _joined(self, stretch: Sequence[Segment], live: Sequences) -> list[Segment]:
        made: list[Segment] = []
        packer = Packer(lambda one: made.append(self.put_segment(one)))
        for old in stretch:
            for message in segment.chosen(read_blob(self._storage, old.blob), live):
                packer.add(message)
            self._lock.renew()
        packer.flush()
        return made

    # ---- writing

    def put(self, data: bytes) -> Blob:
        """Writes a blob, unless it is there."""
        blob = Blob.of(data)
        if self._held.get(blob.path) != blob.size:
            self._storage.write(blob.path, data)
            self._held[blob.path] = blob.size
            self._written_bytes += blob.size
        return blob

    def put_segment(self, packed: Packed) -> Segment:
        return Segment(self.put(packed.data), packed.first, packed.last, packed.messages, packed.size)

    def note(self, stream: str, progress: StreamProgress) -> None:
        """Notes what is written, for the next run if this one is interrupted."""
        self._lock.renew()
        self._catalog.note(stream, progress)


class Packed:
    """A segment before it is written."""

    __slots__ = ("data", "first", "last", "messages", "size")

    def __init__(self, entries: Sequence[bytes], first: int, last: int, size: int) -> None:
        self.data = segment.pack(entries)
        self.first, self.last, self.messages, self.size = first, last, len(entries), size


class Packer:
    """Collects ascending messages, and hands over a segment whenever SEGMENT_BYTES are together."""

    def __init__(self, done: Callable[[Packed], None]) -> None:
        self._done = done
        self._entries: list[bytes] = []
        self._size = self._first = self._last = 0

    def add(self, message: StoredMessage) -> None:
        entry = message.encoded()
        self._first = self._first or message.seq
        self._last = message.seq
        self._entries.append(entry)
        self._size += len(entry)
        if self._size >= SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._entries:
            packed = Packed(self._entries, self._first, self._last, self._size)
            self._entries, self._size, self._first = [], 0, 0
            self._done(packed)


class SegmentWriter:
    """The segments of a stream, those that stay and those that this run adds."""

    def __init__(
        self, run: BackupRun, stream: str, created: str, kept: Iterable[Segment], anchor: tuple[int, str]
    ) -> None:
        self._run = run
        self._stream = stream
        self._created = created
        self._packer = Packer(self._write)
        self._newest: StoredMessage | None = None
        self.segments = list(kept)
        self.anchor = anchor
        self.messages = 0
        """Messages that were added."""

    def take(self, messages: Iterable[StoredMessage]) -> Iterator[int]:
        """Yields the sequences of the messages that it adds."""
        for message in messages:
            self._newest = message
            self._packer.add(message)
            self.messages += 1
            yield message.seq

    def take_after(self, end: int, messages: Iterable[StoredMessage]) -> Iterator[int]:
        """Yields the sequences of all messages; adds those behind `end`."""
        for message in messages:
            if message.seq <= end:
                yield message.seq
            else:
                yield from self.take((message,))

    def flush(self) -> None:
        self._packer.flush()

    def _write(self, packed: Packed) -> None:
        self.segments.append(self._run.put_segment(packed))
        assert self._newest is not None, self._stream
        self.anchor = self._newest.seq, hash_of(self._newest)
        self._run.note(self._stream, StreamProgress(self._created, tuple(self.segments), self.anchor))


def hash_of(message: StoredMessage) -> str:
    return sha256(message.encoded()).hexdigest()


def next_name(ns: int, names: Iterable[str]) -> str:
    """The name of a point of this time; behind the newest one, also if the clock was set back."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(ns // SECOND))
    newest = max(names, default="")
    if name > newest:
        return name
    base, _, number = newest.partition("-")
    return f"{base}-{int(number or 1) + 1:03d}"
