"""Putting the messages of an archive into a new stream, with the sequences and times that they had.

A stream that is being restored has `restoring: true` in its configuration: it takes no publishes and answers no reads
(`rules.StreamRules` leaves all else off), so nothing comes between the messages. The update that takes the key away
makes it an ordinary stream; limits and expiry hold from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.api import Msg
from jetcluster.store.batch import MAX_COUNT, Batch
from jetcluster.stream.commands import Restore, RestoreEnd, Run
from jetcluster.stream.cron import CronError
from jetcluster.stream.expiry import Expiry
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.ports import MachineStore
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.schedules import PATTERN, Schedules, pattern_of
from jetcluster.stream.ttl import parse_ttl

_REFUSED: Final = errors.by_code(10062, err="the stream is not being restored")
_GAP_SUBJECT: Final = b"_"


def runs_of(messages: Sequence[Msg]) -> list[Run]:
    """The ascending messages as batches: as long as sequences and times go on by one, which they do in what one of our
    own streams took in as one batch."""
    runs: list[Run] = []
    start = 0
    for i in range(1, len(messages) + 1):
        if i < len(messages) and i - start < MAX_COUNT:
            before, message = messages[i - 1], messages[i]
            if message.seq == before.seq + 1 and message.ts == before.ts + 1:
                continue
        part = messages[start:i]
        headers = [message.headers for message in part]
        batch = Batch.of([m.subject for m in part], headers if any(headers) else [], [m.payload for m in part])
        runs.append(Run(part[0].seq, part[0].ts, batch))
        start = i
    return runs


def restore(
    store: MachineStore, rules: StreamRules, expiry: Expiry, schedules: Schedules, command: Restore
) -> int | ApiError:
    """Stores what is not there yet (a command may come twice, after a change of leaders); how many messages."""
    if not rules.restoring:
        return _REFUSED
    wanted = rules.restored()
    stored = 0
    for run in command.runs:
        if run.seq <= store.last_seq:
            continue
        store.append(run.batch, run.seq, run.ts)
        stored += run.batch.count
        if wanted.allow_msg_ttl or wanted.allow_msg_schedules:
            _note(run, wanted, expiry, schedules)
    expiry.seal()
    return stored


def finish(store: MachineStore, rules: StreamRules, command: RestoreEnd) -> int | ApiError:
    """The last sequences may be those of deleted messages: the stream goes on behind them all the same."""
    if not rules.restoring:
        return _REFUSED
    last = command.last_seq
    if last <= store.last_seq:
        return 0
    if not store.messages:
        store.compact(last + 1)
        return 0
    store.append(Batch.of([_GAP_SUBJECT], [], [b""]), last, max(command.last_ts, store.state.last_ts))
    store.delete(last)
    return 0


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
            except CronError:  # another server let a pattern in that never fires
                continue
