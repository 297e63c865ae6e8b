"""`BackupRun`: one backup of an account, from the lock to the restore point."""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from jetcluster.backup import plan, segment
from jetcluster.backup.account import StreamSeen
from jetcluster.backup.journal import lock_of
from jetcluster.backup.lock import (
    REMOVAL,
    BackupLock,
    BackupLockedError,
    read_lock,
    refuse_beside_restore,
    seems_alive,
)
from jetcluster.backup.plan import StoredBase, StreamProgress
from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.segment import StoredMessage
from jetcluster.backup.segment_writer import Packed, Packer, SegmentWriter, hash_of
from jetcluster.backup.sequences import DamagedBackupError, Sequences
from jetcluster.backup.storage import BackupStorage, PresentError, read_blob
from jetcluster.backup.verify import StoredStream
from jetcluster.clock import Clock, Rng
from jetcluster.errors import CallerError, JetclusterError, PassingError

Fields = dict[str, Any]
Say = Callable[[str], None]
SECOND: Final = 1_000_000_000
MAX_PASSES: Final = 8
"""Looks at a stream that changes while it is read; then it is read as a snapshot."""
NEWEST: Final = 100
"""Sequences among which one is looked for that the servers still have, in each segment."""


class NoSuchStreamError(CallerError):
    """A stream that was asked for does not exist."""


class AnotherAccountError(CallerError):
    """The account seems not to be the one of the destination, or most of it is gone."""


class StreamUnsteadyError(PassingError):
    """A stream cannot be read, as it is deleted and created again all the time."""


class _MadeAgainError(JetclusterError):
    """The stream was deleted and created again while it was read."""


class _DamagedSegmentError(JetclusterError):
    """A segment of the destination turned out to be damaged."""


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
    def singles(self, name: str, wanted: Sequences) -> Iterator[StoredMessage]: ...


class BackupRun:
    """One run. `streams` are the wanted ones; none: all."""

    def __init__(
        self, account: Account, storage: BackupStorage, clock: Clock, rng: Rng, say: Say, streams: Sequence[str] = (),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._account = account
        self._storage = storage
        self._catalog = PointCatalog(storage)
        self._clock = clock
        self._say = say
        self._streams = streams
        self._lock = BackupLock(storage, clock, rng, say, pause=pause)
        self._held: dict[str, int] = {}
        """Path -> bytes of the blobs that are there."""
        self._points: list[RestorePoint] = []
        self._distrusted: set[str] = set()
        """Streams whose segments are read back, as the destination's lists of them turned out to be wrong."""
        self._written_bytes = 0

    def run(self, keep: int = 0, *, verify: bool = False, allow_empty: bool = False) -> RestorePoint:
        """Makes a restore point, and removes all but the newest `keep` (0: none is removed), of which those that were
        verified count if `verify`. Raises NoSuchStreamError, AnotherAccountError unless `allow_empty`,
        BackupLockedError, DamagedBackupError, the storage's errors and the account's."""
        with self._lock:
            self._storage.sweep()
            point = self._commit(self._verified(self._make(allow_empty=allow_empty), verify=verify))
            self._catalog.forget_progress(self._streams)
            if keep and point.verified is not False:
                self._remove(keep, verified=verify)
            return point

    def _remove(self, keep: int, *, verified: bool) -> None:
        self._lock.become(REMOVAL)
        try:
            refuse_beside_restore(self._storage, self._clock)
        except BackupLockedError as error:
            self._say(f"{error}; the next run does it")
            return
        points, blobs = self._catalog.prune(keep, self._lock.hold, verified=verified)
        self._say(f"removed {points} older points and {blobs} blobs that none needs")

    def _make(self, *, allow_empty: bool) -> RestorePoint:
        started = self._clock.time_ns()
        configs, account = self._account.configs(), self._account.info()
        if seems_alive(restoring := read_lock(self._storage, lock_of(account)), self._clock):
            raise BackupLockedError(f"{restoring['owner']} restores into the account: a point would be of a part of it")
        if missing := sorted(set(self._streams) - set(configs)):
            raise NoSuchStreamError(f"there is no stream {missing[0]}")
        self._held = self._catalog.blobs()
        # A damaged point keeps nobody from making a new one.
        self._points = self._catalog.readable(lambda wrong: self._say(f"{wrong}: it is left out"))
        whole = [one for one in self._points if not one.asked and one.verified is not False]
        before = None if self._streams or allow_empty or not whole else whole[-1]
        if before is not None:
            _refuse(plan.doubt(before, configs, str(account.get("cluster") or "")))
        names = [name for name in plan.order(configs) if not self._streams or name in self._streams]
        made = [found for name in names if (found := self._stream(name)) is not None]
        if before is not None:
            _refuse(plan.doubt(before, [one.name for one in made], "") or plan.emptied(before, made))
        return RestorePoint(
            name="", started=started, finished=self._clock.time_ns(), streams=tuple(made), account=account,
            read_bytes=self._account.read_bytes, written_bytes=self._written_bytes,
            asked=tuple(sorted(set(self._streams))),
        )  # fmt: skip

    def _verified(self, point: RestorePoint, *, verify: bool) -> RestorePoint:
        """Reads the point back before it is written; what is damaged is read from the servers again."""
        if not verify:
            return point
        checked = [self._checked(one) for one in point.streams]
        return replace(
            point, streams=tuple(one for one, _ in checked), verified=all(good for _, good in checked),
            read_bytes=self._account.read_bytes, written_bytes=self._written_bytes,
        )  # fmt: skip

    def _checked(self, one: StreamPoint) -> tuple[StreamPoint, bool]:
        """(the stream, whether all of it can be read)."""
        for last in (False, True):
            self._lock.renew()
            try:
                stored = StoredStream(self._storage, one)
                digest = stored.check(self.alive)
            except DamagedBackupError as error:
                self._say(f"{one.name}: {error}")
            else:
                self._say(f"{one.name}: {digest.messages} messages verified")
                for told in stored.reduced():
                    self._say(f"{one.name}: {told}")
                return one, True
            self._distrust(one)
            again = None if last else self._stream(one.name)
            one = one if again is None else again
        return one, False

    def _distrust(self, one: StreamPoint) -> None:
        """Lets the damaged blobs of the stream be written again."""
        self._distrusted.add(one.name)
        for blob in one.blobs:
            self._lock.renew()
            try:
                read_blob(self._storage, blob)
            except DamagedBackupError:
                self._held.pop(blob.path, None)

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
        """None for a stream that is gone. Raises StreamUnsteadyError."""
        for _ in range(MAX_PASSES):
            self.alive()
            try:
                return self._seen(name)
            except _MadeAgainError:
                self._say(f"{name}: created again meanwhile: reading it anew")
            except _DamagedSegmentError as error:
                self._say(f"{name}: {error}")
                self._distrusted.add(name)
        raise StreamUnsteadyError(f"{name} is created again all the time")

    def _seen(self, name: str) -> StreamPoint | None:
        seen = self._account.look(name)
        # Consumers first: what they acknowledge from now on comes again after a restore, and nothing is left out.
        consumers = self._account.consumers(name) if seen is not None and seen.consumers else {}
        if consumers:
            seen = self._account.look(name)
        if seen is None:
            self._say(f"{name}: deleted meanwhile")
            return None
        before = self._account.read_bytes
        writer = SegmentWriter(self, seen, self._base(seen))
        found = self._passes(writer, seen)
        if found is None:
            self._say(f"{name}: deleted meanwhile")
            return None
        seen, live = found
        self._say(
            f"{name}: {writer.messages} new messages, {self._account.read_bytes - before} bytes read; {len(live)} in it"
        )
        last = max(seen.last, live.last)
        state = seen.state | {"messages": len(live), "first_seq": live.first or last + 1, "last_seq": last}
        return StreamPoint(
            name=name, created=seen.created, config=seen.config, state=state, live=self.put(live.packed()),
            segments=self._rewritten(name, tuple(writer.segments), live), anchor=writer.anchor,
            consumers=self.put(zlib.compress(json.dumps(consumers, sort_keys=True).encode())) if consumers else None,
        )  # fmt: skip

    def _passes(self, writer: SegmentWriter, seen: StreamSeen) -> tuple[StreamSeen, Sequences] | None:
        """Reads until everything that a look told was read: (the look, its sequences). A message that went between the
        look and the reading may have been replaced, by one behind the look's last: a point without both would have
        lost a key. So the stream is looked at again; one that never rests is read as a snapshot. None if it is gone."""
        for _ in range(MAX_PASSES):
            if seen.live is None:
                break
            wanted = seen.live.without(writer.stored)
            if not wanted:
                return seen, seen.live
            writer.read(self._account, seen, wanted)
            again = self._again(seen)
            if again is None:
                return None
            if not wanted.without(writer.stored):
                return seen, seen.live
            seen = again
        live = writer.read_whole(self._account)
        return None if self._again(seen) is None else (seen, live)

    def _again(self, seen: StreamSeen) -> StreamSeen | None:
        """Returns the stream as it is now. Raises _MadeAgainError."""
        again = self._account.look(seen.name)
        if again is not None and (again.created != seen.created or again.last < seen.last):
            raise _MadeAgainError(seen.name)
        return again

    # ---- what the destination has of it

    def _base(self, seen: StreamSeen) -> StoredBase:
        """The segments that this stream has in the destination, if it is the same stream as then."""
        base = plan.longer(plan.base_of(self._points, seen.name, seen.created), self._catalog.progress(seen.name))
        if plan.end_of(base.segments) > seen.last:
            return StoredBase()  # a stream of the same time, and not the same
        found = self._stored(seen.name, base)
        if not self._is_same(seen, base, found):
            return StoredBase()
        if seen.live is None:
            return found
        kept = tuple(one for one in base.segments if seen.live.within(one.first, one.last))
        return StoredBase(kept, base.anchor if kept else (0, ""), found.stored)

    def _stored(self, name: str, base: StreamProgress) -> StoredBase:
        """The segments, and the sequences that are in those that are there."""
        listed = None if name in self._distrusted else self._listed(base)
        stored = Sequences()
        for one in base.segments:
            if self._held.get(one.blob.path) != one.blob.size:
                self._say(f"{name}: {one.blob.path} is missing: reading {one.first} to {one.last} again")
            elif listed is not None and one in listed[0]:
                stored = stored.joined(listed[1].within(one.first, one.last))
            else:
                stored = stored.joined(self._read_back(name, one))
        return StoredBase(base.segments, base.anchor, stored)

    def _listed(self, base: StreamProgress) -> tuple[frozenset[Segment], Sequences] | None:
        """The segments of the newest point, and the sequences that are in them according to it."""
        if base.live is None:
            return None
        try:
            return frozenset(base.listed), Sequences.unpacked(read_blob(self._storage, base.live))
        except DamagedBackupError as error:
            self._say(f"{error}: reading its segments")
            self._held.pop(base.live.path, None)
            return None

    def _read_back(self, name: str, one: Segment) -> Sequences:
        """The sequences of a segment, by its messages; none if it is damaged, so that it is written again."""
        self._lock.renew()
        try:
            return Sequences.of(message.seq for message in segment.unpack(read_blob(self._storage, one.blob)))
        except DamagedBackupError as error:
            self._say(f"{name}: {error}: reading {one.first} to {one.last} again")
            self._held.pop(one.blob.path, None)
            return Sequences()

    def _is_same(self, seen: StreamSeen, base: StreamProgress, found: StoredBase) -> bool:
        """Compares the newest message that the destination has and the servers have, too: sequences come again with
        the same time of creation if a store was set back to an older copy of itself."""
        seq, told = base.anchor
        there = next(iter(self._account.singles(seen.name, Sequences.of([seq]))), None) if seq else None
        if there is not None:
            same = hash_of(there) == told
        else:
            seq, same = self._newest_in_both(seen, base, found)
        if not same:
            self._say(f"{seen.name}: its message {seq} is another one than in the backup: reading all")
        return same

    def _newest_in_both(self, seen: StreamSeen, base: StreamProgress, found: StoredBase) -> tuple[int, bool]:
        """(a sequence, whether its message is the same). The anchor was deleted: it is one of the newest others. A
        stream of which none is left has nothing to be mistaken for."""
        left = found.stored if seen.live is None else found.stored.common(seen.live)
        for one in reversed(base.segments):
            if not (wanted := left.within(one.first, one.last)):
                continue
            newest = Sequences(((max(wanted.last - NEWEST + 1, one.first), wanted.last),)).common(wanted)
            if not (last := deque(self._account.singles(seen.name, newest), maxlen=1)):
                continue
            (there,) = last
            try:
                for message in segment.chosen(read_blob(self._storage, one.blob), Sequences.of([there.seq])):
                    return message.seq, message == there
            except DamagedBackupError as error:
                self._say(f"{seen.name}: {error}")
                return there.seq, False
        return 0, True

    def _rewritten(self, name: str, segments: tuple[Segment, ...], live: Sequences) -> tuple[Segment, ...]:
        """The segments, with those joined that are small or mostly deleted messages."""
        found: list[Segment] = []
        at = 0
        for one in plan.rewriting(segments, live):
            stretch = segments[one.start : one.end]
            found += segments[at : one.start]
            try:
                found += self._joined(stretch, live)
            except DamagedBackupError as error:
                if name not in self._distrusted:
                    raise _DamagedSegmentError(str(error)) from error
                self._say(f"{error}: `jetcluster backup verify` says what it means")
                found += stretch
            at = one.end
        return (*found, *segments[at:])

    def _joined(self, stretch: Sequence[Segment], live: Sequences) -> list[Segment]:
        made: list[Segment] = []
        packer = Packer(lambda one: made.append(self.put_segment(one)))
        for old in stretch:
            expected = len(live.within(old.first, old.last))
            for message in segment.chosen(read_blob(self._storage, old.blob), live):
                packer.add(message)
                expected -= 1
            if expected:
                raise DamagedBackupError(f"{self._storage.url}/{old.blob.path} lacks {expected} messages")
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

    def alive(self) -> None:
        """Renews the lock. Raises BackupLockedError."""
        self._lock.renew()

    def note(self, stream: str, progress: StreamProgress) -> None:
        """Notes what is written, for the next run if this one is interrupted."""
        self._lock.renew()
        self._catalog.note(stream, progress)


def _refuse(why: str) -> None:
    """Raises AnotherAccountError if there is a reason."""
    if why:
        raise AnotherAccountError(f"{why}. If that is meant: --allow-empty")


def next_name(ns: int, names: Iterable[str]) -> str:
    """The name of a point of this time; behind the newest one, also if the clock was set back."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(ns // SECOND))
    newest = max(names, default="")
    if name > newest:
        return name
    base, _, number = newest.partition("-")
    if number and not number.strip("9"):
        return f"{newest}{'0' * len(number)}"  # behind -999 as a text is -999000, and -1000 is not
    return f"{base}-{int(number or 1) + 1:0{len(number) or 3}d}"
