"""`SegmentWriter`: a stream's messages on their way into segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Protocol

from jetcluster.backup import plan, segment
from jetcluster.backup.account import StreamSeen
from jetcluster.backup.plan import StoredBase, StreamProgress
from jetcluster.backup.point import Segment
from jetcluster.backup.segment import SEGMENT_BYTES, StoredMessage
from jetcluster.backup.sequences import Sequences


def hash_of(message: StoredMessage) -> str:
    return sha256(message.encoded()).hexdigest()


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


class Source(Protocol):
    """Where the messages come from (`account.AccountReader`)."""

    def whole(self, name: str) -> Iterator[StoredMessage]: ...
    def messages(self, stream: StreamSeen, wanted: Sequences) -> Iterator[StoredMessage]: ...


class Sink(Protocol):
    """Where the segments go (`run.BackupRun`)."""

    def put_segment(self, packed: Packed) -> Segment: ...
    def note(self, stream: str, progress: StreamProgress) -> None: ...


class SegmentWriter:
    """The segments of a stream, those that stay and those that this run adds."""

    def __init__(self, sink: Sink, seen: StreamSeen, base: StoredBase) -> None:
        self._sink = sink
        self._stream = seen.name
        self._created = seen.created
        self._packer = Packer(self._write)
        self._newest: StoredMessage | None = None
        self.segments = list(base.segments)
        self.anchor = base.anchor
        self.stored = base.stored
        """Sequences that are in the segments."""
        self.messages = 0
        """Messages that were added."""

    def read(self, source: Source, seen: StreamSeen, wanted: Sequences) -> None:
        """Adds the wanted messages that are still there."""
        end = plan.end_of(self.segments)
        if holes := wanted.within(1, end):
            self._mend(source, seen, holes)
        self.stored = self.stored.joined(Sequences.of(self._take(source.messages(seen, wanted.after(end)))))
        self._packer.flush()

    def read_whole(self, source: Source) -> Sequences:
        """Adds what a snapshot has behind the segments; returns all its sequences. If the segments lack one of them,
        all are written anew."""
        end = plan.end_of(self.segments)
        live = Sequences.of(self._take_after(end, source.whole(self._stream)))
        self._packer.flush()
        if live.within(1, end).without(self.stored):
            self.segments, self.anchor = [], (0, "")
            live = Sequences.of(self._take(source.whole(self._stream)))
            self._packer.flush()
        self.stored = live
        return live

    def _mend(self, source: Source, seen: StreamSeen, holes: Sequences) -> None:
        """Reads the segments anew that lack a message; messages between segments become one of their own."""
        assert seen.live is not None
        made: list[Segment] = []
        at = 0
        for one in self.segments:
            if gap := holes.within(at + 1, one.first - 1):
                self._read_again(source, seen, gap, made)
            if holes.within(one.first, one.last):
                stretch = seen.live.within(one.first, one.last)
                self.stored = self.stored.without(Sequences(((one.first, one.last),)))
                self._read_again(source, seen, stretch, made)
            else:
                made.append(one)
            at = one.last
        self.segments = made

    def _read_again(self, source: Source, seen: StreamSeen, wanted: Sequences, made: list[Segment]) -> None:
        packer = Packer(lambda packed: made.append(self._sink.put_segment(packed)))
        found: list[int] = []
        for message in source.messages(seen, wanted):
            packer.add(message)
            found.append(message.seq)
        packer.flush()
        self.messages += len(found)
        self.stored = self.stored.joined(Sequences.of(found))

    def _take(self, messages: Iterable[StoredMessage]) -> Iterator[int]:
        """Yields the sequences of the messages that it adds."""
        for message in messages:
            self._newest = message
            self._packer.add(message)
            self.messages += 1
            yield message.seq

    def _take_after(self, end: int, messages: Iterable[StoredMessage]) -> Iterator[int]:
        """Yields the sequences of all messages; adds those behind `end`."""
        for message in messages:
            if message.seq <= end:
                yield message.seq
            else:
                yield from self._take((message,))

    def _write(self, packed: Packed) -> None:
        self.segments.append(self._sink.put_segment(packed))
        assert self._newest is not None, self._stream
        self.anchor = self._newest.seq, hash_of(self._newest)
        self._sink.note(self._stream, StreamProgress(self._created, tuple(self.segments), self.anchor))
