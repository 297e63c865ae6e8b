"""`Thresholds`: the sleepers that wait for one gauge to rise, each to its own value, and the oldest of those whose
value it has reached.

Sorted values in blocks of some hundreds, each block with its lowest turn: whoever chooses a hundred thousand different
values makes a look take some hundreds of comparisons, not a question to each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from operator import itemgetter
from typing import Final

from jetcluster.consumer.pull_request import PullRequest

BLOCK: Final = 256
"""Values of two neighbouring blocks, at least; one has twice as many at most."""

_last: Final = itemgetter(-1)


class Thresholds:
    """Those that wait for one gauge."""

    __slots__ = ("_firsts", "_lines", "_turns", "_values")

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[PullRequest, None]] = {}
        """Value -> those that wait for it, in their turns."""
        self._values: list[list[int]] = []
        """Ascending, in blocks; none is empty."""
        self._turns: list[list[int]] = []
        """Beside each value the turn of the first that waits for it."""
        self._firsts: list[int] = []
        """The lowest turn of each block."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, value: int, request: PullRequest) -> None:
        """Its turn is later than that of all others."""
        line = self._lines.get(value)
        if line is not None:
            line[request] = None
            return
        self._lines[value] = OrderedDict({request: None})
        if not self._values:
            self._values, self._turns, self._firsts = [[value]], [[request.turn]], [request.turn]
            return
        block = min(bisect_left(self._values, value, key=_last), len(self._values) - 1)
        at = bisect_left(self._values[block], value)
        self._values[block].insert(at, value)
        self._turns[block].insert(at, request.turn)
        if len(self._values[block]) > 2 * BLOCK:
            self._values[block : block + 1] = self._values[block][:BLOCK], self._values[block][BLOCK:]
            self._turns[block : block + 1] = self._turns[block][:BLOCK], self._turns[block][BLOCK:]
            self._firsts[block : block + 1] = min(self._turns[block]), min(self._turns[block + 1])

    def remove(self, value: int, request: PullRequest) -> None:
        line = self._lines[value]
        was_first = next(iter(line)) is request
        del line[request]
        if not was_first:
            return
        block = bisect_left(self._values, value, key=_last)
        at = bisect_left(self._values[block], value)
        if line:
            self._turns[block][at] = next(iter(line)).turn
        else:
            del self._lines[value], self._values[block][at], self._turns[block][at]
            if not self._values[block]:
                del self._values[block], self._turns[block], self._firsts[block]
                return
        self._firsts[block] = min(self._turns[block])
        self._join(block)
        self._join(block - 1)

    def _join(self, block: int) -> None:
        """Makes one of this block and the next where both are small: else many could be left with one value each."""
        if 0 <= block < len(self._values) - 1 and len(self._values[block]) + len(self._values[block + 1]) <= BLOCK:
            self._values[block] += self._values.pop(block + 1)
            self._turns[block] += self._turns.pop(block + 1)
            self._firsts[block] = min(self._firsts[block], self._firsts.pop(block + 1))

    def first(self, reading: int) -> PullRequest | None:
        """The oldest of those that wait for `reading` or less."""
        whole = bisect_right(self._values, reading, key=_last)
        turn = min(self._firsts[:whole], default=0)
        block = self._firsts.index(turn) if whole else -1
        if whole < len(self._values) and (part := bisect_right(self._values[whole], reading)):
            found = min(self._turns[whole][:part])
            if block < 0 or found < turn:
                turn, block = found, whole
        if block < 0:
            return None
        value = self._values[block][self._turns[block].index(turn)]
        return next(iter(self._lines[value]))
