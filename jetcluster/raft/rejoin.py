"""The return of a replica whose journal was damaged, or that is added to a group, without ever answering for what it
forgot. A peer that is added may have been a member before, and voters that were away then may still count on it.

It may have acknowledged entries and given votes that it no longer knows of. Until that cannot matter any more it
neither votes nor campaigns, and marks its acks `recovering`, so that a leader sends it entries but does not count it.

It is whole again when its log holds, durably, everything that a leader L of term T had when enough others confirmed L
after the restart: so many that they share a member with every quorum that this replica can have been part of
(`Config.vouches`). With n voters such a quorum has n // 2 others in it, so that is a majority of the n where n is odd,
and one less where it is even: of two, the other one. L counts by every configuration that may be in force by its log,
from the newest committed one on; one that L does not have needs a quorum of these first. Suppose that this replica had
acknowledged an entry, or voted, in a term above T: a quorum was involved, which shares a member other than this replica
with those who confirmed; that member knew the higher term before it confirmed and would have refused L. So everything
it ever vouched for belongs to terms up to T, and by leader completeness L had what was committed of it. (The idea is
that of "Protocol-Aware Recovery for Consensus-Based Storage", FAST 2018.) A group of one has nobody to ask: it stays
stopped for writes, visibly.

Meanwhile it votes for one candidate only: A, which was part of every quorum that there can have been
(`membership.decisive`), such as the other one of two voters. Else such a group would never have a leader who could heal
it. A is sound, and stands for election in a term T above all that it knows; the vote is written down before it is sent.
Let a leader have been elected, or an entry have been committed, in a term t:

- t < T: each quorum has A in it. So A has what was committed, and what this replica has of its log decides nothing: it
  is not compared.
- t = T: another leader of T would have A's vote, which A has given to itself. That this replica may have voted in T
  before, and forgot it, is one vote of a quorum that is not reached without A.
- t > T: that leader has A's vote, which A gives by its log, and after that A leads T no more.

What this replica vouches for under A counts only when it is whole again, by A's word.

The same question serves a replica whose log begins behind the end of its leader's, where no entry can be compared: a
leader that was confirmed after it was asked, and lacks what is committed here, has lost it, as a power failure does to
those who do not wait for their disks (`Snapshots.contradict`). Where all wait for theirs, somebody has to be told.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.read_index import ReadRounds
from jetcluster.raft.snapshots import Snapshots

_RETRY = 0.3
"""Seconds until it is asked again."""


class Rejoin:
    """One replica's way back, and the leader's answers to others on theirs. Only `heal` makes a replica count again."""

    def __init__(
        self, state: GroupState, snapshots: Snapshots, reads: ReadRounds, send_ack: Callable[[str, int], None]
    ) -> None:
        self._state = state
        self._snapshots = snapshots
        self._reads = reads
        self._send_ack = send_ack
        self._context = 0
        self.at: float | None = None
        """Time to ask again; None when that was not done yet, or is not wanted."""
        self._verified_term = 0
        self._verified = 0
        """Index up to which the log is known to equal that of the leader of `_verified_term`."""
        self._target: tuple[int, int] | None = None

    def on_verified(self, leader: str, index: int) -> None:
        """The log equals the current leader's up to `index`."""
        state = self._state
        if self._verified_term != state.term:
            self._verified_term, self._verified, self._target = state.term, 0, None
            self._context += 1
        self._verified = max(self._verified, index)
        if self._target is None and self.at is None:
            self._ask(leader)
        self.check()

    def on_time(self, now: float) -> None:
        """An answer that is lost, or that the leader could not give, is asked for again: the group may be idle."""
        if self.at is None or now < self.at:
            return
        self.at = None
        state = self._state
        if not state.log.damaged or self._target is not None or state.leader is None or state.engine.leading:
            return
        if self._verified_term == state.term:
            self._ask(state.leader)

    def _ask(self, leader: str) -> None:
        state = self._state
        state.send(leader, codec.encode(codec.Rejoin(state.term, self._context)))
        self.at = state.now() + _RETRY
        state.wake_at(self.at)

    def on_ahead(self, leader: str) -> None:
        """Told when what the leader sends ends before this log begins."""
        if self.at is None or self._state.now() >= self.at:
            self._context += 1
            self._ask(leader)

    def on_reply(self, message: codec.RejoinReply) -> None:
        state = self._state
        if message.term != state.term or message.context != self._context:
            return
        if message.last_index < state.log.base_index:
            if state.log.may_lose(state.commit_index):
                self._snapshots.contradict(message.last_index + 1)
            elif not state.refused:
                what = f"ends at {message.last_index}, and {state.log.base_index} is committed here"
                state.refused = f"the log of leader {state.leader}, of term {state.term}, {what}: it has lost entries"
                state.report(state.refused)
            return
        if state.log.damaged:
            self._target = (message.term, message.last_index)
            self.check()

    def check(self) -> None:
        """Heals when the target is reached on disk."""
        state = self._state
        log = state.log
        if not log.damaged or self._target is None or state.needs_snapshot:
            return  # by the state that is on its way the group may have other members
        term, index = self._target
        reached = self._verified_term == term and self._verified >= index
        if reached and log.durable_index >= index:
            if not log.joining:
                state.report("journal damage repaired from the leader")
            log.heal()
            self._target = None
            if state.leader is not None:
                self._send_ack(state.leader, self._verified)  # the leader need not send anything for long

    def on_request(self, peer: str, message: codec.Rejoin) -> None:
        """At the leader."""
        state = self._state
        term = state.term

        def confirmed(leads: bool) -> None:
            if leads and state.term == term:
                state.send(peer, codec.encode(codec.RejoinReply(term, message.context, state.log.last_index)))

        if state.engine.leading and message.term == term:
            self._reads.add(confirmed, exclude=peer)
