"""`NodeHealth`: the promises that a node may make now, given the troubles of its parts: the table in docs/health.md.

*May lead: no* means that leaderships go to voters that may lead (peers send that with their heartbeats); where no voter
may, the present leader stays: a slow stream is better than one without a leader. *Votes* are promises that the journal
must keep. *May answer reads: no* means that replicas leave the read groups, unless no other voter is healthier: then
their data is all there is. Readers and time stamps never get a wrong time: `ClusterClock` corrects it.

`LoopWatch` reports when the event loop of this process is blocked so much that other nodes should lead.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Final

from jetcluster.clock import Clock
from jetcluster.health.cluster_clock import ClusterClock
from jetcluster.records import dataclass

CALM_SECONDS: Final = 1.0
"""Seconds without a trouble after which it has ended."""


class Aspect(enum.Enum):
    """A part of a node whose trouble withdraws promises, with the module that reports it."""

    JOURNAL = "journal"  # raft.node
    DELETED = "deleted"  # raft.node
    SPACE = "space"  # raft.node
    STORE = "store"  # replica.turn_commit, store
    DATA = "data"  # cluster.store_care
    DESCRIPTORS = "descriptors"
    CLOCK = "clock"  # cluster_clock
    LOOP = "loop"  # raft.node
    MEMORY = "memory"  # health.memory


_SILENCES: Final = frozenset({Aspect.JOURNAL, Aspect.DELETED, Aspect.STORE})
"""With these the node answers no reads while another voter's node may."""


@dataclass(slots=True)
class Trouble:
    """A part's fault, with its beginning and its last observation in monotonic seconds."""

    aspect: Aspect
    reason: str
    since: float
    seen: float

    @property
    def text(self) -> str:
        return f"{self.aspect.value}: {self.reason}"


Check = Callable[[], str]
"""Returns the present trouble, "" for none. Called some ten times per second, so it must do no I/O."""
Changed = Callable[[Trouble, bool], None]
"""(trouble, True at its beginning and False at its end)"""


class NodeHealth:
    """The one verdict on this node, for its replicas, its votes and `/healthz`. `look` must be called regularly."""

    def __init__(self, clock: Clock, time: ClusterClock | None = None, calm: float = CALM_SECONDS) -> None:
        """`time`: None makes one from `clock`. `calm`: seconds without a trouble after which it has ended."""
        self.time = time if time is not None else ClusterClock(clock)
        self.troubles: dict[Aspect, Trouble] = {}
        self._clock = clock
        self._calm = calm
        self._checks: dict[Aspect, list[Check]] = {Aspect.CLOCK: [lambda: self.time.trouble]}
        self._listeners: list[Changed] = []

    # ---- verdicts

    @property
    def well(self) -> bool:
        """True when there is no trouble: this node may lead."""
        return not self.troubles

    @property
    def ill_since(self) -> float:
        """Monotonic seconds at which the oldest trouble began; infinity without one."""
        return min((trouble.since for trouble in self.troubles.values()), default=math.inf)

    @property
    def may_vote(self) -> bool:
        return Aspect.JOURNAL not in self.troubles and Aspect.DELETED not in self.troubles

    @property
    def keeps_time(self) -> bool:
        """True while the clock of this node is not in doubt: it may give and use leases."""
        return Aspect.CLOCK not in self.troubles

    @property
    def may_answer(self) -> bool:
        """Replicas here may answer reads, also where others could."""
        return self.troubles.keys().isdisjoint(_SILENCES)

    @property
    def reasons(self) -> list[str]:
        """The texts of all troubles, in the order of `Aspect`."""
        return [self.troubles[aspect].text for aspect in Aspect if aspect in self.troubles]

    # ---- checks

    def watch(self, aspect: Aspect, check: Check) -> None:
        """Add `check` to those that `look` calls."""
        self._checks.setdefault(aspect, []).append(check)

    def on_change(self, changed: Changed) -> None:
        self._listeners.append(changed)

    def look(self) -> None:
        """Call all checks; a trouble begins at once and ends after `calm` seconds without it."""
        self.time.settle()
        now = self._clock.monotonic()
        for aspect, checks in self._checks.items():
            reason = ""
            for check in checks:
                if reason := check():
                    break
            known = self.troubles.get(aspect)
            if reason:
                if known is None:
                    known = self.troubles[aspect] = Trouble(aspect, reason, now, now)
                    self._tell(known, began=True)
                known.reason, known.seen = reason, now
            elif known is not None and now - known.seen >= self._calm:
                del self.troubles[aspect]
                self._tell(known, began=False)

    def _tell(self, trouble: Trouble, *, began: bool) -> None:
        for changed in self._listeners:
            changed(trouble, began)


LOOP_WINDOW_SECONDS: Final = 5.0
"""Time constant, seconds: after it a pause counts a third."""
MAX_BLOCKED_SECONDS: Final = 2.5
"""Seconds of the window for which the loop may be blocked."""
MIN_PAUSE_SECONDS: Final = 0.25
"""Shorter pauses do not count: a busy machine causes them everywhere."""
MAX_PAUSE_SECONDS: Final = 1.0
"""Longer pauses count as this: one that is over matters less than repeated ones."""


class LoopWatch:
    """Watches the event loop of this process. A timer that is due every `period` seconds calls `beat`."""

    def __init__(self) -> None:
        self._stood_still = 0.0

    def beat(self, period: float, late: float) -> None:
        """Note that the timer fired `late` seconds after it was due."""
        pause = min(max(late, 0.0), MAX_PAUSE_SECONDS)
        self._stood_still *= math.exp(-(period + pause) / LOOP_WINDOW_SECONDS)
        if pause > MIN_PAUSE_SECONDS:
            self._stood_still += pause

    @property
    def trouble(self) -> str:
        """Return a reason while the loop is blocked too much, else ""."""
        if self._stood_still < MAX_BLOCKED_SECONDS:
            return ""
        return f"the event loop stood still for half of the last {LOOP_WINDOW_SECONDS:.0f} seconds"
