"""Restoring a stream: storing the messages of an archive in a new stream, with their sequences and times.

A stream that is being restored has `restoring: true` in its configuration: it takes no publishes and answers no reads
(`rules.StreamRules` switches everything else off). The update that removes the key makes it an ordinary stream; limits
and expiry hold from then on. `protocol.stream_archive` is the form of archives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.counters import note_sources
from jetcluster.stream.apply.cron import CronError
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.expiry import Expiry
from jetcluster.stream.apply.schedules import PATTERN, Schedules, pattern_of
from jetcluster.stream.apply.sourced import skip_to
from jetcluster.stream.fields import nats_fields, parse_ttl
from jetcluster.stream.log.bodies import LATEST_TIME, Run, cutting
from jetcluster.stream.log.commands import Restore, RestoreEnd
from jetcluster.stream.rules import StreamRules

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
    if command.counted and wanted.allow_msg_counter:
        note_sources(store)
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
