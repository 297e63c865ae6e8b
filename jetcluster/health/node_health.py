"""`NodeHealth`: the promises that a node may make at the moment, by the troubles of its parts.

| aspect | reported by, and when | may lead | may vote | may answer reads |
|---|---|---|---|---|
| JOURNAL | `raft.node`: age of the oldest unfinished write | no | no | no |
| SPACE | `raft.node`: the disk takes no publishes | no | yes | yes |
| STORE | `replica.turn_commit`, `store`: failing or hanging commits, reads, flushes | no | yes | no |
| DATA | `cluster.store_care`: files of the data store are damaged, new data may not begin | no | yes | yes |
| DESCRIPTORS | the reserve of file descriptors is touched | no | yes | yes |
| CLOCK | `cluster_clock`: the wall clock disagrees with the cluster's time | no | yes | yes |
| LOOP | `raft.node`: the event loop stands still for most of the time | no | yes | yes |
| MEMORY | `memory`: hardly any memory is left | no | yes | yes |

*Leads: no* means that leaderships go to voters that may lead (peers send that with their heartbeats); where no voter
may, the present leader stays: a slow stream is better than one without a leader. *Votes* are promises that the journal
must keep. *Vouches: no* means that replicas leave the read groups, unless no other voter is well: then their data is
all there is. Time is never wrong for a reader or a stamp: `ClusterClock` corrects it.

`LoopWatch` says when the event loop of this process stands still so much that others should lead.
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


class Aspect(enum.Enum):
    """The parts of a node whose trouble takes promises away."""

    JOURNAL = "journal"
    SPACE = "space"
    STORE = "store"
    DATA = "data"
    DESCRIPTORS = "descriptors"
    CLOCK = "clock"
    LOOP = "loop"
    MEMORY = "memory"


_SILENCES: Final = frozenset({Aspect.JOURNAL, Aspect.STORE})
"""With these the node answers no reads while another voter's node may."""


@dataclass(slots=True)
class Trouble:
    """A part that is not well: the reason, and the time since when, in monotonic seconds."""

    aspect: Aspect
    reason: str
    since: float
    """Monotonic seconds."""
    seen: float
    """When it was last there."""

    @property
    def text(self) -> str:
        return f"{self.aspect.value}: {self.reason}"


Check = Callable[[], str]
"""Returns the trouble that there is now, "" for none. Called some ten times per second: no I/O."""
Changed = Callable[[Trouble, bool], None]
"""(trouble, whether it began): called once at the beginning and once at the end of every trouble."""


class NodeHealth:
    """The one verdict on this node that its replicas, its votes and `/healthz` go by. `look` must be called now and
    then; nothing is measured here."""

    def __init__(self, clock: Clock, time: ClusterClock | None = None, calm: float = CALM_SECONDS) -> None:
        """`time`: None makes one of `clock`. `calm`: seconds that an aspect must have been fine before the node is
        believed to be well again."""
        self.time = time if time is not None else ClusterClock(clock)
        self.troubles: dict[Aspect, Trouble] = {}
        self._clock = clock
        self._calm = calm
        self._checks: dict[Aspect, list[Check]] = {Aspect.CLOCK: [lambda: self.time.trouble]}
        self._listeners: list[Changed] = []

    # ---- verdicts

    @property
    def well(self) -> bool:
        """Nothing is wrong: this node may lead."""
        return not self.troubles

    @property
    def ill_since(self) -> float:
        """Monotonic seconds when the oldest trouble began; infinity while all is well."""
        return min((trouble.since for trouble in self.troubles.values()), default=math.inf)

    @property
    def may_vote(self) -> bool:
        return Aspect.JOURNAL not in self.troubles

    @property
    def may_answer(self) -> bool:
        """Replicas here may answer reads, also where others could."""
        return self.troubles.keys().isdisjoint(_SILENCES)

    @property
    def reasons(self) -> list[str]:
        """In the order of the table above."""
        return [self.troubles[aspect].text for aspect in Aspect if aspect in self.troubles]

    # ---- what is looked at

    def watch(self, aspect: Aspect, check: Check) -> None:
        """Has `look` ask `check` from now on."""
        self._checks.setdefault(aspect, []).append(check)

    def on_change(self, changed: Changed) -> None:
        self._listeners.append(changed)

    def look(self) -> None:
        """Asks all checks; a new trouble counts at once, its end after `calm` seconds without it."""
        self.time.settle()
        now = self._clock.monotonic()
        for aspect, checks in self._checks.items():
            reason = next((reason for check in checks if (reason := check())), "")
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


LOOP_WINDOW: Final = 5.0
"""Seconds after which a pause counts a third."""
MOST_STILL: Final = 2.5
"""Seconds of the window that the loop may stand still."""
SHORTEST_PAUSE: Final = 0.25
"""Seconds; a busy machine makes everybody wait for less."""
LONGEST_PAUSE: Final = 1.0
"""Seconds; a longer pause counts as this: it is over, and what counts is that pauses come again and again."""


class LoopWatch:
    """Watches the event loop of this process. `beat` is called by a timer that is due every `period` seconds."""

    def __init__(self) -> None:
        self._stood_still = 0.0

    def beat(self, period: float, late: float) -> None:
        """Notes that the timer came `late` seconds after it was due."""
        pause = min(max(late, 0.0), LONGEST_PAUSE)
        self._stood_still *= math.exp(-(period + pause) / LOOP_WINDOW)
        if pause > SHORTEST_PAUSE:
            self._stood_still += pause

    @property
    def trouble(self) -> str:
        """ "" while all is well."""
        if self._stood_still < MOST_STILL:
            return ""
        return f"the event loop stood still for half of the last {LOOP_WINDOW:.0f} seconds"
