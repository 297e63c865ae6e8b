"""Judges of what is to happen at a time. Pure, as those in `judges`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tests.sim.cluster.judges import require


class Lifetimes:
    """Messages that go after a time, and those that may not. A look at one is (what, time, is it there)."""

    def __init__(self) -> None:
        self._lives: dict[int, tuple[float, float]] = {}
        """Earliest and latest time of a message's end, by sequence; infinity for one that stays."""

    @property
    def seqs(self) -> Iterable[int]:
        return self._lives.keys()

    def ack(self, seq: int, sent: float, acked: float, seconds: float = math.inf) -> None:
        self._lives[seq] = sent + seconds, acked + seconds

    def look(
        self, seq: int, began: float, ended: float, there: bool, early: float, latest: Callable[[float], float]
    ) -> None:
        """`early`: seconds by which it may go too early. `latest`: when something is to be gone that is to go then."""
        earliest, last = self._lives[seq][0] - early, latest(self._lives[seq][1])
        require(there or ended > earliest, f"{seq} is gone {earliest - ended:.3f} s too early")
        require(not there or began < last, f"{seq} is there {began - last:.3f} s too long")


class Repeats:
    """A schedule that repeats: each firing is stored with the time of the next one."""

    def __init__(self, seconds: int) -> None:
        """It is due when the seconds of the clock are a multiple of this."""
        self._seconds = seconds

    def fired(self, where: str, firings: Iterable[tuple[float, float]]) -> None:
        """(when it was stored, when it said the next one comes), in Unix seconds, in the order of the stream."""
        due = 0.0
        for at, following in firings:
            require(at >= due, f"{where}: it fired at {at:.3f}, and the firing before said {due:.3f}")
            require(following > at, f"{where}: it fired at {at:.3f}, and says that it comes at {following:.3f}")
            require(following % self._seconds == 0, f"{where}: {following:.3f} is not when it is due")
            due = following


class Firings:
    """Scheduled messages, which fire once, not before their time and not long after."""

    def __init__(self) -> None:
        self.due: dict[str, str] = {}
        """The times (RFC 3339, of one precision for all) by name."""

    def put(self, name: str, at: str) -> None:
        self.due[name] = at

    def fired(
        self, where: str, messages: Iterable[tuple[str, str]], latest: Mapping[str, str] = MappingProxyType({})
    ) -> set[str]:
        """(name, when it was stored, as in `due`) of all that has come; the names. `latest`: when they are to have come
        at the latest, as far as that is known."""
        found: set[str] = set()
        for name, at in messages:
            require(name in self.due, f"{where}: {name} fired and was never put")
            require(name not in found, f"{where}: {name} fired twice")
            require(at >= self.due[name], f"{where}: {name} fired at {at}, it is due at {self.due[name]}")
            late = name in latest and at > latest[name]
            require(not late, f"{where}: {name} fired at {at}, is due at {self.due[name]} and by {latest.get(name)}")
            found.add(name)
        return found
