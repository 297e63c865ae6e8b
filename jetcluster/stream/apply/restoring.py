"""Restoring a stream: storing the messages of an archive in a new stream, with their sequences and times.

A stream that is being restored has `restoring: true` in its configuration: it takes no publishes and answers no reads
(`rules.StreamRules` switches everything else off). The update that removes the key makes it an ordinary stream; limits
and expiry hold from then on.

SNAPSHOT sends, and RESTORE takes, an archive in nats-server's format V2: "NATSARC1", then entries of

    uvarint length of name | varint time, nanoseconds | uvarint sequence | uvarint size of headers | uvarint of payload
    | name | headers | payload

The first entry is `state.json` and the next ones are `consumers/<name>`, all with sequence 0. The messages follow,
ascending, named by their subjects; an entry of zeros ends the archive. Numbers are Go's varints (signed ones: zigzag).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError, PeerError
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.cron import CronError
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.expiry import Expiry
from jetcluster.stream.apply.schedules import PATTERN, Schedules, pattern_of
from jetcluster.stream.apply.sourced import skip_to
from jetcluster.stream.fields import nats_fields, parse_ttl
from jetcluster.stream.log.bodies import LATEST_TIME, Run, cutting
from jetcluster.stream.log.commands import Restore, RestoreEnd
from jetcluster.stream.rules import StreamRules

MAGIC: Final = b"NATSARC1"
END: Final = bytes(5)
STATE_NAME: Final = b"state.json"
CONSUMER_PREFIX: Final = b"consumers/"
MAX_NAME_BYTES: Final = 65_535
MAX_BODY_BYTES: Final = 72 << 20
"""Bytes of an entry's header block and payload: above nats-server's largest max_payload."""
_TAR_MAGIC: Final = b"ustar"


class ArchiveError(PeerError):
    """The bytes are no readable archive."""


class ArchiveEntry(NamedTuple):
    """One entry, as in the module's docstring."""

    name: bytes
    ts: int
    seq: int
    """Sequence of a message; 0 for other entries."""
    headers: bytes
    payload: bytes


def encode(name: bytes, ts: int, seq: int, headers: bytes, payload: bytes) -> bytes:
    head = (_uvarint(len(name)), _uvarint(_zigzag(ts)), _uvarint(seq), _uvarint(len(headers)), _uvarint(len(payload)))
    return b"".join((*head, name, headers, payload))


class ArchiveReader:
    """Reads an archive in pieces of any size; holds at most one incomplete entry."""

    def __init__(self) -> None:
        self.finished = False
        self._pending = bytearray()
        self._begun = False

    @property
    def held(self) -> int:
        """Bytes of the incomplete entry."""
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[ArchiveEntry]:
        """The entries that `data` completes. Raises ArchiveError."""
        pending = self._pending
        pending += data
        if not self._begun and not self._begin():
            return
        at = 0
        try:
            while not self.finished and (found := _entry(pending, at)) is not None:
                entry, at = found
                if entry is None:
                    self.finished = True
                else:
                    yield entry
            if self.finished and at < len(pending):
                raise ArchiveError("bytes behind the end of the archive")
        finally:
            del pending[:at]

    def _begin(self) -> bool:
        pending = self._pending
        if bytes(pending[:8]) == MAGIC:
            del pending[:8]
            self._begun = True
            return True
        if not MAGIC.startswith(bytes(pending[:8])):
            tar = bytes(pending[:8]) in (b"meta.inf", b"meta.sum") or _TAR_MAGIC in pending[:512]
            raise ArchiveError(
                "a tar archive of nats-server before 2.15 is not supported" if tar else "unknown archive format"
            )
        return False


def _entry(data: bytearray, at: int) -> tuple[ArchiveEntry | None, int] | None:
    """The entry at `at` and the place of the next one; (None, place) for the end, None for an incomplete entry."""
    numbers: list[int] = []
    for _ in range(5):
        value = shift = 0
        while True:
            if at >= len(data):
                return None
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ArchiveError("number too long")
        numbers.append(value)
    name_size, ts, seq, header_size, payload_size = numbers
    if not any(numbers):
        return None, at
    if (
        not 0 < name_size <= MAX_NAME_BYTES
        or header_size + payload_size > MAX_BODY_BYTES
        or seq >= 1 << 63
        or ts >= 1 << 64
    ):
        raise ArchiveError("entry out of bounds")
    headers_at = at + name_size
    payload_at = headers_at + header_size
    end = payload_at + payload_size
    if end > len(data):
        return None
    name, headers = bytes(data[at:headers_at]), bytes(data[headers_at:payload_at])
    return ArchiveEntry(name, ts >> 1 ^ -(ts & 1), seq, headers, bytes(data[payload_at:end])), end


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_OUT_OF_BOUNDS: Final = errors.by_code(10062, err="a sequence or a time is out of bounds")
_REFUSED: Final = errors.by_code(10062, err="the stream is not being restored")
_MSG_ID: Final = b"Nats-Msg-Id:"


def each_run(messages: Sequence[Msg]) -> Iterator[Run]:
    """The ascending messages as runs (`bodies.cutting`)."""
    if not messages:
        return iter(())
    seqs, times, subjects, headers, payloads = (list(column) for column in zip(*messages, strict=True))
    return cutting(seqs, times, subjects, headers, payloads)


class Into(NamedTuple):
    """The stream to restore: its store, rules and side tables."""

    store: BlockStore
    rules: StreamRules
    dedupe: DedupeWindow
    expiry: Expiry
    schedules: Schedules


def restore(into: Into, command: Restore) -> int | ApiError:
    """Stores the messages that are not there yet (a command may come twice). Returns how many, or an error."""
    if not into.rules.restoring:
        return _REFUSED
    if not all(run.in_bounds for run in command.runs):
        return _OUT_OF_BOUNDS
    wanted = into.rules.restored()
    store = into.store
    stored = 0
    for run in command.runs:
        if run.seq <= store.last_seq:
            continue
        store.append(run.batch, run.seq, run.ts)
        stored += run.batch.count
        if wanted.allow_msg_ttl or wanted.allow_msg_schedules:
            _note(run, wanted, into.expiry, into.schedules)
        if wanted.duplicate_window and run.ts + wanted.duplicate_window > command.ts:
            _note_ids(run, into.dedupe)
    into.expiry.seal()
    return stored


def last_msg_id(command: Restore) -> bytes:
    """Nats-Msg-Id of the last message, b"" when it has none."""
    batch = command.runs[-1].batch
    return _msg_id(batch.headers_of(batch.count - 1))


def finish(store: BlockStore, rules: StreamRules, command: RestoreEnd) -> int | ApiError:
    """Ends the messages: the stream goes on after `last_seq`, which may be that of a deleted message."""
    if not rules.restoring:
        return _REFUSED
    if command.last_seq > FARTHEST_SEQ or abs(command.last_ts) > LATEST_TIME:
        return _OUT_OF_BOUNDS
    skip_to(store, command.last_seq, command.last_ts)
    return 0


def _note_ids(run: Run, dedupe: DedupeWindow) -> None:
    """Notes message ids of a run inside the window: their publishers may repeat them."""
    batch = run.batch
    ids = [(run.seq + i, _msg_id(batch.headers_of(i))) for i in range(batch.count if batch.has_headers else 0)]
    ids = [(seq, msg_id) for seq, msg_id in ids if msg_id]
    for seq, msg_id in ids:
        dedupe.add(msg_id, seq)
    if ids:
        dedupe.seal(run.ts, ids)


def _msg_id(headers: bytes) -> bytes:
    return nats_fields(headers).get(b"Nats-Msg-Id", b"") if _MSG_ID in headers else b""


def _note(run: Run, wanted: StreamRules, expiry: Expiry, schedules: Schedules) -> None:
    batch = run.batch
    for i in range(batch.count if batch.has_headers else 0):
        fields = nats_fields(batch.headers_of(i))
        seq, ts = run.seq + i, run.ts + i
        seconds = parse_ttl(fields.get(b"Nats-TTL", b"")) if wanted.allow_msg_ttl else None
        if seconds is not None:
            expiry.note(seq, ts, seconds)
        if wanted.allow_msg_schedules and fields.get(PATTERN) and pattern_of(fields) is not None:
            try:
                schedules.note(seq, ts, fields)
            except CronError:  # the archive's server accepted a pattern that never fires
                continue
