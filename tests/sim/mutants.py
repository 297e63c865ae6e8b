"""The engine with one safety measure taken away: the simulation must notice each.

Rows (D12 and the like) are those of docs/reference/pysyncobj.md.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

from jetcluster.raft import codec, membership
from jetcluster.raft.core import changes, engine, group, lease, promise, read_index, receiver
from jetcluster.raft.journal import recovery
from jetcluster.raft.journal.log import GroupLog

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]
MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, owner: object, method: str) -> Callable[[Callable[[Any], Any]], None]:
    """Adds one whose `method` is made, by the function below, of the real one."""

    def add(make: Callable[[Any], Any]) -> None:
        MUTANTS[name] = lambda: mock.patch.object(owner, method, make(getattr(owner, method)))

    return add


@mutant("ack before fsync", GroupLog, "append")
def _ack_before_fsync(real: Any) -> Any:
    """D12: entries count as durable when they are in memory."""

    def append(self: GroupLog, kind: int, term: int, command: bytes) -> int:
        self.written_index = real(self, kind, term, command)
        return self.written_index

    return append


@mutant("votes not held", group.Group, "send_vote")
def _votes_not_held(real: Any) -> Any:
    """D10: a vote leaves before it is on disk."""
    return lambda self, peer, term: self.send(peer, codec.encode(codec.VoteReply(term, True)))


@mutant("truncate matching", receiver, "plan")
def _truncate_matching(real: Any) -> Any:
    """D2: a batch replaces what follows `prev`, equal or not."""

    def plan(log: GroupLog, commit: int, message: codec.Append, matched: bool) -> receiver.Plan:
        planned = real(log, commit, message, matched)
        whole = log.base_index <= message.prev_index <= log.last_index
        if isinstance(planned, receiver.Held | receiver.New) and whole and message.prev_index < log.last_index:
            return receiver.New(message.prev_index, message.prev_term, message.entries)
        return planned

    return plan


@mutant("commit without disks", membership.Config, "quorum_index")
def _commit_without_disks(real: Any) -> Any:
    """The base's own commit rule, which counts the leader before its fsync."""
    return lambda self, reached: max(reached.values())


@mutant("reads unconfirmed", read_index.ReadRounds, "_agree")
def _reads_unconfirmed(real: Any) -> Any:
    """D17: a leader by its own account answers."""
    return lambda self, opened: True


@mutant("many changes", changes.Changes, "_check")
def _many_changes(real: Any) -> Any:
    """D5: changes are not kept apart."""

    def check(self: changes.Changes) -> membership.Config:
        config: membership.Config = self._state.log.config
        if not self._state.engine.leading:
            raise group.NotLeaderError(None)
        return config

    return check


@mutant("damage ignored", recovery, "_finish")
def _damage_ignored(real: Any) -> Any:
    """A journal that skips what does not validate."""

    def finish(found: recovery.RecoveredGroup) -> None:
        found.trusted = None
        real(found)
        found.damaged = False

    return finish


@mutant("one vote is enough", engine.Engine, "receive_vote")
def _one_vote_is_enough(real: Any) -> Any:
    """Elections by a minority."""

    def receive_vote(self: engine.Engine, peer: str, term: int) -> None:
        for voter in list(self._SyncObj__otherNodes):
            if self.leading or term != self.term:
                return
            real(self, voter.id, term)

    return receive_vote


@mutant("committed by the new voters", membership.Config, "quorum_index")
def _committed_by_the_new(real: Any) -> Any:
    """In a joint configuration the old voters are not asked."""
    return lambda self, reached: real(dataclasses.replace(self, outgoing=()), reached)


@mutant("voters change at once", membership.Config, "joint")
def _at_once(real: Any) -> Any:
    """Voters change from one set to another without a joint configuration between them."""
    return lambda self, voters: real(self, voters).left()


@mutant("lease too long", lease, "use_of")
def _lease_too_long(real: Any) -> Any:
    """A leader reads for longer than its voters promised."""
    return lambda config: 3 * real(config)


@mutant("clocks agree", lease, "use_of")
def _clocks_agree(real: Any) -> Any:
    """A lease that takes no account of clocks that are wrong within the bound."""
    return lambda config: config.lease


@mutant("lease from its grant", lease.Lease, "on_grant")
def _lease_from_its_grant(real: Any) -> Any:
    """A lease that counts from when the answer came: a process that stood still meanwhile has one that is over."""

    def on_grant(self: lease.Lease, peer: str, number: int) -> None:
        now = int(self._now() * 1e9)
        self.asked = collections.deque([(asked, now) for asked, _ in self.asked], maxlen=self.asked.maxlen)
        real(self, peer, number)

    return on_grant


@mutant("early vote", promise.Promise, "give")
def _early_vote(real: Any) -> Any:
    """A voter that promises, and does not keep it."""
    return lambda self, message: True


@mutant("promise forgotten", promise.Promise, "__init__")
def _promise_forgotten(real: Any) -> Any:
    """A voter that votes at once after its restart."""

    def init(self: promise.Promise, node: Any, log: GroupLog) -> None:
        real(self, node, log)
        self.end()

    return init


@mutant("lease outlives a transfer", lease.Lease, "release")
def _lease_outlives_a_transfer(real: Any) -> Any:
    """A leader that hands over frees its voters, and goes on reading."""

    def release(self: lease.Lease) -> None:
        until, kept = self.until, dict(self.promised)
        real(self)
        self.until, self.promised = until, kept

    return release
