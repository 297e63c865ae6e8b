"""The judge of what journals give up: when a segment goes, all that memory knows of each group is in later ones, and on
the disk before the segment goes; and no more segments stay than the retention allows. A group that has lost its vote
or its members with a segment does harm only at the next start of its server, and only where that vote mattered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING
from unittest.mock import patch
from weakref import WeakKeyDictionary

from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.retention import Retention
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import raft_of

if TYPE_CHECKING:
    from jetcluster.raft.journal.log import GroupLog
    from testkit.sim.machine import Machine

KEPT = 5.0
"""Seconds within which the oldest segment is free of what may be written again: a journal looks once a second, and
writes a segment's bytes at a time."""


class Segments:
    """It tells `deployment.failed` of what is gone too early, or stays."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the segments that were given up."""
        self._deployment = deployment
        self._given_up: WeakKeyDictionary[Journal, dict[int, int]] = WeakKeyDictionary()
        """By segment that is to be deleted, the newest batch with what replaces it."""
        self._full: WeakKeyDictionary[Journal, tuple[int, float]] = WeakKeyDictionary()
        """The oldest segment of a journal that has too many, and since when."""

    def collected(self, retention: Retention, before: int, batch: int, end: int = 0) -> None:
        """The journal has just given up its segments from `before` on, if any. `batch` was its newest one before; it
        might give up those before `end`."""
        journal: Journal = attrgetter("_journal")(retention)
        for segment in range(before, retention.oldest):
            self.looked += 1
            self._given_up.setdefault(journal, {})[segment] = batch
            for log in journal.groups.values():
                first = log.first_segment()
                if log.stated <= segment:
                    self._broken(journal, f"gives up segment {segment}, with the newest state of group {log.gid}")
                if first is not None and first <= segment:
                    self._broken(journal, f"gives up segment {segment}, with entries of group {log.gid}")
        if retention.oldest < end and journal.failed is None and not _holders(journal, retention.oldest):
            self._broken(journal, f"keeps segment {retention.oldest}, of which no group has anything")
        self._count(journal, retention)

    def deleted(self, journal: Journal, segment: int) -> None:
        batch = self._given_up.get(journal, {}).pop(segment, None)
        if batch is None:
            self._broken(journal, f"deletes segment {segment}, which it has not given up")
        elif batch > journal.synced:
            self._broken(journal, f"deletes segment {segment}, and batch {batch} that replaces it is not on the disk")

    def _count(self, journal: Journal, retention: Retention) -> None:
        """Too many segments are kept for a while only: what is to stay of the oldest one is written again."""
        options, now = journal.options, self._deployment.scheduler.now
        most = max(1, options.node_retain_bytes // options.segment_bytes)
        kept = journal.segment - retention.oldest
        if kept <= most:
            self._full.pop(journal, None)
            return
        machine = self._machine(journal)
        oldest, since = self._full.get(journal, (0, now))
        if machine is None or oldest != retention.oldest or _excused(journal, retention.oldest, machine):
            self._full[journal] = retention.oldest, now
        elif now - since > KEPT:
            what = f"keeps {kept} segments for {now - since:.1f} s, of {most} that it may"
            self._broken(journal, f"{what}: the oldest is {oldest}")

    def _machine(self, journal: Journal) -> Machine | None:
        for machine in self._deployment.machines.values():
            raft = raft_of(machine)
            if raft is not None and raft.journal is journal:
                return machine
        return None

    def _broken(self, journal: Journal, what: str) -> None:
        machine = self._machine(journal)
        name = "a server that starts" if machine is None else machine.name
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: the journal of {name} {what}")


def _excused(journal: Journal, oldest: int, machine: Machine) -> bool:
    """There is a reason to keep the oldest segment: a peer needs it, it cannot be read, nothing can be written, or
    quiet groups wait for a batch with which to tell their state."""
    if journal.failed or journal.scarce or journal.stuck or oldest >= journal.restatement.complete:
        return True
    if machine.paused or machine.disk.hung or machine.clock.slowness != machine.usual_slowness:
        return True
    return any(log.unreadable or log.pin < log.compactable for log in _holders(journal, oldest))


def _holders(journal: Journal, segment: int) -> list[GroupLog]:
    return [log for log in journal.groups.values() if (log.first_segment() or segment + 1) <= segment]


@contextmanager
def watched(deployment: Deployment) -> Iterator[Segments]:
    """All journals are looked at meanwhile."""
    segments = Segments(deployment)
    collects: Callable[..., bool] = Retention.collect
    deletes: Callable[..., None] = Journal.delete

    going: list[tuple[Journal, int]] = []
    collecting = False

    def collect(self: Retention) -> bool:
        nonlocal collecting
        journal, before, collecting = attrgetter("_journal")(self), self.oldest, True
        batch, end = journal.open_seq, min(journal.restatement.complete, journal.newest_segment)
        try:
            again = collects(self)
        finally:
            collecting = False
        segments.collected(self, before, batch, end)
        while going:
            segments.deleted(*going.pop(0))
        return again

    def delete(self: Journal, segment: int) -> None:
        deletes(self, segment)
        if collecting:  # it has been given up in the same moment
            going.append((self, segment))
        else:
            segments.deleted(self, segment)

    with patch.object(Retention, "collect", collect), patch.object(Journal, "delete", delete):
        yield segments
