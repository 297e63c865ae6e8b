"""A follower that needs another replica's state: asking for it, and continuing after `install`.

The state travels outside the log and outside this package: the owner of the state machine fetches it. What pysyncobj's
snapshots got wrong (docs/reference/pysyncobj.md: D16, D16b, D16c) is decided here: nothing older than the own state is
installed, and a log that already holds the snapshot's last entry keeps what follows it.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.group_state import GroupState, Owner
from jetcluster.raft.handover import HandOver
from jetcluster.raft.membership import Config


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
