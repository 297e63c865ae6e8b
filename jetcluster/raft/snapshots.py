"""A follower that needs another replica's state: asking for it, and continuing after `install`.

The state travels outside the log and outside this package: the owner of the state machine fetches it. What pysyncobj's
snapshots got wrong (docs/reference/pysyncobj.md: D16, D16b, D16c) is decided here: nothing older than the own state is
installed, and a log that already holds the snapshot's last entry keeps what follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.raft import codec
from jetcluster.raft.membership import Config

if TYPE_CHECKING:
    from jetcluster.raft.group import Group


class Snapshots:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.at: float | None = None
        """When to ask the leader (again)."""
        self.wanted = False
        """Something in the log below the applied index is missing, also if the base says otherwise (see `require`)."""
        self.contradicted = 0
        """The lowest committed entry in a relaxed log that a leader does not have; 0 when none does any more."""
        self.installed = 0
        """The newest state that came from another replica."""
        self.offered = False
        """The leader offered a state, as its log would not reach back; it has sent no entries since."""
        self._told = -1e9

    @property
    def needed(self) -> bool:
        """The own state and the own log do not belong together."""
        return self.wanted or self._group.applied_index < self._group.log.base_index

    def require(self) -> None:
        """Applying cannot go on from this log."""
        self.wanted = True
        self.ask()

    def contradict(self, index: int) -> None:
        """The leader does not have committed entry `index`: its state counts."""
        if not self.contradicted:
            why = f"{self._group.leader} does not have committed entry {index}, which a loss of power may take"
            self._group.node.report(self._group, f"{why}: its state counts")
        self.contradicted = index
        self.require()

    def ask(self) -> None:
        group = self._group
        if not self.needed:
            self.at = None
            return
        log = group.log
        if group.engine.leading:
            # Somebody who has the state should lead; with nobody else there the owner has to decide.
            if not group.transfer() and group.now() - self._told > group.config.stateless_delay:
                self._tell(group.me, log.base_index, log.base_term)
        elif group.leader is not None:
            group.send(group.leader, codec.encode(codec.SnapRequest(group.term)))
        self.at = group.now() + group.config.offer_retry
        group.wake_at(self.at)

    def on_time(self, now: float) -> None:
        if self.at is not None and now >= self.at:
            self.ask()

    def on_offer(self, peer: str, message: codec.SnapOffer) -> None:
        """From the current leader."""
        group, log = self._group, self._group.log
        held = message.snap_index if log.term_at(message.snap_index) == message.snap_term else 0
        if not self.needed and message.snap_index <= max(group.applied_index, held):
            self._continue(peer, max(min(group.applied_index, log.last_index), held))
            return
        self.offered = True
        self._tell(peer, message.snap_index, message.snap_term)

    def _tell(self, leader: str, index: int, term: int) -> None:
        self._told = self._group.now()
        self._group.log.set_fetching(True)
        self._group.call(self._group.machine.on_snapshot_needed, leader, index, term)

    def install(self, index: int, term: int, config: Config) -> None:
        """The state machine stands at `index` now, wherever it stood before: a rebuilt replica may be behind what it
        had applied, and applies that again from its log. `config` is the configuration in force at `index`: the giver's
        newest one may never be committed, and this replica would count majorities by it. What follows in the log stays,
        as it was vouched for; of a relaxed log that the leader contradicted only what is known to be the leader's."""
        group = self._group
        log = group.log
        held = log.term_at(index)
        equal = group.receiver.equal
        conflicts = held is not None and held != term
        if conflicts and not log.relaxed and index <= group.engine.commit:
            group.fail(f"the installed state of {index} (term {term}) contradicts the committed entry of term {held}")
            return
        if conflicts and index <= equal:
            self.require()  # it came from somebody whom this log has left behind: the leader's state it is
            return
        contradicted, self.contradicted = bool(self.contradicted), 0
        if contradicted:
            self._cut(max(index, equal))
        self.wanted = self.offered = False
        self.installed = max(self.installed, index)
        if index >= log.base_index or (contradicted and equal < log.base_index):
            if held != term:
                log.install(index, term, config)
                group.follow_config()
            else:
                log.set_fetching(False)
                if log.config_at(index) != config:  # what was known at the base was of before
                    log.set_members(config)
                    group.follow_config()
        group.engine.restore(index, max(index, group.engine.commit))
        group.restored(index)
        if group.leader is not None and group.leader != group.me:
            self._continue(group.leader, max(index, log.base_index))
        self.ask()
        group.mark()

    def _cut(self, index: int) -> None:
        """Nothing above `index` is the leader's, as far as is known."""
        log = self._group.log
        if log.base_index <= index < log.last_index:
            log.truncate(index + 1)
            self._group.follow_config()

    def _continue(self, leader: str, index: int) -> None:
        """Asks the leader to go on after `index`. Not an ack: only an entry of the leader that is found equal here
        proves that this state is part of its log."""
        group = self._group
        group.send(leader, codec.encode(codec.Reject(group.term, 0, index + 1, 0, group.log.damaged)))
