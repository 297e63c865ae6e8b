"""The engine with one safety measure taken away: the simulation must notice each.

Rows (D12 and the like) are those of docs/reference/pysyncobj.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from jetcluster.raft import membership
from jetcluster.raft.codec import Append
from jetcluster.raft.core import changes, engine, group, read_index, receiver
from jetcluster.raft.journal import recovery
from jetcluster.raft.journal.log import GroupLog

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]


def _ack_before_fsync() -> contextlib.AbstractContextManager[Any]:
    """D12: entries count as durable when they are in memory."""

    def append(self: GroupLog, kind: int, term: int, command: bytes) -> int:
        self.written_index = real(self, kind, term, command)
        return self.written_index

    real = GroupLog.append
    return mock.patch.object(GroupLog, "append", append)


@contextlib.contextmanager
def _votes_not_held() -> Iterator[None]:
    """D10: a vote leaves before it is on disk."""
    from jetcluster.raft import codec

    def send_vote(self: group.Group, peer: str, term: int) -> None:
        self.send(peer, codec.encode(codec.VoteReply(term, True)))

    with mock.patch.object(group.Group, "send_vote", send_vote):
        yield


@contextlib.contextmanager
def _truncate_matching() -> Iterator[None]:
    """D2: a batch replaces what follows `prev`, equal or not."""

    def plan(log: GroupLog, commit: int, message: Append, matched: bool) -> receiver.Plan:
        planned = real(log, commit, message, matched)
        whole = log.base_index <= message.prev_index <= log.last_index
        if isinstance(planned, receiver.Held | receiver.New) and whole and message.prev_index < log.last_index:
            return receiver.New(message.prev_index, message.prev_term, message.entries)
        return planned

    real = receiver.plan
    with mock.patch.object(receiver, "plan", plan):
        yield


def _commit_without_disks() -> contextlib.AbstractContextManager[Any]:
    """The base's own commit rule, which counts the leader before its fsync."""
    return mock.patch.object(membership.Config, "quorum_index", lambda self, reached: max(reached.values()))


def _reads_unconfirmed() -> contextlib.AbstractContextManager[Any]:
    """D17: a leader by its own account answers."""
    return mock.patch.object(read_index.ReadRounds, "_agree", lambda self, opened: True)


@contextlib.contextmanager
def _many_changes() -> Iterator[None]:
    """D5: changes are not kept apart."""

    def check(self: changes.Changes) -> membership.Config:
        config: membership.Config = self._state.log.config
        if not self._state.engine.leading:
            raise group.NotLeaderError(None)
        return config

    with mock.patch.object(changes.Changes, "_check", check):
        yield


def _damage_ignored() -> contextlib.AbstractContextManager[Any]:
    """A journal that skips what does not validate."""

    def finish(found: recovery.RecoveredGroup) -> None:
        found.trusted = None
        real(found)
        found.damaged = False

    real = recovery._finish
    return mock.patch.object(recovery, "_finish", finish)


def _one_vote_is_enough() -> contextlib.AbstractContextManager[Any]:
    """Elections by a minority."""

    def receive_vote(self: engine.Engine, peer: str, term: int) -> None:
        for voter in list(self._SyncObj__otherNodes):
            if self.leading or term != self.term:
                return
            real(self, voter.id, term)

    real = engine.Engine.receive_vote
    return mock.patch.object(engine.Engine, "receive_vote", receive_vote)


def _committed_by_the_new() -> contextlib.AbstractContextManager[Any]:
    """In a joint configuration the old voters are not asked."""

    def reached_by(self: membership.Config, reached: dict[str, int]) -> int:
        return real(dataclasses.replace(self, outgoing=()), reached)

    real = membership.Config.quorum_index
    return mock.patch.object(membership.Config, "quorum_index", reached_by)


def _at_once() -> contextlib.AbstractContextManager[Any]:
    """Voters change from one set to another without a joint configuration between them."""
    real = membership.Config.joint
    return mock.patch.object(membership.Config, "joint", lambda self, voters: real(self, voters).left())


MUTANTS: dict[str, Mutant] = {
    "ack before fsync": _ack_before_fsync,
    "votes not held": _votes_not_held,
    "truncate matching": _truncate_matching,
    "commit without disks": _commit_without_disks,
    "reads unconfirmed": _reads_unconfirmed,
    "many changes": _many_changes,
    "damage ignored": _damage_ignored,
    "one vote is enough": _one_vote_is_enough,
    "committed by the new voters": _committed_by_the_new,
    "voters change at once": _at_once,
}
