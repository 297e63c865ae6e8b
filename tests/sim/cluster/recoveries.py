"""The judge of recoveries: what a server reads of its journal when it starts, at that moment, against what the process
before it had in memory. Where no record of a group is lost, its log is the same, with all that it says of itself. Most
of that is asked for only after a second accident: whether the log may lack what was committed, is to fetch a state, or
counts for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.journal.recovery import Recovered, RecoveredGroup
from jetcluster.raft.membership import Config
from testkit.sim.deployment import Deployment
from testkit.sim.machine import JOURNAL

SAME = (
    "term", "voted_for", "base_index", "base_term", "last_index", "durable", "fetching", "relaxed", "kept", "damaged",
    "joining",
)  # fmt: skip
"""Fields that a log and what is read of it have alike."""


class Recoveries:
    """It tells `deployment.failed` of logs that are not what they were."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the logs that were compared."""
        self._deployment = deployment
        self._before: WeakKeyDictionary[object, Journal] = WeakKeyDictionary()
        """By the files of a machine, the journal of its newest process."""

    def opened(self, journal: Journal, found: Recovered) -> None:
        files = attrgetter("_disk._files")(journal)
        before, self._before[files] = self._before.get(files), journal
        if before is None or found.damage or before.failed is not None:
            return
        if not any(
            one.disk.files is files and one.disk_troubled(JOURNAL) for one in self._deployment.machines.values()
        ):
            for gid in [gid for gid, log in before.groups.items() if log.durable_gseq and gid not in found.groups]:
                self._broken(files, gid, "nothing of it is left when its journal is read again")
        for gid, group in found.groups.items():
            log = before.groups.get(gid)
            if log is None or log.gseq != group.gseq or group.harmed or (group.damaged and not log.damaged):
                continue  # its newest records were not written, or it has left, or that some are missing was noticed
            self.looked += 1
            for what in different(log, group):
                self._broken(files, gid, what)

    def _broken(self, files: object, gid: int, what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {self._name(files)}, group {gid}: {what}")

    def _name(self, files: object) -> str:
        names = [name for name, machine in self._deployment.machines.items() if machine.disk.files is files]
        return names[0] if names else "a server"


def different(log: GroupLog, found: RecoveredGroup) -> Iterator[str]:
    """`log`: in memory when its process ended."""
    for name in SAME:
        if (was := getattr(log, name)) != (now := getattr(found, name)):
            yield f"its log has {name} {now!r} when it is read again, and had {was!r}"
    if bool(log.credit) != found.credit:
        yield f"its log is on credit up to {log.credit}, and when it is read again: {found.credit}"
    terms = [found.entries[at].term for at in range(found.base_index + 1, found.last_index + 1)]
    if terms != list(attrgetter("_terms")(log)):
        yield "its entries have other terms when they are read again"
    newer = [(at, place.config) for at, place in sorted(found.entries.items()) if place.config is not None]
    configs = [(found.base_index, found.base_config or Config(())), *newer]
    if configs != log.configs:
        yield f"its members are {configs} when they are read again, and were {log.configs}"


@contextmanager
def watched(deployment: Deployment) -> Iterator[Recoveries]:
    """All starts are looked at meanwhile."""
    recoveries = Recoveries(deployment)
    usual: Callable[..., Any] = Journal.open

    def opened(self: Journal) -> Recovered:
        found: Recovered = usual(self)
        recoveries.opened(self, found)
        return found

    with patch.object(Journal, "open", opened):
        yield recoveries
