"""`Receiver`: a replica's handling of each message: first the rules of terms and members (docs/reference/pysyncobj.md:
D7, D8, D9, D21), then the checked and rewritten form for the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.raft import append, codec

if TYPE_CHECKING:
    from jetcluster.raft.group import Group

REFUSE_EVERY = 60.0
"""Seconds between two links that are closed, and two reports, of leaders that contradict what is committed."""


class Receiver:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._matched_term = -1
        """A term whose leader's log was found equal to this one at or above its base."""
        self._equal = 0
        """Up to where, at least."""
        self.context = 0
        """Read context that the next ack has to echo."""
        self._refused_at = float("-inf")
        self._committed = 0
        """The most that any leader said is committed."""
        self.told = 0
        """The index that a leader said is committed, or the last one of the last message if this replica could not even
        take its entries: the leader may have acked them by now."""

    @property
    def equal(self) -> int:
        """The log is known to be the present leader's up to here; 0 when nothing is known."""
        return self._equal if self._matched_term == self._group.term else 0

    def _matches(self, term: int, index: int) -> None:
        """The log equals that of the leader of `term` up to `index`, which is not below its base."""
        self._equal = max(self._equal, index) if self._matched_term == term else index
        self._matched_term = term
        snapshots = self._group.snapshots
        if snapshots.contradicted <= index:
            snapshots.contradicted = 0

    def on_message(self, peer: str, message: codec.Message) -> str:
        """Handles a message. Returns what is wrong with it, if no member would send it; else ""."""
        wrong, group = "", self._group
        if group.stopped or peer in group.fenced:
            return wrong
        if isinstance(message, codec.Append):
            wrong = self._on_append(peer, message)
        elif isinstance(message, codec.Ack) and message.term == group.term and group.engine.leading:
            group.replicator.on_ack(peer, message)
        elif isinstance(message, codec.PreVote):
            self._group.election.on_pre_vote(peer, message)
        elif isinstance(message, codec.Vote):
            self._on_vote(peer, message)
        elif isinstance(message, codec.SnapOffer):
            self._on_offer(peer, message)
        elif message.term > self._group.term:
            self._group.engine.step_down(message.term)
        elif isinstance(message, codec.PreVoteReply):
            if peer in self._group.peers:
                self._group.election.on_pre_vote_reply(peer, message)
        elif message.term == self._group.term:
            if self._group.engine.leading:
                self._on_answer(peer, message)
            else:
                self._on_order(peer, message)
        engine = group.engine
        if engine.role is not group.role or engine.term != group.term or engine.leader != group.leader:
            group.sync()
        return wrong

    def _on_answer(self, peer: str, message: codec.Message) -> None:
        """A message of this very term, to its leader."""
        if isinstance(message, codec.Reject):
            self._group.replicator.on_reject(peer, message)
        elif isinstance(message, codec.SnapRequest):
            self._group.replicator.on_snap_request(peer)
        elif isinstance(message, codec.Rejoin):
            self._group.rejoin.on_request(peer, message)

    def _on_order(self, peer: str, message: codec.Message) -> None:
        """A message of this very term, to somebody who does not lead it."""
        if isinstance(message, codec.VoteReply):
            if message.granted:
                self._group.engine.receive_vote(peer, message.term)
        elif isinstance(message, codec.TimeoutNow):
            self._on_timeout_now(peer, message.term)
        elif isinstance(message, codec.Resign):
            self._group.lost_leader(peer)
        elif isinstance(message, codec.RejoinReply) and peer == self._group.engine.leader:
            self._group.rejoin.on_reply(message)

    def _on_timeout_now(self, peer: str, term: int) -> None:
        if not self._group.may_campaign() or self._group.snapshots.needed or peer != self._group.engine.leader:
            return
        if not self._group.election.may_stamp() or not self._group.node.health.may_vote:
            return  # a candidate votes for itself, in a higher term that deposes the leader
        self._group.engine.receive_timeout_now(peer, term)
        if self._group.engine.transferring():
            self._group.election.campaign()

    def _on_vote(self, peer: str, message: codec.Vote) -> None:
        if self._group.log.damaged:
            if message.term > self._group.term:
                self._group.engine.step_down(message.term)
            return
        if message.term < self._group.term:
            self._group.send(peer, codec.encode(codec.VoteReply(self._group.term, False)))
            return
        if not self._group.node.health.may_vote:
            return  # a vote is a promise that the journal keeps; this one does not return from its last write
        self._group.engine.receive_vote_request(peer, message.term, message.last_index, message.last_term)

    def _on_append(self, peer: str, message: codec.Append) -> str:
        group = self._group
        if message.term < group.term:
            # pysyncobj keeps silent, and the stale leader goes on for 30 s.
            hint = group.log.last_index + 1
            group.send(peer, codec.encode(codec.Reject(group.term, message.prev_index, hint, 0, group.log.damaged)))
            return ""
        if message.term == group.term and group.engine.leading:
            group.fail(f"two leaders in term {message.term}: {group.me} and {peer}")
            return ""
        matched = self._matched_term == message.term
        planned = append.plan(self._group.log, self._group.engine.commit, message, matched)
        if isinstance(planned, append.Diverged) and self._contradicted(planned.at):
            return self._refuse(peer, message.term, planned.at)
        self._committed = max(self._committed, message.commit)  # a new leader may know of less at first
        self.told = self._committed
        if isinstance(planned, append.New):
            self._on_new(peer, message, planned)
        elif isinstance(planned, append.Held):
            self._on_held(peer, message, planned.verified)
        else:
            self._group.engine.receive_leader(peer, message.term, self._group.engine.commit)
            self._group.sync()
            if isinstance(planned, append.Rejected):
                if self._group.log.relaxed and message.prev_index + len(message.entries) < self._group.log.base_index:
                    self._group.rejoin.on_ahead(peer)
                self.told = max(self.told, message.prev_index)
                # NO_REPLY is no context: it is above all, so an echo would confirm every read that the leader has open.
                context = 0 if message.context == codec.NO_REPLY else message.context
                reject = codec.Reject(message.term, message.prev_index, planned.hint, context, self._group.log.damaged)
                self._group.send(peer, codec.encode(reject))
            else:
                if planned.at > message.prev_index >= self._group.log.base_index:
                    self._matches(message.term, message.prev_index)
                self._on_diverged(peer, planned.at)
        return ""

    def _on_new(self, peer: str, message: codec.Append, planned: append.New) -> None:
        group, entries = self._group, planned.entries
        if entries and group.node.journal.scarce:
            # No ack, no entry: the leader asks again. Its leadership is still worth knowing. A follower goes deeper
            # than a leader, which keeps publishes out before: where all disks are equally full, a purge gets through.
            group.engine.receive_leader(peer, message.term, group.engine.commit)
            self.told = max(self.told, planned.prev_index + len(entries))
            return
        self._matches(message.term, planned.prev_index + len(entries))
        if entries:
            group.snapshots.offered = False
        self.context = message.context
        group.engine.receive_append(peer, message.term, message.commit, planned.prev_index, planned.prev_term, entries)
        if group.log.configs[-1][1] is not group.followed:
            group.follow_config()
        if group.log.damaged:
            self._verified(peer, planned.prev_index + len(entries))

    def _on_held(self, peer: str, message: codec.Append, verified: int) -> None:
        group = self._group
        if verified >= group.log.base_index:
            self._matches(message.term, verified)
        group.engine.receive_leader(peer, message.term, max(group.engine.commit, min(message.commit, verified)))
        if message.context != codec.NO_REPLY:
            self.context = message.context
            group.send_ack(peer, verified)
        if group.log.damaged:
            self._verified(peer, verified)

    def _verified(self, peer: str, index: int) -> None:
        """The log equals that of the leader up to `index`."""
        self._group.sync()
        self._group.rejoin.on_verified(peer, index)

    def _contradicted(self, index: int) -> bool:
        """Is entry `index` committed for certain, so that no leader can have another one?"""
        return index > self._group.snapshots.installed and not self._group.log.relaxed

    def _refuse(self, peer: str, term: int, index: int) -> str:
        """One of the two logs is wrong, and nothing here says which: `peer` may be forging, or its disk, or this one's,
        has lost what was acknowledged. What is committed here stays, this message does not count for anything, its term
        included, and the replica goes on: with the next leader, or with nobody. A link carries all groups, so it is
        closed for it once in a while only."""
        group, now = self._group, self._group.now()
        group.node.counters.refused_frames += 1
        if now - self._refused_at < REFUSE_EVERY:
            return ""
        self._refused_at = now
        text = f"leader {peer} of term {term} contradicts committed entry {index}: it is not followed"
        group.node.report(group, text)
        return f"Raft frame of group {group.gid}: {text}"

    def _on_diverged(self, peer: str, index: int) -> None:
        if index <= self._group.snapshots.installed:
            self._group.node.report(self._group, f"{peer} does not know the installed state at {index}")
        else:
            # Entries of a memory stream, and with a sync interval, are not waited for: a power failure may take
            # committed ones of a majority, and a replica that kept more of them follows the majority.
            self._group.snapshots.contradict(index)

    def _on_offer(self, peer: str, message: codec.SnapOffer) -> None:
        if message.term < self._group.term or self._group.engine.leading:
            return
        self._group.engine.receive_leader(peer, message.term, self._group.engine.commit)
        self._group.sync()
        self._group.snapshots.on_offer(peer, message)
