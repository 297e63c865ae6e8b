"""The judge of dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.sim.cluster.judges import require


class Letter(NamedTuple):
    """A stored dead letter."""

    target: str
    """The beginning of its subject: the one that the consumer had at a time."""
    id: str
    text: str


class Letters:
    """Dead letters of a consumer that gives messages up: one for each message that nobody acknowledged, and at most one
    for any; one more for each reset of the consumer, and where another subject was given to it."""

    def __init__(self) -> None:
        self._acking: set[str] = set()
        self.resets = 0
        """Resets of the consumer that may have happened."""

    def acking(self, text: str) -> None:
        """An ack goes out, which may count or not."""
        self._acking.add(text)

    def complete(self, stored: Iterable[str], letters: list[Letter]) -> None:
        """`stored`: of the stream that is empty now; `letters`: of the stream that has them."""
        keys = Counter((letter.target, letter.id) for letter in letters)
        twice = sorted({letter.text for letter in letters if keys[letter.target, letter.id] > 1})
        require(not twice, f"more than one letter: {twice[:10]}")
        times = Counter((letter.target, letter.text) for letter in letters)
        often = sorted(text for (_, text), count in times.items() if count > 1 + self.resets)
        require(not often, f"more letters than times it was given up: {often[:10]}")
        lost = sorted(set(stored) - self._acking - {letter.text for letter in letters})
        require(not lost, f"given up without a letter: {lost[:10]}")
