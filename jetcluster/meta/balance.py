"""Balance: which leaders, consumers or replicas change their server, so that each server carries its share.

`spread` is pure. The meta leader calls it with what servers report, now and then, and carries out a few moves at a time
(`cluster.balancer`). Three properties hold whatever it is given (tests/unit/meta/test_balance.py):

- It ends. A move of weight w needs a gap between the two servers of at least w and a half (`needed_gap`), so each one
  lowers the sum of the squares of the loads.
- Nothing moves back and forth. After a move the gap is smaller by twice w; a move back needs it in the other direction.
- It is calm about rates, which are measured: a tenth of what both servers carry of them counts as noise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from jetcluster.budget import Steps, at_once
from jetcluster.records import NamedTuple

UNITS_PER_STEP: Final = 16
NOISE_SHARE: Final = 10
"""One part in so many of two servers' rates is noise: measured rates differ by as much from one time to the next."""


class Weight(NamedTuple):
    """The cost of something to the server that carries it. The unit is the caller's, the same for all of one call."""

    fixed: int = 0
    """Known exactly: it is there."""
    rate: int = 0
    """Measured: it is used."""

    @property
    def total(self) -> int:
        return self.fixed + self.rate

    def plus(self, other: Weight, sign: int = 1) -> Weight:
        return Weight(self.fixed + sign * other.fixed, self.rate + sign * other.rate)


class Unit(NamedTuple):
    """A leadership, a consumer or a replica that could be elsewhere."""

    key: tuple[int, ...]
    """The caller's; no two units of one call have the same."""
    at: str
    """Peer id of the server that carries it."""
    heirs: tuple[str, ...]
    """Peer ids of the servers that could carry it at once."""
    weight: Weight


class Shift(NamedTuple):
    """A move of one unit, with the loads of the two servers before it."""

    unit: Unit
    target: str
    source_load: Weight
    target_load: Weight


def needed_gap(weight: int, noise: int) -> int:
    """Returns by how much the source must carry more than the target: the busier of the two carries less afterwards, by
    half of what moves and by the noise at least."""
    return weight + max((weight + 1) // 2, noise)


def noise_of(one: Weight, other: Weight) -> int:
    return (one.rate + other.rate) // NOISE_SHARE


def uneven(loads: Mapping[str, Weight], targets: Iterable[str], lightest: int) -> bool:
    """Returns True when a unit as light as `lightest` might move; cheap, so that a balanced cluster costs nothing."""
    return any(
        load.total - loads[target].total >= needed_gap(lightest, noise_of(load, loads[target]))
        for target in targets
        for load in loads.values()
    )


def spread(
    loads: Mapping[str, Weight],
    units: Sequence[Unit],
    targets: Iterable[str],
    most: int,
    allowed: Callable[[str, str], bool] = lambda source, target: True,
) -> list[Shift]:
    """Returns at most `most` moves, in the order in which they are to be made; each unit moves once at most. `loads`:
    of all servers concerned, of which only `targets` get anything; units elsewhere stay. `allowed`: whether one server
    may give to the other at all."""
    now = dict(loads)
    choices = Choices(now, targets)
    at_once(choices.fill(units))
    shifts: list[Shift] = []
    while len(shifts) < most:
        shift = at_once(choices.next(now, allowed))
        if shift is None:
            break
        shifts.append(shift)
        choices.drop(shift.unit)
        now[shift.unit.at] = now[shift.unit.at].plus(shift.unit.weight, -1)
        now[shift.target] = now[shift.target].plus(shift.unit.weight)
    return shifts


class Choices:
    """The units by where they are and where they could be, lightest first. Filled once, then asked for one move after
    the other."""

    def __init__(self, loads: Mapping[str, Weight], targets: Iterable[str]) -> None:
        """`loads`, `targets`: see `spread`."""
        self._known = frozenset(loads)
        self._takers = [peer for peer in dict.fromkeys(targets) if peer in loads]
        self._units: list[Unit] = []
        self._gone: set[tuple[int, ...]] = set()
        self._refused: set[tuple[tuple[int, ...], str]] = set()
        self._places: dict[tuple[str, str], list[int]] = {}

    def fill(self, units: Iterable[Unit]) -> Steps[None]:
        """Takes the units, once."""
        assert not self._units
        self._units = [unit for unit in units if unit.at in self._known and unit.weight.total > 0]
        self._units.sort(key=lambda unit: unit.weight.total)  # stable: the caller's order decides between equal ones
        able = frozenset(self._takers)
        for at, unit in enumerate(self._units):
            for heir in unit.heirs:
                if heir in able and heir != unit.at:
                    self._places.setdefault((unit.at, heir), []).append(at)
            if at % UNITS_PER_STEP == 0:
                yield

    def drop(self, unit: Unit) -> None:
        """The unit stays where it is, or has moved."""
        self._gone.add(unit.key)

    def refuse(self, unit: Unit, target: str) -> None:
        """The unit can't go to this server."""
        self._refused.add((unit.key, target))

    def next(
        self, now: Mapping[str, Weight], allowed: Callable[[str, str], bool] = lambda source, target: True
    ) -> Steps[Shift | None]:
        """Returns the move from the busiest server that can give to the least busy that can take. `now`: the loads."""
        targets = sorted(self._takers, key=lambda peer: (now[peer].total, peer))
        for source in sorted(now, key=lambda peer: (-now[peer].total, peer)):
            yield
            for target in targets:
                gap = now[source].total - now[target].total
                if gap <= 0:
                    break
                if source != target and allowed(source, target):
                    unit = self._best(source, target, gap, noise_of(now[source], now[target]))
                    if unit is not None:
                        return Shift(unit, target, now[source], now[target])
        return None

    def _best(self, source: str, target: str, gap: int, noise: int) -> Unit | None:
        """Returns the heaviest unit after whose move the source carries no less than the target, or the lightest."""
        places = self._places.get((source, target))
        if not places:
            return None
        places[:] = [at for at in places if not self._is_out(self._units[at], target)]
        half = bisect_right(places, min(gap // 2, gap - noise), key=lambda at: self._units[at].weight.total)
        for at in places[max(half - 1, 0) : half + 1]:
            if gap >= needed_gap(self._units[at].weight.total, noise):
                return self._units[at]
        return None

    def _is_out(self, unit: Unit, target: str) -> bool:
        return unit.key in self._gone or (unit.key, target) in self._refused
