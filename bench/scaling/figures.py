"""`Figures`: what was measured of reads and their scaling, in a JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from bench.scaling.model import PLACES, Costs, Plan, ReadCost, WriteCost

WRITE_FIELDS = ("alone", "leader", "follower", "feeding", "mirror")
"""Those of WriteCost."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load of one round. Processor times in microseconds per message, without what servers take at rest."""

    what: str
    """The form of the read, or what it asked for."""
    place: str
    window: int
    """Requests in flight."""
    rate: float
    """Messages a second."""
    p50: float
    """Milliseconds, as the next."""
    p99: float
    asked: float
    leader: float
    others: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One throttled load of one round: each server had `share` of a core."""

    case: str
    form: str
    plan: Plan
    rate: float
    """Messages a second that were read."""
    written: float
    """Messages a second that were published meanwhile."""
    used: Sequence[float]
    """Cores that each server took."""
    client: float
    """Cores that the load took."""


@dataclass
class Figures:
    """Rates per second, milliseconds and microseconds, one of each round."""

    date: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    rest: float = 0.0
    """The share of a core that a server takes at rest."""
    forms: list[Load] = field(default_factory=list)
    strengths: list[Load] = field(default_factory=list)
    writes: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Microseconds per message, by messages a second: those of WriteCost, and of a publish at a follower."""
    trials: list[Trial] = field(default_factory=list)
    untried: str = ""
    """Why there are no trials."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError, ValueError."""
        found = json.loads(path.read_text())
        for name in ("forms", "strengths"):
            found[name] = [Load(**one) for one in found[name]]
        found["trials"] = [Trial(**one | {"plan": Plan(**one["plan"])}) for one in found["trials"]]
        return cls(**found)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    def costs(self, form: str, rate: float) -> Costs:
        """Medians of the rounds, for the model: of reads of a form and of writes with a rate, where there are writes.
        Raises StatisticsError, KeyError where something is missing."""
        reads = {place: read_cost(one for one in self.forms if (one.what, one.place) == (form, place))
                 for place in PLACES}  # fmt: skip
        writes = WriteCost(**{name: self.write_cost(name, rate) if rate else 0.0 for name in WRITE_FIELDS})
        return Costs(reads, writes, self.rest)

    def write_cost(self, name: str, rate: float) -> float:
        """Never below 0: a difference of two figures may be."""
        return max(statistics.median(one[name] for one in self.writes[f"{rate:g}"]), 0.0)


def read_cost(loads: Iterable[Load]) -> ReadCost:
    """Medians. Raises StatisticsError for nothing."""
    found = list(loads)
    asked, leader, others = (
        statistics.median(getattr(one, name) for one in found) for name in ("asked", "leader", "others")
    )  # fmt: skip
    return ReadCost(asked, leader, others)
