"""`NodeState`: the state shared by the groups of one node, with its `Peers`, `Levels` and `Turns`."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import field

from jetcluster.clock import Clock, Rng, TimerHandle, Timers
from jetcluster.health.node_health import NodeHealth
from jetcluster.latency import Latency
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Config
from jetcluster.records import dataclass

LEASES_LEVEL = 3
"""Lowest level of a node that understands leases (`core/lease.py`)."""
CONTROL_GID = 0
"""The group id of node-level frames."""
WAKES_AT_ONCE = 4
"""Groups woken before the time is looked at."""


class Levels:
    """The levels of the nodes: which commands each understands, as its heartbeats report. One per node; `own` is the
    level of its own state machines.

    A node that was not heard since this process started has its recorded level (`recorded`: the meta group's list of
    nodes), so that a restarted leader does not take a node that is down for an older version."""

    def __init__(self, me: str, own: int, recorded: Callable[[str], int]) -> None:
        """`recorded` returns the level of a peer as heard earlier, here or elsewhere; 0 if never."""
        self.own = own
        self.recorded = recorded
        self._me = me
        self._told: dict[str, int] = {}
        """Peer -> level, kept after its link is gone: a node that comes back usually has the same level."""
        self._silent: set[str] = set()
        """Peers of `_told` that have told nothing on a link that they have now: another node may know better."""

    def heard(self, peer: str, level: int) -> None:
        self._told[peer] = level
        self._silent.discard(peer)

    def lost(self, peer: str) -> None:
        """Note that the link to `peer` is gone, or is a new one."""
        if peer in self._told:
            self._silent.add(peer)

    def forget(self, peer: str) -> None:
        """Forget a peer that left and belongs to no group."""
        self._told.pop(peer, None)
        self._silent.discard(peer)

    def told(self, peer: str) -> int | None:
        """Return the level that `peer` has reported since this process started, or this node's own; None if none."""
        return self.own if peer == self._me else self._told.get(peer)

    def of(self, config: Config) -> int:
        """Return the level that all members understand; a member without a known level counts as level 0."""
        return min(map(self.known, config.others(self._me)), default=self.own)

    def understands(self, peer: str, level: int) -> bool:
        """Return True when `peer` has at least `level`."""
        return self.known(peer) >= level

    def known(self, peer: str) -> int:
        """Return the level that `peer` has reported, here or to others; 0 if never."""
        told = self.told(peer)
        if told is not None and peer not in self._silent:
            return told
        recorded = self.recorded(peer)
        return recorded if told is None else min(told, recorded or told)


class Turns:
    """The group ids that have work, and when: in the next turn of the loop, at a time, once commands may be applied
    again, or at the next housekeeping.

    `on_turn` is called after the current callback when a group was marked, `on_wake` at the earliest requested time."""

    def __init__(self, clock: Clock, timers: Timers, on_turn: Callable[[], None], on_wake: Callable[[], None]) -> None:
        self.busy = False
        """True while a turn runs, or is certain to come."""
        self.marked: dict[int, None] = {}
        """Groups with work in this turn, in the order of their marks."""
        self.stirred: dict[int, None] = {}
        """Groups with activity since the last housekeeping."""
        self.asks = False
        """True while groups must ask `may_apply` before they apply: from `ask_first` to `apply_again`."""
        self.may_apply: Callable[[], bool] = lambda: True
        self._clock = clock
        self._timers = timers
        self._on_turn = on_turn
        self._on_wake = on_wake
        self._scheduled = False
        self.held: dict[int, None] = {}
        """Groups that have commands to apply and are not allowed to."""
        self._wakes: list[tuple[float, int]] = []
        self._wake_handle: TimerHandle | None = None
        self._wake_at = float("inf")
        self._not_before = 0.0
        """The end of the pause after a slice of wakes."""

    # -- the next turn

    def mark(self, gid: int) -> None:
        """Give the group a place in this turn."""
        self.marked[gid] = None
        if not (self._scheduled or self.busy):
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def schedule(self) -> None:
        """Have another turn come, also if one is running."""
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._on_turn()

    def drop(self, gid: int) -> None:
        """Forget a group that is gone."""
        self.marked.pop(gid, None)
        self.stirred.pop(gid, None)
        self.held.pop(gid, None)

    # -- applying

    def hold(self, gid: int) -> None:
        """Note that the group has commands to apply once it may."""
        self.held[gid] = None

    def ask_first(self, may_apply: Callable[[], bool]) -> None:
        """Have groups ask `may_apply` first: the store may soon have too much to write. The meta group does not ask: it
        writes little and assigns the others."""
        self.asks, self.may_apply = True, may_apply

    def apply_again(self) -> None:
        """Let groups apply without asking: there is room again."""
        self.asks = False
        held, self.held = self.held, {}
        for gid in held:
            self.mark(gid)

    # -- housekeeping

    def stir(self, gid: int) -> None:
        """Include the group in the next housekeeping."""
        self.stirred[gid] = None

    def take_stirred(self) -> dict[int, None]:
        stirred, self.stirred = self.stirred, {}
        return stirred

    # -- times

    def wake_at(self, gid: int, when: float) -> None:
        """Wake the group at `when`, in monotonic seconds."""
        heapq.heappush(self._wakes, (when, gid))
        when = max(when, self._not_before)
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
        """Remove and return some of the groups whose times have come, each once, the oldest times first."""
        found: dict[int, None] = {}
        while self._wakes and self._wakes[0][0] <= now and len(found) < WAKES_AT_ONCE:
            found[heapq.heappop(self._wakes)[1]] = None
        return list(found)

    def rearm(self, pause: float = 0.0) -> None:
        """Set the timer for the next time, in `pause` seconds at the earliest. Called after `due`."""
        self._not_before = self._clock.monotonic() + pause if pause else 0.0
        if self._wakes:
            when = max(self._wakes[0][0], self._not_before)
            if pause or when < self._wake_at:
                self._arm(when)

    def close(self) -> None:
        if self._wake_handle is not None:
            self._wake_handle.cancel()


@dataclass(slots=True)
class PeerState:
    """One other node: its link, when it was last heard (monotonic seconds), and its reports about itself."""

    up: bool = False
    last_seen: float = 0.0
    suspected: bool = False
    well: bool = True
    """The peer reports itself healthy."""
    level: int = 0
    """The level that the peer has reported over this link (`Levels`)."""
    waits: bool | None = None
    """The peer waits for its disk before it acknowledges; None while it has not reported that."""


class Peers:
    """The other nodes, as their links and heartbeats show them. `RaftNode` keeps `states` up to date for the groups."""

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
        """True when the link is up and not silent."""
        state = self.states.get(peer)
        return state is not None and state.up and self._clock.monotonic() - state.last_seen < self._config.suspect_after

    def is_well(self, peer: str) -> bool:
        """True when `peer`, or this node, is alive and reports that it may lead."""
        if peer == self._me:
            return self._health.well
        return self.is_alive(peer) and self.states[peer].well

    def knows_leases(self, peer: str) -> bool:
        """True when `peer` is connected, and of a version that understands leases."""
        state = self.states.get(peer)
        return state is not None and state.up and state.level >= LEASES_LEVEL

    def waits_for_disk(self, peer: str) -> bool | None:
        """True when `peer` waits for its disk before it acknowledges; None while it has not reported that."""
        state = self.states.get(peer)
        return None if state is None else state.waits

    def last_seen(self, peer: str) -> float:
        """Return the monotonic seconds of the peer's last frame; 0.0 if none."""
        state = self.states.get(peer)
        return 0.0 if state is None else state.last_seen

    def may_lead(self, voters: tuple[str, ...]) -> bool:
        """True when this node may lead a group of `voters`: it is healthy, or none of the others is."""
        return self._health.well or not any(self.is_well(peer) for peer in voters if peer != self._me)

    def may_stamp(self, voters: tuple[str, ...], since: float) -> bool:
        """True when this node's clock may stamp messages of a group of `voters` that it has held since `since`: its
        time is a majority's, or it is the only voter and its time was not disputed for `RaftConfig.clock_wait`."""
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
    """Malformed or impossible frames."""
    unknown_frames: int = 0
    """Frames for groups that this node does not have."""
    stopped_groups: int = 0
    campaigns: int = 0


@dataclass(slots=True)
class NodeState:
    """The state shared by the groups of a node. `RaftNode` makes it and acts on it."""

    me: str
    config: RaftConfig
    journal: Journal
    send: Callable[[str, int, bytes], bool]
    """`Transport.send_raft`: (peer, group, frame)."""
    clock: Clock
    rng: Rng
    timers: Timers
    health: NodeHealth
    peers: Peers
    turns: Turns
    report: Callable[[int, str], None]
    """Logs a text about a group for the operator."""
    counters: RaftCounters = field(default_factory=RaftCounters)
    commit_latency: Latency = field(default_factory=Latency)
    """Seconds from a proposal to its commit, on leaders, for one entry at a time per group."""
    apply_latency: Latency = field(default_factory=Latency)
    """Seconds per turn in which a group applies commands."""
