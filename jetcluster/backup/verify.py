"""Checks of what is stored: every blob of a restore point, and a restored stream against its point."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from jetcluster.backup import segment
from jetcluster.backup.account import StreamSeen
from jetcluster.backup.consumers import TooManyConsumersError, archived
from jetcluster.backup.point import RestorePoint, Segment, StreamPoint
from jetcluster.backup.segment import MessageSum, StoredMessage
from jetcluster.backup.sequences import DamagedBackupError, Sequences
from jetcluster.backup.storage import BackupStorage, read_blob

MAX_STORED_BYTES: Final = 1 << 30
"""Bytes of a stream's consumers when they are read."""
MAX_NAMED: Final = 5
"""Sequences that are named when messages differ."""

Fields = dict[str, Any]


class StoredStream:
    """A stream of a restore point, as it is in the destination."""

    def __init__(self, storage: BackupStorage, point: StreamPoint) -> None:
        """Raises DamagedBackupError."""
        self._storage = storage
        self.point = point
        self.live = Sequences.unpacked(read_blob(storage, point.live))
        if len(self.live) != point.messages:
            raise DamagedBackupError(f"{point.name}: {point.messages} messages, and {len(self.live)} sequences")

    def messages(self, one: Segment) -> Iterator[StoredMessage]:
        """Yields the messages of a segment that the point has. Raises DamagedBackupError."""
        live = self.live.within(one.first, one.last)
        return segment.chosen(read_blob(self._storage, one.blob), live)

    def consumers(self) -> dict[str, Fields]:
        """Consumer -> its entry of an archive. Raises DamagedBackupError."""
        if self.point.consumers is None:
            return {}
        inflate = zlib.decompressobj()
        try:
            data = inflate.decompress(read_blob(self._storage, self.point.consumers), MAX_STORED_BYTES)
            if not inflate.eof:
                raise DamagedBackupError(f"{self.point.name}: its consumers are cut off, or too large")
            found: dict[str, Fields] = json.loads(data)
        except (zlib.error, ValueError) as error:
            raise DamagedBackupError(f"{self.point.name}: its consumers: {error}") from None
        return found

    def reduced(self) -> list[str]:
        """Returns a line for each consumer that a restore would not make whole. Raises DamagedBackupError."""
        try:
            _, cut = archived(self.consumers())
        except TooManyConsumersError as error:
            return [str(error)]
        return [f"consumer {name} has too much pending: a restore makes it with its ack floor alone" for name in cut]

    def check(self) -> MessageSum:
        """Reads all of it. Raises DamagedBackupError."""
        self.consumers()
        total = MessageSum()
        for one in self.point.segments:
            for message in self.messages(one):
                total = total.plus(message.encoded())
        self.check_count(total.messages)
        return total

    def check_count(self, found: int) -> None:
        """Each message of the segments was one of the point's, so all are there if they are as many. Raises
        DamagedBackupError."""
        if found != len(self.live):
            raise DamagedBackupError(f"{self.point.name}: {found} of {len(self.live)} messages are in its segments")


def check_point(storage: BackupStorage, point: RestorePoint, say: Callable[[str], None]) -> list[str]:
    """Reads everything of a restore point; returns what is wrong, a line for each stream."""
    wrong: list[str] = []
    for one in point.streams:
        try:
            stored = StoredStream(storage, one)
            digest = stored.check()
        except DamagedBackupError as error:
            wrong.append(f"{one.name}: {error}")
            say(wrong[-1])
        else:
            say(f"{one.name}: {digest.messages} messages verified")
            for told in stored.reduced():
                say(f"{one.name}: {told}")
    return wrong


class Readable(Protocol):
    """Questions of a comparison to the servers (`account.AccountReader`)."""

    def messages(self, stream: StreamSeen, wanted: Sequences) -> Iterator[StoredMessage]: ...


class Renamed:
    """Another beginning of subjects, for a key-value bucket that gets another name."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self.old = old
        self.new = new

    def message(self, found: StoredMessage) -> StoredMessage:
        if not found.subject.startswith(self.old):
            return found
        return found._replace(subject=self.new + found.subject[len(self.old) :])


class Difference(NamedTuple):
    """Messages of a stream on the servers that are not those of its point."""

    missing: Sequences
    other: Sequences
    """Messages with another subject, time, header block or payload."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.other)

    def __str__(self) -> str:
        parts = [("not there", self.missing), ("different", self.other)]
        return "; ".join(f"{len(found)} messages are {what} ({_named(found)})" for what, found in parts if found)


def compare(
    account: Readable,
    seen: StreamSeen,
    stored: StoredStream,
    digests: Sequence[MessageSum] = (),
    renamed: Renamed | None = None,
) -> Difference:
    """Reads the stream from the servers and compares it with the stored one. `digests` are those of the segments, if
    they are known: then only segments that differ are read from the destination."""
    missing: list[int] = []
    other: list[int] = []
    for number, one in enumerate(stored.point.segments):
        wanted = stored.live.within(one.first, one.last)
        there: dict[int, MessageSum] = {}
        total = MessageSum()
        for message in account.messages(seen, wanted):
            encoded = message.encoded()
            total = total.plus(encoded)
            there[message.seq] = MessageSum().plus(encoded)
        if digests and digests[number] == total:
            continue
        for message in stored.messages(one):
            held = MessageSum().plus((renamed.message(message) if renamed else message).encoded())
            found = there.get(message.seq)
            if found != held:
                (missing if found is None else other).append(message.seq)
    return Difference(Sequences.of(missing), Sequences.of(other))


def _named(found: Sequences) -> str:
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, last in found.ranges[:MAX_NAMED]]
    return ", ".join(shown) + (", ..." if len(found.ranges) > MAX_NAMED else "")
