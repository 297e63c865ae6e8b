"""Recovery of a replica: `Snapshots` gets it another replica's state, `Rejoin` restores its vote.

The state travels outside the log and outside this package: the owner of the state machine fetches it. Where pysyncobj's
snapshots are wrong (docs/reference/pysyncobj.md: D16, D16b, D16c), nothing older than the replica's own state is
installed here, and a log that already holds the snapshot's last entry keeps what follows it.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.core.election import HandOver
from jetcluster.raft.core.group_state import GroupState, Owner
from jetcluster.raft.core.read_index import ReadRounds
from jetcluster.raft.membership import Config

_RETRY_SECONDS = 0.3
"""Pause before `Rejoin` asks the leader again."""


class Snapshots:
    """One replica's need for another's state. `follow_config` makes the group use its log's newest configuration."""

    def __init__(self, state: GroupState, owner: Owner, hand_over: HandOver, follow_config: Callable[[], None]) -> None:
        self._state = state
        self._owner = owner
        self._hand_over = hand_over
        self._follow_config = follow_config
        self.at: float | None = None
        """Time of the next question to the leader."""
        self.contradicted = 0
        """Index of a committed entry on credit that a leader lacks; 0 for none."""
        self.installed = 0
        """Index of the newest state that came from another replica."""
        self.offered = False
        """True when the leader has offered a state, because its log does not reach back, and sent no entries since."""
        self._told = -1e9

    def require(self) -> None:
        """Stop applying this log, and ask for a state."""
        self._state.snapshot_wanted = True
        self.ask()

    def contradict(self, index: int) -> None:
        """Give way to a leader that lacks committed entry `index`: its state replaces this one."""
        news, self.contradicted = not self.contradicted, index
        if news:
            self._owner.contradicted()
            why = f"{self._state.leader} does not have committed entry {index}, which a loss of power may take"
            self._state.report(f"{why}: its state counts")
        self.require()

    def ask(self) -> None:
        state = self._state
        if not state.needs_snapshot:
            self.at = None
            return
        log = state.log
        if state.engine.leading:
            # A replica that has the state should lead; if there is none the owner decides.
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
        """Handle the current leader's offer."""
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
        """Go on without the offered state: another leader's log reaches back, or this replica leads. The mark
        `fetching` would excuse a log that ends before its state, so it goes with the fetch."""
        if not self._state.needs_snapshot:
            self._state.log.set_fetching(False)

    def install(self, index: int, term: int, config: Config) -> None:
        """Continue from the state machine's new position `index`, which may be below the old one: a rebuilt replica
        applies entries again from its log. `config` is the configuration in force at `index`, not the giver's newest:
        that may never be committed, and this replica would count majorities by it. The log after `index` stays, since
        it was acknowledged; a log on credit that the leader contradicted keeps only known entries of the leader."""
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
            self.require()  # the giver's log was overtaken by this one: ask for the leader's state
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
                if log.config_at(index) != config:  # the base had an older configuration
                    log.set_members(config)
                    self._follow_config()
        state.engine.restore(index, max(index, state.engine.commit))
        self._owner.restored(index)
        if state.leader is not None and state.leader != state.me:
            self._continue(state.leader, max(index, log.base_index))
        self.ask()
        state.mark()

    def _cut(self, index: int) -> None:
        """Truncate the log after `index`: nothing above it is known to be the leader's."""
        log = self._state.log
        if log.base_index <= index < log.last_index:
            log.truncate(index + 1)
            self._follow_config()

    def _continue(self, leader: str, index: int) -> None:
        """Ask the leader to go on after `index`: an ack would need a matching entry of the leader as proof."""
        state = self._state
        log = state.log
        state.send(leader, codec.encode(codec.Reject(state.term, 0, index + 1, 0, log.damaged, log.life)))


class Rejoin:
    """The return of a replica whose journal was damaged, or that is added to a group: it never answers for entries and
    votes that it has lost. An added peer may have been a member earlier, and voters that were absent since may still
    count on it. This class has both the replica's side and the leader's. Only `heal` makes a replica count again.

    Such a replica may have acknowledged entries and given votes that it no longer knows. Until these cannot matter any
    more it neither votes nor campaigns, and marks its acks `recovering`: a leader sends it entries but does not count
    it.

    It is healed when its log holds, durably, everything that a leader L of term T had when enough others confirmed L
    after the restart. Enough others share a member with every quorum that this replica can have been part of
    (`Config.vouches`). Of n voters such a quorum has n // 2 others, so enough are a majority of n where n is odd, and
    one less where it is even: of two voters, the other one. L counts by every configuration that may be in force by its
    log, from the newest committed one on; a configuration that L lacks needs a quorum of these first. Suppose that this
    replica had acknowledged an entry, or voted, in a term above T. A quorum took part, which shares a member other than
    this replica with the confirming ones; that member knew the higher term before it confirmed, and would have refused
    L. So all that the replica ever acknowledged belongs to terms up to T, and by leader completeness L had what was
    committed of it. (The idea is that of "Protocol-Aware Recovery for Consensus-Based Storage", FAST 2018.) A vote in T
    that it has forgotten may have elected L: from then on its vote of T is L's, so that it elects no second leader. A
    group of one has no others to ask: it stays stopped for writes, visibly.

    Meanwhile it votes for one candidate only: A, which was part of every possible quorum (`membership.decisive`), such
    as the other one of two voters. Otherwise such a group would never have a leader that could heal it. A is undamaged,
    and campaigns in a term T above all terms that it knows; the vote is on disk before it is sent. Suppose that a
    leader was elected, or an entry committed, in a term t:

    - t < T: each quorum contains A. So A has all committed entries, and this replica's log need not be compared.
    - t = T: another leader of T would need A's vote, which A has given to itself. A vote in T that this replica has
      forgotten completes no quorum without A.
    - t > T: that leader has A's vote, which A gives by its log, and after which A leads T no more.

    Acks of this replica under A count only when it is healed, by A's word.

    The same question serves a replica whose log begins after the end of its leader's, where no entry can be compared. A
    leader that was confirmed after the question, and lacks entries that are committed here, has lost them, as voters
    that do not wait for their disks do in a power failure (`Snapshots.contradict`). Where all voters wait for their
    disks, the operator must be told."""

    def __init__(
        self, state: GroupState, snapshots: Snapshots, reads: ReadRounds, send_ack: Callable[[str, int], None]
    ) -> None:
        self._state = state
        self._snapshots = snapshots
        self._reads = reads
        self._send_ack = send_ack
        self._context = 0
        self.at: float | None = None
        """Time of the next question; None before the first one and when none is needed."""
        self._verified_term = 0
        self._verified = 0
        """Index up to which the log is known to equal that of the leader of `_verified_term`."""
        self._target: tuple[int, int] | None = None
        """(term, index) up to which the log must equal the confirmed leader's."""

    def on_verified(self, leader: str, index: int) -> None:
        """Note that the log equals the current leader's up to `index`."""
        state = self._state
        if self._verified_term != state.term:
            self._verified_term, self._verified, self._target = state.term, 0, None
            self._context += 1
        self._verified = max(self._verified, index)
        if self._target is None and self.at is None:
            self._ask(leader)
        self.check()

    def on_time(self, now: float) -> None:
        """Ask again if the answer was lost or the leader could not give it: the group may be idle."""
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
        """Ask the leader when its batch ends before this log begins."""
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
        """Heal the log once the target is reached on disk."""
        state = self._state
        log = state.log
        if not log.damaged or self._target is None or state.needs_snapshot:
            return  # the state being fetched may bring other members
        term, index = self._target
        reached = self._verified_term == term and self._verified >= index
        if reached and log.durable_index >= index:
            if not log.joining:
                state.report("journal damage repaired from the leader")
            if log.voted_for is None and state.leader is not None:
                # A vote of this term may be lost with the rest, and the leader's election may rest on it.
                log.set_term(term, state.leader)
            log.heal()
            self._target = None
            if state.leader is not None:
                self._send_ack(state.leader, self._verified)  # an idle leader would not hear of it otherwise

    def on_request(self, peer: str, message: codec.Rejoin) -> None:
        """Answer, at the leader, once enough others have confirmed it."""
        state = self._state
        term = state.term

        def confirmed(leads: bool) -> None:
            if leads and state.term == term:
                state.send(peer, codec.encode(codec.RejoinReply(term, message.context, state.log.last_index)))

        if state.engine.leading and message.term == term:
            self._reads.add(confirmed, exclude=peer)
