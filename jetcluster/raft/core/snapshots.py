"""A replica that lacks something: `Snapshots` gets it the state of another one, `Rejoin` its vote.

The state travels outside the log and outside this package: the owner of the state machine fetches it. What pysyncobj's
snapshots got wrong (docs/reference/pysyncobj.md: D16, D16b, D16c) is decided here: nothing older than the own state is
installed, and a log that already holds the snapshot's last entry keeps what follows it.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.core.election import HandOver
from jetcluster.raft.core.group_state import GroupState, Owner
from jetcluster.raft.core.read_index import ReadRounds
from jetcluster.raft.membership import Config

_RETRY_SECONDS = 0.3
"""Seconds until it is asked again."""


class Snapshots:
    """The want of one replica for the state of another. `follow_config`: has the group go by the newest
    configuration of its log."""

    def __init__(self, state: GroupState, owner: Owner, hand_over: HandOver, follow_config: Callable[[], None]) -> None:
        self._state = state
        self._owner = owner
        self._hand_over = hand_over
        self._follow_config = follow_config
        self.at: float | None = None
        """When to ask the leader (again)."""
        self.contradicted = 0
        """The lowest committed entry that a leader lacks, of those that may be lost; 0 when no leader does any more."""
        self.installed = 0
        """The newest state that came from another replica."""
        self.offered = False
        """The leader offered a state, as its log would not reach back; it has sent no entries since."""
        self._told = -1e9

    def require(self) -> None:
        """Applying cannot go on from this log."""
        self._state.snapshot_wanted = True
        self.ask()

    def contradict(self, index: int) -> None:
        """The leader does not have committed entry `index`: its state counts."""
        if not self.contradicted:
            why = f"{self._state.leader} does not have committed entry {index}, which a loss of power may take"
            self._state.report(f"{why}: its state counts")
        self.contradicted = index
        self.require()

    def ask(self) -> None:
        state = self._state
        if not state.needs_snapshot:
            self.at = None
            return
        log = state.log
        if state.engine.leading:
            # Somebody who has the state should lead; with nobody else there the owner has to decide.
            if not self._hand_over.begin() and state.now() - self._told > state.config.stateless_delay:
                self._tell(state.me, log.base_index, log.base_term)
        elif state.leader is not None:
            state.send(state.leader, codec.encode(codec.SnapRequest(state.term)))
        self.at = state.now() + state.config.offer_retry
        state.wake_at(self.at)

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.ask()

    def on_offer(self, peer: str, message: codec.SnapOffer) -> None:
        """From the current leader."""
        state, log = self._state, self._state.log
        held = message.snap_index if log.term_at(message.snap_index) == message.snap_term else 0
        if not state.needs_snapshot and message.snap_index <= max(state.applied_index, held):
            self._continue(peer, max(min(state.applied_index, log.last_index), held))
            return
        self.offered = True
        self._tell(peer, message.snap_index, message.snap_term)

    def _tell(self, leader: str, index: int, term: int) -> None:
        self._told = self._state.now()
        self._state.log.set_fetching(True)
        self._owner.needs_snapshot(leader, index, term)

    def settle(self) -> None:
        """This log goes on without the state that was offered: another leader's reaches back, or this replica leads.
        A log behind its state is excused by a fetched state; what is not fetched any more excuses nothing."""
        if not self._state.needs_snapshot:
            self._state.log.set_fetching(False)

    def install(self, index: int, term: int, config: Config) -> None:
        """The state machine stands at `index` now, wherever it stood before: a rebuilt replica may be behind what it
        had applied, and applies that again from its log. `config` is the configuration in force at `index`: the giver's
        newest one may never be committed, and this replica would count majorities by it. What follows in the log stays,
        as it was vouched for; of a log on credit that the leader contradicted only what is known to be the leader's."""
        state = self._state
        log = state.log
        held = log.term_at(index)
        equal = state.equal
        conflicts = held is not None and held != term
        if conflicts and index <= state.engine.commit and not log.may_lose(state.engine.commit):
            what = f"the installed state of {index} (term {term})"
            self._owner.fail(f"{what} contradicts the committed entry of term {held}")
            return
        if conflicts and index <= equal:
            self.require()  # it came from somebody whom this log has left behind: the leader's state it is
            return
        contradicted, self.contradicted = bool(self.contradicted), 0
        if contradicted:
            self._cut(max(index, equal))
        state.snapshot_wanted = self.offered = False
        self.installed = max(self.installed, index)
        if index >= log.base_index or (contradicted and equal < log.base_index):
            if held != term:
                log.install(index, term, config)
                self._follow_config()
            else:
                log.set_fetching(False)
                if log.config_at(index) != config:  # what was known at the base was of before
                    log.set_members(config)
                    self._follow_config()
        state.engine.restore(index, max(index, state.engine.commit))
        self._owner.restored(index)
        if state.leader is not None and state.leader != state.me:
            self._continue(state.leader, max(index, log.base_index))
        self.ask()
        state.mark()

    def _cut(self, index: int) -> None:
        """Nothing above `index` is the leader's, as far as is known."""
        log = self._state.log
        if log.base_index <= index < log.last_index:
            log.truncate(index + 1)
            self._follow_config()

    def _continue(self, leader: str, index: int) -> None:
        """Asks the leader to go on after `index`. Not an ack: only an entry of the leader that is found equal here
        proves that this state is part of its log."""
        state = self._state
        log = state.log
        state.send(leader, codec.encode(codec.Reject(state.term, 0, index + 1, 0, log.damaged, log.life)))


class Rejoin:
    """The return of a replica whose journal was damaged, or that is added to a group, without ever answering for what
    it forgot. A peer that is added may have been a member before, and voters that were away then may still count on
    it. One replica's way back, and the leader's answers to others on theirs. Only `heal` makes a replica count
    again.

    It may have acknowledged entries and given votes that it no longer knows of. Until that cannot matter any more it
    neither votes nor campaigns, and marks its acks `recovering`, so that a leader sends it entries but does not count
    it.

    It is whole again when its log holds, durably, everything that a leader L of term T had when enough others confirmed
    L after the restart: so many that they share a member with every quorum that this replica can have been part of
    (`Config.vouches`). With n voters such a quorum has n // 2 others in it, so that is a majority of the n where n is
    odd, and one less where it is even: of two, the other one. L counts by every configuration that may be in force by
    its log, from the newest committed one on; one that L does not have needs a quorum of these first. Suppose that this
    replica had acknowledged an entry, or voted, in a term above T: a quorum was involved, which shares a member other
    than this replica with those who confirmed; that member knew the higher term before it confirmed and would have
    refused L. So everything it ever vouched for belongs to terms up to T, and by leader completeness L had what was
    committed of it. (The idea is that of "Protocol-Aware Recovery for Consensus-Based Storage", FAST 2018.) A group of
    one has nobody to ask: it stays stopped for writes, visibly.

    Meanwhile it votes for one candidate only: A, which was part of every quorum that there can have been
    (`membership.decisive`), such as the other one of two voters. Else such a group would never have a leader who could
    heal it. A is sound, and stands for election in a term T above all that it knows; the vote is written down before it
    is sent. Let a leader have been elected, or an entry have been committed, in a term t:

    - t < T: each quorum has A in it. So A has what was committed, and what this replica has of its log decides nothing:
      it is not compared.
    - t = T: another leader of T would have A's vote, which A has given to itself. That this replica may have voted in T
      before, and forgot it, is one vote of a quorum that is not reached without A.
    - t > T: that leader has A's vote, which A gives by its log, and after that A leads T no more.

    What this replica vouches for under A counts only when it is whole again, by A's word.

    The same question serves a replica whose log begins behind the end of its leader's, where no entry can be
    compared: a leader that was confirmed after it was asked, and lacks what is committed here, has lost it, as a
    power failure does to those who do not wait for their disks (`Snapshots.contradict`). Where all wait for theirs,
    somebody has to be told."""

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
        self.at = state.now() + _RETRY_SECONDS
        state.wake_at(self.at)

    def on_ahead(self, leader: str) -> None:
        """Called when what the leader sends ends before this log begins."""
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
