"""`ExpectedWildcards`: what the wildcards in Nats-Expected-Last-Subject-Sequence-Subject cost that a turn of the loop
brings, so that a leader can refuse those that are too much.

They are looked for in apply, on all replicas, while everything waits. A wildcard behind literal tokens is looked for
among the subjects that begin with these only, and wildcards that are alike in all but literal tokens (of the same
positions) are one search (`store.search.kept_filters`). The unit is a subject looked at for one such search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.search import filters
from jetcluster.store.search.kept_filters import WIDE
from jetcluster.stream.checks import EXPECTED_SUBJECT
from jetcluster.stream.fields import nats_fields

MAX_EXPECTED: Final = 100_000
"""Units of one turn, some 0.5 us each."""
MAX_TOKENS: Final = 2048
"""Most tokens of a wildcard, as of a subject in a configuration."""
TOKENS_PER_UNIT: Final = 16
"""A subject with more of them is as many units more."""
EACH: Final = 8
"""Units that any wildcard costs."""
TOO_WIDE: Final = errors.by_code(
    errors.STORE_FAILED, err="too many subjects for the wildcard in Nats-Expected-Last-Subject-Sequence-Subject"
)
_TOO_DEEP: Final = errors.by_code(
    errors.STORE_FAILED, err="too many tokens in Nats-Expected-Last-Subject-Sequence-Subject"
)


class ExpectedWildcards:
    """`width` tells how many subjects have to be looked at to find what matches."""

    def __init__(self) -> None:
        self.width: Callable[[bytes], int] = lambda subject_filter: 0
        self.spent = 0
        """Units, in this turn; `end_turn` is wanted where there are some."""
        self._searches: set[tuple[bytes, tuple[bytes, ...]]] = set()
        """Those that the open command makes already."""
        self._places: dict[bytes, int] = {}
        """Its wildcards, and the message of it that asked last: what came before that is not looked at again."""

    def refusal(self, headers: bytes, place: int) -> ApiError | None:
        """Takes account of the message at `place` in the open command. An error: it must not get into the log."""
        key = nats_fields(headers).get(EXPECTED_SUBJECT[2:-1], b"")
        if not key or is_literal(key):
            return None
        tokens = key.split(b".")
        if len(tokens) > MAX_TOKENS:
            return _TOO_DEEP
        width = self.width(key)
        shape = tuple([token if token in (b"*", b">") else b"" for token in tokens])
        search = filters.bounds(key)[0], shape
        subjects = 0 if width >= WIDE and search in self._searches else width
        if width >= WIDE:
            subjects += place - self._places.get(key, 0)
        units = EACH + subjects * (1 + len(tokens) // TOKENS_PER_UNIT)
        alone = not self.spent and len(tokens) < TOKENS_PER_UNIT
        if width > MAX_EXPECTED or (self.spent + units > MAX_EXPECTED and not alone):
            return TOO_WIDE
        self.spent += units
        self._searches.add(search)
        self._places[key] = place
        return None

    def end_command(self) -> None:
        """Told that what comes next is in another command."""
        self._searches.clear()
        self._places.clear()

    def end_turn(self) -> None:
        self.spent = 0
        self.end_command()
