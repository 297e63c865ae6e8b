"""The lag of replicas behind their leader, in messages and in seconds.

A leader knows the last log entry of each peer. Notes (time, newest entry, newest message), taken once per second for
each stream led here, turn that entry into messages and time. So the lag is exact to about one second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jetcluster.clock import TimerHandle
from jetcluster.monitor.view import engine_of
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica

NOTE_SECONDS = 1.0
MAX_NOTES = 64
"""Notes per stream. Beyond it every second one is dropped, so older notes are coarser."""
IDLE_SECONDS = 300.0
"""Seconds without a query after which no more notes are taken."""


class Lag(NamedTuple):
    """The entries and messages that a replica lacks, and the seconds by which it is late."""

    entries: int
    messages: int
    seconds: float


class _Note(NamedTuple):
    since: float
    until: float
    """End of the time in which `entry` was the newest."""
    entry: int
    sequence: int


class LagNotes:
    """The notes of the streams led here."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.notes: dict[int, list[_Note]] = {}
        """The notes of each group."""
        self._asked = 0.0
        self._timer: TimerHandle | None = None

    def asked(self) -> None:
        """Notes a query: notes are taken for the next `IDLE_SECONDS`."""
        self._asked = self._node.clock.monotonic()
        if self._timer is None:
            self._take_notes()

    def _take_notes(self) -> None:
        self._timer = None
        now = self._node.clock.monotonic()
        engine = engine_of(self._node)
        if engine is None or now - self._asked > IDLE_SECONDS:
            self.notes.clear()
            return
        led = {gid: replica for gid, replica in engine.replicas.items() if replica.leading}
        for gid in self.notes.keys() - led.keys():
            del self.notes[gid]
        for gid, replica in led.items():
            self._note(self.notes.setdefault(gid, []), replica, now)
        self._timer = self._node.server.timers.call_later(NOTE_SECONDS, self._take_notes)

    @staticmethod
    def _note(notes: list[_Note], replica: StreamReplica, now: float) -> None:
        entry = replica.group.applied_index
        if notes and notes[-1].entry == entry:
            notes[-1] = notes[-1]._replace(until=now)
        else:
            notes.append(_Note(now, now, entry, replica.store.state.last_seq))
            if len(notes) > MAX_NOTES:
                del notes[1:-1:2]

    def of(self, replica: StreamReplica, match: int, missing: Callable[[], int | None]) -> Lag:
        """Returns the lag of a peer that has the log up to `match`. `missing`: the messages that a peer has yet to
        fetch, when it fetches the whole state."""
        group, now = replica.group, self._node.clock.monotonic()
        entries = max(group.commit_index - match, 0)
        if not entries:
            return Lag(0, 0, 0.0)
        newest = replica.store.state.last_seq
        when, sequence = _at(self.notes.get(group.gid, ()), match, now, newest)
        fetching = missing()
        return Lag(entries, max(newest - sequence, 0) if fetching is None else fetching, max(now - when, 0.0))

    def peers(self, engine: JetStream, replica: StreamReplica) -> Iterator[tuple[str, Lag]]:
        """Yields (peer id, lag) of the other replicas of a stream that is led here."""
        gid = replica.group.gid
        for peer in replica.group.status().peers:
            missing = partial(engine.network.catchup.missing, gid, peer.peer)
            yield peer.peer, self.of(replica, peer.acked_index, missing)


def _at(notes: Sequence[_Note], entry: int, now: float, newest: int) -> tuple[float, int]:
    """(when, newest message) as of `entry`. Between two notes, entries are assumed to grow linearly; before the first
    one nothing is known. Without notes: now."""
    behind = bisect_right(notes, entry, key=lambda note: note.entry)
    if not notes:
        return now, newest
    if behind == len(notes):
        return notes[-1].until, notes[-1].sequence
    if not behind:
        return notes[0].since, notes[0].sequence
    older, newer = notes[behind - 1], notes[behind]
    share = (entry - older.entry) / (newer.entry - older.entry)
    when = older.until + (newer.since - older.until) * share
    return when, older.sequence + round((newer.sequence - older.sequence) * share)
