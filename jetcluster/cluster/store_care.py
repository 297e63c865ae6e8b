"""Watch on the data store for faults that a restart of the server repairs.

Damaged files are renewed at a start, which is requested only where peers have the data and can do without this node.

A disk that failed once and recovered leaves faults that do not heal by themselves: RocksDB refuses all writes until it
is reopened, a replica whose command met the failure has stopped, an unreadable stream was not started. The server then
restarts once the disk takes writes, and loses nothing: the journal has all that the store lacks. It waits for the other
nodes as above, but not without end: a node that applies nothing is of no use to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.cluster.restart_safety import RestartSafety
from jetcluster.health.node_health import Aspect
from jetcluster.meta.state import Assignment
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Network, Runtime
from jetcluster.replica.turn_commit import TurnCommit
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError, KvError

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

LOOK_SECONDS: Final = 10.0
"""Time between two checks of the files' sizes."""
RETRY_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 5.0
"""Time after a start in which nothing is renewed: the node first finds its peers."""
REFUSED_SECONDS: Final = 15.0
"""Time of refused writes before a restart: RocksDB resumes by itself after some failures."""
WAIT_SECONDS: Final = 60.0
"""Time after which the restart no longer waits for nodes that could take over meanwhile."""
PAUSE_SECONDS: Final = 15.0
"""Wait of a renewal for a moment in which no group must pause. A group of two has no such moment."""
PROBE_SECONDS: Final = 5.0
PASSING: Final = (KvError, OSError, MemoryError)
"""Errors of the machine that may be over at the next attempt."""


class StoreCare:
    """The checks and restarts; `tick` runs a few times per second. One per node."""

    def __init__(
        self, runtime: Runtime, network: Network, commits: TurnCommit, replicas: Mapping[int, StreamReplica],
        broken: Mapping[int, tuple[Assignment, str]], safety: RestartSafety, background: Background,
        renew: Callable[[str], None], start_again: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`renew(reason)` restarts with a renewed store, `start_again(reason)` with this one; either may decline."""
        self._runtime, self._network, self._commits = runtime, network, commits
        self._replicas = replicas
        self._broken = broken
        self._safety = safety
        self._background = background
        self._renew = renew
        self._start_again = start_again
        self._look_at = self._try_at = runtime.clock.monotonic() + SETTLE_SECONDS
        self._damaged_since: float | None = None
        self._asked = False
        self._fault = ""
        self._unread: set[int] = set()
        """Groups of `broken` with unreadable records."""
        self._failing_since: float | None = None
        network.raft.health.watch(Aspect.DATA, self.trouble)

    def trouble(self) -> str:
        """Returns why replicas placed here may not start, or "". Part of the node's health, for placement."""
        return self._commits.kv.damage or self._unreadable()

    def note(self, error: BaseException | None, gid: int = 0) -> None:
        """Takes the error of a part of this node that has stopped, or of group `gid`'s replica that was not started."""
        if gid and isinstance(error, KvDamagedError | DamagedError):
            self._unread = {found for found in self._unread if found in self._broken} | {gid}
        if isinstance(error, PASSING) and not isinstance(error, KvDamagedError) and not self._fault:
            self._fault = repr(error)

    def tick(self) -> None:
        now = self._runtime.clock.monotonic()
        kv = self._commits.kv
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            kv.check_files()
        reason = self.trouble()
        if now < self._try_at or self._asked:
            return
        if reason:
            self._try_at = now + RETRY_SECONDS
            self._damaged(now, reason)
        else:
            self._failing(now, kv.unwritable or self._fault)

    def _damaged(self, now: float, reason: str) -> None:
        if self._damaged_since is None:
            self._damaged_since = now
            self._runtime.log.error("the files of the data store are damaged", damage=reason)
        if not self._network.cluster_name:
            return  # no peer has the data: what can be read is all there is
        self._background.spawn(self._try(reason, may_pause=now - self._damaged_since >= PAUSE_SECONDS))

    def _failing(self, now: float, reason: str) -> None:
        if not reason:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= REFUSED_SECONDS:
            self._try_at = now + RETRY_SECONDS + PROBE_SECONDS
            self._background.spawn(self._try_start(reason, patient=now - self._failing_since < WAIT_SECONDS))

    async def _try(self, reason: str, *, may_pause: bool) -> None:
        alone = [a.name for a in self._hurt() if self._is_only_here(a)]
        if alone:
            # Their remains can be read as long as the store is not renewed.
            self._runtime.log.debug("the data store is not renewed: no peer has these streams", streams=alone)
            return
        if await self._can_be_spared(may_pause=may_pause) and not self._asked:
            self._asked = True
            self._renew(reason)

    async def _try_start(self, reason: str, *, patient: bool) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._commits.kv.probe()
        except (KvError, TimeoutError) as error:
            self._runtime.log.debug("the disk is not well yet", error=repr(error))
            return
        if await self._can_be_spared() or not patient:
            self._start_again(reason)

    async def _can_be_spared(self, *, may_pause: bool = False) -> bool:
        safety = await self._safety.check()
        risks = [risk.text for risk in safety.risks if not (may_pause and risk.passing)]
        if risks:
            self._runtime.log.debug("the server does not start again yet", risks=risks)
        return not risks

    def _unreadable(self) -> str:
        """Returns the damage that kept from starting a stream that other nodes have, or that would be new here."""
        never_had = self._network.raft.journal.never_had
        for gid, (assignment, why) in self._broken.items():
            damaged = gid in self._unread or "damaged" in why.lower()
            if damaged and (len(assignment.peers) > 1 or never_had(gid)):
                return why
        return ""

    def _hurt(self) -> list[Assignment]:
        found = [
            replica.assignment
            for replica in self._replicas.values()
            if replica.repair.in_store or isinstance(replica.group.fault, KvDamagedError)
        ]
        return found + [assignment for assignment, _ in self._broken.values()]

    def _is_only_here(self, assignment: Assignment) -> bool:
        """True when no peer has the stream, and this node may have it without a log to rebuild it from. A stream
        assigned to this node alone may still be with the nodes that it moves away from: while they vote in its group,
        by a complete log, one of them has everything that was committed. Or it never began here."""
        raft, gid = self._network.raft, assignment.gid
        if len(assignment.peers) > 1 or raft.journal.never_had(gid) or raft.holds_all(gid):
            return False
        log = raft.journal.groups.get(gid)
        return log is None or log.damaged or set(log.config.electorate) <= {self._network.me}
