"""`Receiver` handles each message of a replica: it applies the rules of terms and members (docs/reference/pysyncobj.md:
D7, D8, D9, D21), then checks and rewrites the message for the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jetcluster.raft import codec
from jetcluster.raft.codec import Append, Entry
from jetcluster.raft.core.election import Election
from jetcluster.raft.core.group_state import GroupState, Owner
from jetcluster.raft.core.lease import Lease
from jetcluster.raft.core.replicator import Replicator
from jetcluster.raft.core.snapshots import Rejoin, Snapshots
from jetcluster.raft.journal.log import GroupLog
from jetcluster.records import NamedTuple

REFUSE_EVERY_SECONDS = 60.0
"""Shortest time between two reports of leaders that contradict committed entries."""


class Rejected(NamedTuple):
    """The log lacks `prev`; the leader should go on at `hint`."""

    hint: int


class Diverged(NamedTuple):
    """The batch would replace a committed entry: some disk has lost an acknowledged one."""

    at: int


class Held(NamedTuple):
    """The log has the whole batch already, up to `verified`; later entries stay, as they may be newer."""

    verified: int


class New(NamedTuple):
    """The entries from `prev_index` + 1 on are new, or replace uncommitted ones that conflict."""

    prev_index: int
    prev_term: int
    entries: list[Entry]


Plan = Rejected | Diverged | Held | New

Handler = Callable[["Receiver", str, Any], None]
"""Handles messages of one type: (receiver, peer, message)."""


def plan(log: GroupLog, commit_index: int, message: Append, matched: bool) -> Plan:
    """Plan what a follower does with a batch before pysyncobj sees it: Raft's AppendEntries receiver (figure 2, steps
    2-5) as a pure function. `matched`: an entry of this term's leader at or above the log's base was found equal.

    pysyncobj truncates everything after `prevLogIdx` even where it matches, so a batch that is sent twice removes
    acknowledged entries (docs/reference/pysyncobj.md, D2); it walks a divergence back one index per heartbeat (D18).
    The plan strips entries that the log holds, so that only a real conflict truncates; its hint skips a whole term."""
    prev_index, prev_term = message.prev_index, message.prev_term
    entries = message.entries
    base = log.base_index
    if prev_index < base:
        if not matched:
            # The state may come from a replica that knew a newer leader: the logs are equal below the base only if
            # they are equal at the base.
            return Rejected(base + 1)
        end = prev_index + len(entries)
        if end <= base:
            return Held(end)
        entries = entries[base - prev_index :]
        prev_index, prev_term = base, log.base_term
    if prev_index == log.last_index and prev_term == log.last_term:
        return New(prev_index, prev_term, entries) if entries else Held(prev_index)
    if prev_index > log.last_index:
        return Rejected(log.last_index + 1)
    if log.term_at(prev_index) != prev_term:
        if prev_index <= commit_index:
            return Diverged(prev_index)
        return Rejected(max(commit_index + 1, log.first_index_of_term(prev_index)))
    held = 0
    last = log.last_index
    for _, index, term, _ in entries:
        if index > last or log.term_at(index) != term:
            break
        held += 1
    if held == len(entries):
        return Held(prev_index + held)
    if held:
        _, prev_index, prev_term, _ = entries[held - 1]
        entries = entries[held:]
    if prev_index < last and prev_index < commit_index:
        return Diverged(prev_index + 1)
    return New(prev_index, prev_term, entries)


class Receiver:
    """The receiving end of one replica; passes messages to the other parts.

    `sync` makes the group adopt the core's decisions, `follow_config` the newest configuration of its log.
    `lost_leader` notes that a peer leads no more. `send_ack` acks the log up to an index to a peer."""

    def __init__(
        self,
        state: GroupState,
        owner: Owner,
        election: Election,
        replicator: Replicator,
        snapshots: Snapshots,
        rejoin: Rejoin,
        lease: Lease,
        *,
        sync: Callable[[], None],
        follow_config: Callable[[], None],
        lost_leader: Callable[[str], None],
        send_ack: Callable[[str, int], None],
    ) -> None:
        self._state = state
        self._owner = owner
        self._election = election
        self._replicator = replicator
        self._snapshots = snapshots
        self._rejoin = rejoin
        self._lease = lease
        self._sync = sync
        self._follow_config = follow_config
        self._lost_leader = lost_leader
        self._send_ack = send_ack
        self.context = 0
        """Read context that the next ack must echo."""
        self._refused_at = float("-inf")
        self.committed = 0
        """The highest commit index that any leader has sent."""
        self._said_in = 0
        """The term of that leader, at most this replica's."""
        self.told = 0
        """`committed`, or the end of the last batch if this replica could not take it: the leader may have acked it."""

    def hear(self, term: int, commit: int) -> None:
        """Note that a present or past leader of `term` has sent `commit`. It stays committed even if the message counts
        for nothing else here, and a client that was acked over this link may read here next."""
        if commit > self.committed:
            self.committed, self._said_in = commit, min(term, self._state.term)
        if self.committed > self.told:
            self.told = self.committed

    def _takes_back(self, message: codec.Append) -> None:
        """Lower `committed` to a newer leader's, once that leader has committed an entry of its own term. It then has
        all that was committed before; entries that it lacks were lost by a majority that did not wait for its disks,
        and reads must not wait for them."""
        if message.term > self._said_in and self._state.log.term_at(message.commit) == message.term:
            self.committed, self._said_in = message.commit, message.term

    def _matches(self, term: int, index: int) -> None:
        """Note that the log equals that of the leader of `term` up to `index`, which is not below its base."""
        state = self._state
        state.matched_index = max(state.matched_index, index) if state.matched_term == term else index
        state.matched_term = term
        snapshots = self._snapshots
        if snapshots.contradicted <= index:
            snapshots.contradicted = 0
        if state.refused:
            state.refused = ""

    def on_message(self, peer: str, message: codec.Message) -> None:
        """Handle a message of a member."""
        state = self._state
        if state.stopped or peer in state.fenced:
            return
        engine = state.engine
        handler = self._AT_ANY_TERM.get(type(message))
        if handler is not None:
            handler(self, peer, message)
        elif message.term > state.term:
            engine.step_down(message.term)
        elif message.term == state.term:
            if not engine.leading:
                handler = self._FOR_FOLLOWERS.get(type(message))
            elif isinstance(message, codec.Ack):  # not in the table, to save a call per ack
                self._replicator.on_ack(peer, message)
            else:
                handler = self._FOR_LEADERS.get(type(message))
            if handler is not None:
                handler(self, peer, message)
        if engine.role is not state.role or engine.term != state.term or engine.leader != state.leader:
            self._sync()

    def _on_reject(self, peer: str, message: codec.Reject) -> None:
        self._replicator.on_reject(peer, message)

    def _on_snap_request(self, peer: str, message: codec.SnapRequest) -> None:
        self._replicator.on_snap_request(peer)

    def _on_rejoin(self, peer: str, message: codec.Rejoin) -> None:
        self._rejoin.on_request(peer, message)

    def _on_vote_reply(self, peer: str, message: codec.VoteReply) -> None:
        if message.granted:
            self._state.engine.receive_vote(peer, message.term)

    def _on_resign(self, peer: str, message: codec.Resign) -> None:
        if peer == self._state.engine.leader:
            self._state.promise.end()
        self._lost_leader(peer)

    def _on_lease_request(self, peer: str, message: codec.LeaseRequest) -> None:
        state = self._state
        if peer == state.engine.leader and state.promise.give(message):
            state.send(peer, codec.encode(codec.LeaseGrant(state.term, message.number)))

    def _on_lease_grant(self, peer: str, message: codec.LeaseGrant) -> None:
        self._lease.on_grant(peer, message.number)

    def _on_lease_released(self, peer: str, message: codec.LeaseReleased) -> None:
        state = self._state
        state.promise.release(message.term, message.number, by_leader=peer == state.engine.leader)

    def _on_rejoin_reply(self, peer: str, message: codec.RejoinReply) -> None:
        if peer == self._state.engine.leader:
            self._rejoin.on_reply(message)

    def _on_pre_vote_reply(self, peer: str, message: codec.PreVoteReply) -> None:
        state = self._state
        if message.term > state.term:
            state.engine.step_down(message.term)
        elif peer in state.peers:
            self._election.on_pre_vote_reply(peer, message)

    def _on_pre_vote(self, peer: str, message: codec.PreVote) -> None:
        state = self._state
        self._election.on_pre_vote(peer, message)
        if state.engine.leading:
            # The peer does not know its leader, which may be idle: a beat tells it. A peer in a higher term that the
            # others ignored answers with that term, and follows the next leader.
            flow = state.flows.get(peer)
            if flow is not None:
                self._replicator.beat(flow, 0)

    def _on_timeout_now(self, peer: str, message: codec.TimeoutNow) -> None:
        if not self._state.may_campaign() or self._state.needs_snapshot or peer != self._state.engine.leader:
            return
        if not self._election.may_stamp() or not self._state.node.health.may_vote or self._state.promise.binds:
            return  # a candidate votes for itself, in a higher term that deposes the leader
        self._repeat_release(message.term)
        self._state.engine.receive_timeout_now(peer, message.term)
        if self._state.engine.transferring():
            self._election.campaign()

    def _repeat_release(self, term: int) -> None:
        """Tell the other voters that the leases of the leader of `term` are released: its own word may come later than
        the request for their votes."""
        state = self._state
        number = state.promise.released(term)
        if number is not None:
            frame = codec.encode(codec.LeaseReleased(term, number))
            for peer in state.peers:
                if peer != state.me and state.node.peers.knows_leases(peer):
                    state.send(peer, frame)

    def _on_vote(self, peer: str, message: codec.Vote) -> None:
        if message.term > self._state.term and not self._state.engine.leading and self._state.promise.binds:
            return  # nor adopt the term: the leader would step down
        if self._state.log.damaged:
            if message.term > self._state.term:
                if message.decisive and self._state.node.health.may_vote:
                    self._state.engine.grant(message.term, peer)
                else:
                    self._state.engine.step_down(message.term)
            return
        if message.term < self._state.term:
            self._state.send(peer, codec.encode(codec.VoteReply(self._state.term, False)))
            return
        if not self._state.node.health.may_vote:
            return  # a vote must be on disk, and this journal's last write has not returned
        self._state.engine.receive_vote_request(peer, message.term, message.last_index, message.last_term)

    def _on_append(self, peer: str, message: codec.Append) -> None:
        state = self._state
        if message.term < state.term:
            self.hear(message.term, message.commit)
            self.told = max(self.told, message.prev_index + len(message.entries))  # not appended here
            # Without this answer, as in pysyncobj, the stale leader goes on for 30 s.
            hint = state.log.last_index + 1
            self._reject(peer, state.term, message.prev_index, hint, 0)
            return
        if message.term == state.term and state.engine.leading:
            self._owner.fail(f"two leaders in term {message.term}: {state.me} and {peer}")
            return
        matched = self._state.matched_term == message.term
        planned = plan(self._state.log, self._state.engine.commit, message, matched)
        if isinstance(planned, Diverged) and self._contradicted(planned.at):
            if state.engine.leader is None:  # `peer` may be right and have acked, unless another leader is known
                self.told = max(self.told, message.commit)
            self._refuse(peer, message.term, planned.at)
            return
        commit = message.commit
        if commit > self.committed:
            self.committed, self._said_in = commit, message.term
        elif commit < self.committed:
            self._takes_back(message)
        self.told = self.committed
        if isinstance(planned, New):
            self._on_new(peer, message, planned)
        elif isinstance(planned, Held):
            self._on_held(peer, message, planned.verified)
        else:
            self._state.engine.receive_leader(peer, message.term, self._state.engine.commit)
            self._sync()
            if isinstance(planned, Rejected):
                if message.prev_index + len(message.entries) < self._state.log.base_index:
                    self._rejoin.on_ahead(peer)
                self.told = max(self.told, message.prev_index)
                # NO_REPLY is above every context: an echo would confirm every read that the leader has open.
                context = 0 if message.context == codec.NO_REPLY else message.context
                self._reject(peer, message.term, message.prev_index, planned.hint, context)
            else:
                if planned.at > message.prev_index >= self._state.log.base_index:
                    self._matches(message.term, message.prev_index)
                self._on_diverged(peer, planned.at)

    def _reject(self, peer: str, term: int, prev_index: int, hint: int, context: int) -> None:
        log = self._state.log
        self._state.send(peer, codec.encode(codec.Reject(term, prev_index, hint, context, log.damaged, log.life)))

    def _on_new(self, peer: str, message: codec.Append, planned: New) -> None:
        state, entries = self._state, planned.entries
        if entries and state.node.journal.scarce:
            # No ack and no entry: the leader asks again, but is followed. A follower uses more of the reserve than a
            # leader, which refuses publishes earlier: where all disks are equally full, a purge still gets through.
            state.engine.receive_leader(peer, message.term, state.engine.commit)
            self.told = max(self.told, planned.prev_index + len(entries))
            return
        self._matches(message.term, planned.prev_index + len(entries))
        if entries:
            self._snapshots.offered = False
            if state.log.fetching:
                self._snapshots.settle()
        self.context = message.context
        state.engine.receive_append(peer, message.term, message.commit, planned.prev_index, planned.prev_term, entries)
        if state.log.configs[-1][1] is not state.followed:
            self._follow_config()
        if state.log.damaged:
            self._verified(peer, planned.prev_index + len(entries))

    def _on_held(self, peer: str, message: codec.Append, verified: int) -> None:
        state = self._state
        if verified >= state.log.base_index:
            self._matches(message.term, verified)
        state.engine.receive_leader(peer, message.term, max(state.engine.commit, min(message.commit, verified)))
        if message.context != codec.NO_REPLY:
            self.context = message.context
            self._send_ack(peer, verified)
        if state.log.damaged:
            self._verified(peer, verified)

    def _verified(self, peer: str, index: int) -> None:
        """Tell `Rejoin` that the log equals the leader's up to `index`."""
        self._sync()
        self._rejoin.on_verified(peer, index)

    def _contradicted(self, index: int) -> bool:
        """True if entry `index` is committed for certain, so that no leader can have another one."""
        return index > self._snapshots.installed and not self._state.log.may_lose(self._state.engine.commit)

    def _refuse(self, peer: str, term: int, index: int) -> None:
        """Refuse a leader that contradicts a committed entry. One of the two logs is wrong, and nothing here shows
        which: `peer` may forge messages, or its disk or this one has lost acknowledged entries. The replica keeps its
        committed entries, ignores the message and its term, and waits for another leader. The link stays: all groups
        share it."""
        state, now = self._state, self._state.now()
        state.node.counters.refused_frames += 1
        text = f"leader {peer} of term {term} contradicts committed entry {index}: it is not followed"
        if state.engine.leader is None:
            state.refused = text
        if now - self._refused_at >= REFUSE_EVERY_SECONDS:
            self._refused_at = now
            state.report(text)

    def _on_diverged(self, peer: str, index: int) -> None:
        if index <= self._snapshots.installed:
            self._state.report(f"{peer} does not know the installed state at {index}")
        else:
            # Entries of a memory stream, and those acked with a sync interval, may be lost by a majority in a power
            # failure although committed: a replica that kept more of them follows the majority.
            self._snapshots.contradict(index)

    def _on_offer(self, peer: str, message: codec.SnapOffer) -> None:
        self.hear(message.term, message.snap_index)
        if message.term < self._state.term or self._state.engine.leading:
            return
        self._state.engine.receive_leader(peer, message.term, self._state.engine.commit)
        self._sync()
        self._snapshots.on_offer(peer, message)

    _AT_ANY_TERM: ClassVar[dict[type[codec.Message], Handler]] = {
        codec.Append: _on_append,
        codec.PreVote: _on_pre_vote,
        codec.PreVoteReply: _on_pre_vote_reply,
        codec.Vote: _on_vote,
        codec.SnapOffer: _on_offer,
    }
    """Handlers that judge the term themselves. Any other message of a higher term makes this replica a follower in that
    term, and one of a lower term is ignored."""
    _FOR_LEADERS: ClassVar[dict[type[codec.Message], Handler]] = {
        codec.Reject: _on_reject,
        codec.SnapRequest: _on_snap_request,
        codec.Rejoin: _on_rejoin,
        codec.LeaseGrant: _on_lease_grant,
    }
    """Handlers of messages of the current term at its leader, besides `Ack`."""
    _FOR_FOLLOWERS: ClassVar[dict[type[codec.Message], Handler]] = {
        codec.VoteReply: _on_vote_reply,
        codec.TimeoutNow: _on_timeout_now,
        codec.Resign: _on_resign,
        codec.RejoinReply: _on_rejoin_reply,
        codec.LeaseRequest: _on_lease_request,
        codec.LeaseReleased: _on_lease_released,
    }
    """Handlers of messages of the current term at a replica that does not lead."""
