"""SOURCED commands: messages that a mirror or a source brings from its upstream, and the progress of that link.

The leader's link (`jetcluster.mirror`) puts the messages it receives into the log. Apply decides whether they follow
the stored ones, so that a change of leaders at any moment neither loses nor repeats a message. A command has all of the
upstream's messages after its sequence `after`; if that is beyond the stored ones, an earlier command was lost, and this
one is refused.

A mirror has the key b"" and keeps sequences and times. A source has the key `Upstream.key`; its messages get new
sequences and times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.records import NamedTuple
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.checks import PublishKind
from jetcluster.stream.apply.publish import MessageAdmission
from jetcluster.stream.log.bodies import Sourced
from jetcluster.stream.ports import SIDE_SOURCES

_ROW: Final = struct.Struct("<QI")
_GAP_SUBJECT: Final = b"_"

MIRROR: Final = b""
"""Key of the mirror's link."""

_NO_LINK: Final = errors.by_code(errors.BAD_REQUEST)
_GAP: Final = errors.by_code(errors.BAD_REQUEST)
_OUT_OF_BOUNDS: Final = errors.by_code(10052, err="the upstream's sequences or times are out of bounds")


class Cursor(NamedTuple):
    """Progress of a link."""

    seq: int
    """The upstream's sequence up to which all messages are here."""
    identity: bytes
    """Stands for the upstream's time of creation; b"" when that is not known."""
    lag: int
    """Messages that the upstream had after `seq` when the command was proposed."""


class Cursors:
    """Progress of the stream's links: rows of a side table, with a copy in memory."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._rows: dict[bytes, Cursor] = {}
        for key, value in store.side_scan(SIDE_SOURCES):
            seq, lag = _ROW.unpack_from(value)
            self._rows[key] = Cursor(seq, value[_ROW.size :], lag)

    def get(self, key: bytes) -> Cursor | None:
        return self._rows.get(key)

    def put(self, key: bytes, cursor: Cursor) -> None:
        if self._rows.get(key) != cursor:
            self._rows[key] = cursor
            self._store.side_put(SIDE_SOURCES, key, _ROW.pack(cursor.seq, cursor.lag) + cursor.identity)

    def keep(self, keys: Iterable[bytes]) -> None:
        """Removes all links but these, which the configuration has."""
        for key in sorted(self._rows.keys() - set(keys)):
            del self._rows[key]
            self._store.side_delete(SIDE_SOURCES, key)


def apply(
    command: Sourced, cursors: Cursors, admission: MessageAdmission, store: BlockStore, clock: int
) -> int | ApiError:
    """Stores the new messages. Returns the upstream's sequence up to which all are here now, or an ApiError when one
    did not fit; those before it are stored. Source messages get times from `clock` + 1 on."""
    if command.key not in admission.rules.links:
        return _NO_LINK  # proposed before an update removed it
    refused = admission.refusal(PublishKind.SOURCED)
    if refused is not None:
        return refused
    if command.key == MIRROR:
        return _mirror(command, cursors, admission, store)
    return _source(command, cursors, admission, clock)


def skip_to(store: BlockStore, last_seq: int, ts: int) -> None:
    """Makes `last_seq` the last sequence; the missing ones up to it count as deleted."""
    if last_seq <= store.last_seq:
        return
    if not store.messages:
        store.compact(last_seq + 1)
        return
    store.append(Batch.of([_GAP_SUBJECT], [], [b""]), last_seq, max(ts, store.state.last_ts))
    store.delete_all([last_seq])


def _mirror(command: Sourced, cursors: Cursors, admission: MessageAdmission, store: BlockStore) -> int | ApiError:
    if command.after > store.last_seq:
        return _GAP
    if command.upto > FARTHEST_SEQ or not all(run.in_bounds for run in command.runs):
        return _OUT_OF_BOUNDS
    for run in command.runs:
        known = store.last_seq + 1 - run.seq
        if known >= run.batch.count:
            continue
        seq, ts, batch = run
        if known > 0:
            seq, ts, batch = seq + known, ts + known, batch.select(range(known, batch.count))
        last = store.state.last_ts
        done, error = admission.admit_sourced(batch, max(ts, last + 1), seq)
        if error is not None:
            cursors.put(MIRROR, Cursor(store.last_seq, command.identity, command.lag + batch.count - done))
            return error
    skip_to(store, command.upto, 0)
    cursors.put(MIRROR, Cursor(store.last_seq, command.identity, command.lag))
    return store.last_seq


def _source(command: Sourced, cursors: Cursors, admission: MessageAdmission, clock: int) -> int | ApiError:
    cursor = cursors.get(command.key)
    if cursor is None and command.batch is not None:
        return _GAP  # a link's first command has no messages, only the sequence to begin at
    seen = cursor.seq if cursor is not None else command.after
    if cursor is not None and command.identity != cursor.identity and command.identity and cursor.identity:
        seen = 0  # the upstream was created anew: it begins again
        if command.after:
            return _GAP
    if command.after > seen:
        return _GAP
    batch, seqs = command.batch, command.seqs
    error: ApiError | None = None
    if batch is not None:
        known = sum(1 for seq in seqs if seq <= seen)
        if 0 < known < batch.count:
            batch, seqs = batch.select(range(known, batch.count)), seqs[known:]
        if known < len(command.seqs):
            done, error = admission.admit_sourced(batch, max(command.ts, clock + 1))
            if error is not None:
                seen = seqs[done - 1] if done else seen
                cursors.put(command.key, Cursor(seen, command.identity, command.lag + batch.count - done))
                return error
    seen = max(seen, command.upto)
    cursors.put(command.key, Cursor(seen, command.identity, command.lag))
    return seen
