"""`Peers`: the other nodes, as links and heartbeats show them, and what follows from them for this node."""

from __future__ import annotations

from dataclasses import dataclass

from jetcluster.clock import Clock
from jetcluster.health.node_health import NodeHealth
from jetcluster.raft.config import RaftConfig


@dataclass(slots=True)
class PeerState:
    """One other node: its link, when it was heard last (monotonic seconds), and what it says of itself."""

    up: bool = False
    last_seen: float = 0.0
    suspected: bool = False
    well: bool = True
    """By its own account."""
    waits: bool | None = None
    """It waits for its disk before it acknowledges, as it said last in this life; None: it did not say."""


class Peers:
    """One per node; `RaftNode` keeps `states` up to date, the groups ask."""

    def __init__(self, me: str, clock: Clock, config: RaftConfig, health: NodeHealth) -> None:
        self._me = me
        self._clock = clock
        self._config = config
        self._health = health
        self.states: dict[str, PeerState] = {}

    def is_up(self, peer: str) -> bool:
        state = self.states.get(peer)
        return state is not None and state.up

    def is_alive(self, peer: str) -> bool:
        """The link is up and not silent."""
        state = self.states.get(peer)
        return state is not None and state.up and self._clock.monotonic() - state.last_seen < self._config.suspect_after

    def is_well(self, peer: str) -> bool:
        """It is alive, and says that it may lead; also of this node."""
        if peer == self._me:
            return self._health.well
        return self.is_alive(peer) and self.states[peer].well

    def waits_for_disk(self, peer: str) -> bool | None:
        """It waits for its disk before it acknowledges; None while it did not say so, or otherwise, in this life."""
        state = self.states.get(peer)
        return None if state is None else state.waits

    def last_seen(self, peer: str) -> float:
        """Monotonic seconds of its last frame; 0.0 when there was none."""
        state = self.states.get(peer)
        return 0.0 if state is None else state.last_seen

    def may_lead(self, voters: tuple[str, ...]) -> bool:
        """This node, a group of `voters`: it is well, or none of the others is."""
        return self._health.well or not any(self.is_well(peer) for peer in voters if peer != self._me)

    def may_stamp(self, voters: tuple[str, ...], since: float) -> bool:
        """This node, a group of `voters` that it holds since then: its time is that of a majority of the nodes, or
        there is nobody else to ask and to lose by it."""
        time = self._health.time
        if not time.established:
            time.settle()
        if time.established:
            return True
        waited = self._clock.monotonic() - since >= self._config.clock_wait
        return waited and voters == (self._me,) and not time.disputed
