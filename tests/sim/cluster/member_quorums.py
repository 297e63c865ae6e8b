"""Changes of members, at the moment at which a leader begins each: a majority of those that it leaves can go on, and
has been well for a while. Else the group waits for somebody who may never come. And whoever still decides by the log of
a replica is heard by it, also who is about to leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.raft.admission import Admission
from jetcluster.raft.core.changes import Changes
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import machine_of, quorum, raft_of

if TYPE_CHECKING:
    from testkit.sim.machine import Machine

EVERY = 1.0
"""Seconds between two looks at who is well."""
NOTICED = 6.0
"""Seconds after which a leader knows that a server is away, or that its log is damaged."""


class MemberQuorums:
    """It tells `deployment.failed` of changes that begin too early, and of members that are not heard."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment
        self._away: dict[str, float] = {}
        """By server that does not run, since when."""
        self._damaged: dict[tuple[str, int], tuple[object, float]] = {}
        """(server, group) -> the damaged log, and since when."""
        self._lost: dict[str, float] = {}
        """By Raft's id of a server whose store is gone, since when that is known."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        now, damaged = self._deployment.scheduler.now, {}
        for name, machine in self._deployment.machines.items():
            raft = raft_of(machine)
            if raft is not None:
                self._away.pop(name, None)
            elif not machine.runs:
                self._away.setdefault(name, now)
            for peer in machine.lost_peers:
                self._lost.setdefault(peer, now)
            for gid, log in () if raft is None else raft.journal.groups.items():
                if log.damaged:
                    before, since = self._damaged.get((name, gid), (log, now))
                    damaged[name, gid] = log, (since if before is log else now)
        self._damaged = damaged

    def begins(self, state: Any, joint: Any) -> None:
        """A leader has begun a change, with this joint configuration."""
        found = machine_of(self._deployment.machines.values(), state.log)
        if found is None:
            return
        self.looked += 1
        gid, now = state.log.gid, self._deployment.scheduler.now
        gone = {peer for peer, since in self._lost.items() if now - since > NOTICED}
        gone |= {machine.peer_id for name, machine in self._deployment.machines.items() if self._unwell(name, gid)}
        well = set(joint.electorate) - gone | {state.me}
        if not quorum(joint, well):
            what = f"a change to {joint.voters} of {joint.outgoing} begins, and only {sorted(well)} are well"
            self._broken(found, gid, what)

    def refused(self, admission: Admission, peer: str, gid: int) -> None:
        """A frame of `peer` was refused."""
        group = admission.groups.get(gid)
        if group is not None and group.log.config.has_vote(peer) and admission.is_member(peer):
            for machine in self._deployment.machines.values():
                raft = raft_of(machine)
                if raft is not None and raft.admission is admission:
                    self._broken(machine, gid, f"does not hear {peer}, which decides by {group.log.config}")

    def _unwell(self, name: str, gid: int) -> bool:
        now = self._deployment.scheduler.now
        if name in self._away:
            return now - self._away[name] > NOTICED and not self._deployment.machines[name].runs
        log, since = self._damaged.get((name, gid), (None, now))
        raft = raft_of(self._deployment.machines[name])
        same = raft is not None and raft.journal.groups.get(gid) is log
        return bool(same and log is not None and attrgetter("damaged")(log) and now - since > NOTICED)

    def _broken(self, machine: Machine, gid: int, what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {machine.name}, group {gid}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[MemberQuorums]:
    """All changes, and all frames that are refused, are looked at meanwhile."""
    quorums = MemberQuorums(deployment)
    appends: Callable[..., int] = attrgetter("_append")(Changes)
    refuses: Callable[..., None] = Admission.refuse

    def append(self: Changes, config: Any) -> int:
        state = attrgetter("_state")(self)
        before = state.log.config
        index = appends(self, config)
        if config.outgoing and not before.outgoing:
            quorums.begins(state, config)
        return index

    def refuse(self: Admission, peer: str, gid: int, *why: str) -> None:
        quorums.refused(self, peer, gid)
        refuses(self, peer, gid, *why)

    quorums.begin()
    with patch.object(Changes, "_append", append), patch.object(Admission, "refuse", refuse):
        yield quorums
