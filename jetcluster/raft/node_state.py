"""`NodeState`: what the groups of one node have in common, with its `Peers` and the `Turns` of the groups."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from jetcluster.clock import Clock, Rng, TimerHandle, Timers
from jetcluster.health.node_health import NodeHealth
from jetcluster.latency import Latency
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Config

CONTROL_GID = 0
"""Frames of this group are the nodes' own."""


class Levels:
    """Knows which commands the nodes of a group understand, as each tells of itself with every heartbeat. One per node,
    whose own state machines are of level `own`.

    A node that was not heard in this life has the level that is on record (`recorded`: the meta group's list of nodes),
    so that a leader that restarts while another node is down need not take that one for an older version."""

    def __init__(self, me: str, own: int) -> None:
        self.own = own
        self.recorded: Callable[[str], int] = lambda peer: 0
        """Level of a peer as heard in earlier lives, here or elsewhere; 0 when it never was."""
        self._me = me
        self._told: dict[str, int] = {}
        """Level by peer, over all links: a node that comes back has the one that it had, or a higher one."""

    def heard(self, peer: str, level: int) -> None:
        self._told[peer] = level

    def forget(self, peer: str) -> None:
        """It went, and belongs to nothing."""
        self._told.pop(peer, None)

    def told(self, peer: str) -> int | None:
        """The level that `peer` itself has told in this life, or this node's own; None when it was not heard."""
        return self.own if peer == self._me else self._told.get(peer)

    def of(self, config: Config) -> int:
        """The level that all members understand; 0 for who was never heard, or is of a version that tells nothing."""
        return min(map(self._of, config.others(self._me)), default=self.own)

    def _of(self, peer: str) -> int:
        told = self._told.get(peer)
        return self.recorded(peer) if told is None else told


class Turns:
    """The groups of a node that have something to do, and when: in the next turn of the loop, at a time, once commands
    may be applied again, or at the next housekeeping.

    Groups are known here by their ids. `on_turn` is called behind the present callback when a group was marked,
    `on_wake` when the earliest of the asked times has come."""

    def __init__(self, clock: Clock, timers: Timers, on_turn: Callable[[], None], on_wake: Callable[[], None]) -> None:
        self.busy = False
        """A turn is under way, or comes without being asked for."""
        self.marked: dict[int, None] = {}
        """Groups with something to do in this turn, in the order in which they said so."""
        self.stirred: dict[int, None] = {}
        """Groups in which something happened since the last housekeeping."""
        self.asks = False
        """Groups ask `may_apply` before they apply what is committed: set by `ask_first` until `apply_again`."""
        self.may_apply: Callable[[], bool] = lambda: True
        """Groups apply while this says so. The meta group does not ask: it writes little, and what the node should do
        with the others is in it."""
        self._clock = clock
        self._timers = timers
        self._on_turn = on_turn
        self._on_wake = on_wake
        self._scheduled = False
        self._held: dict[int, None] = {}
        """Groups that had something to apply and were not allowed to."""
        self._wakes: list[tuple[float, int]] = []
        self._wake_handle: TimerHandle | None = None
        self._wake_at = float("inf")

    # -- the next turn

    def mark(self, gid: int) -> None:
        """The group has something to do in this turn."""
        self.marked[gid] = None
        if not (self._scheduled or self.busy):
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def schedule(self) -> None:
        """There is a turn to come, also if one is under way."""
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._on_turn()

    def drop(self, gid: int) -> None:
        """The group is gone."""
        self.marked.pop(gid, None)
        self.stirred.pop(gid, None)
        self._held.pop(gid, None)

    # -- applying

    def hold(self, gid: int) -> None:
        """The group has something to apply once it may."""
        self._held[gid] = None

    def ask_first(self) -> None:
        """Soon there may be too much to apply more."""
        self.asks = True

    def apply_again(self) -> None:
        """There is room again, and nobody has to ask for it."""
        self.asks = False
        held, self._held = self._held, {}
        for gid in held:
            self.mark(gid)

    # -- housekeeping

    def stir(self, gid: int) -> None:
        """The group wants the next housekeeping to look at it."""
        self.stirred[gid] = None

    def take_stirred(self) -> dict[int, None]:
        stirred, self.stirred = self.stirred, {}
        return stirred

    # -- times

    def wake_at(self, gid: int, when: float) -> None:
        """The group wants to be asked at `when`, in monotonic seconds."""
        heapq.heappush(self._wakes, (when, gid))
        if when < self._wake_at:
            self._arm(when)

    def _arm(self, when: float) -> None:
        if self._wake_handle is not None:
            self._wake_handle.cancel()
        self._wake_at = when
        delay = max(0.0, when - self._clock.monotonic())
        self._wake_handle = self._timers.call_later(delay, self._wake)

    def _wake(self) -> None:
        self._wake_handle = None
        self._wake_at = float("inf")
        self._on_wake()

    def due(self, now: float) -> list[int]:
        """Takes the groups whose times have come, each once."""
        found: dict[int, None] = {}
        while self._wakes and self._wakes[0][0] <= now:
            found[heapq.heappop(self._wakes)[1]] = None
        return list(found)

    def rearm(self) -> None:
        """After `due`: waits for the next time."""
        if self._wakes and self._wakes[0][0] < self._wake_at:
            self._arm(self._wakes[0][0])

    def close(self) -> None:
        if self._wake_handle is not None:
            self._wake_handle.cancel()


@dataclass(slots=True)
class PeerState:
    """One other node: its link, when it was heard last (monotonic seconds), and what it says of itself."""

    up: bool = False
    last_seen: float = 0.0
    suspected: bool = False
    well: bool = True
    """It says so itself."""
    waits: bool | None = None
    """It waits for its disk before it acknowledges, as it said last in this life; None: it did not say."""


class Peers:
    """The other nodes, as links and heartbeats show them, and what follows from them for this node. `RaftNode` keeps
    `states` up to date, the groups ask."""

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


@dataclass(slots=True)
class RaftCounters:
    """Totals of this process for monitoring."""

    refused_frames: int = 0
    """Malformed, or impossible."""
    unknown_frames: int = 0
    """For groups that this node does not have."""
    stopped_groups: int = 0
    campaigns: int = 0


@dataclass(slots=True)
class NodeState:
    """Made by `RaftNode`, which acts on it; the groups read it, and ask `turns` for their turn."""

    me: str
    config: RaftConfig
    journal: Journal
    send: Callable[[str, int, bytes], bool]
    """Peer, group, frame: `Transport.send_raft`."""
    clock: Clock
    rng: Rng
    timers: Timers
    health: NodeHealth
    peers: Peers
    turns: Turns
    report: Callable[[int, str], None]
    """Group, and something about it that an operator should read."""
    counters: RaftCounters = field(default_factory=RaftCounters)
    commit_latency: Latency = field(default_factory=Latency)
    """From a proposal to its commit, on leaders: one entry at a time and group."""
    apply_latency: Latency = field(default_factory=Latency)
    """Seconds per turn in which a group applies what is committed."""
