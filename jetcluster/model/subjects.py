"""`Patterns`: a set of subjects with wildcards that finds overlaps with one more subject.

Comparing each pair is quadratic, and so is a tree of tokens if `*` comes first. The *shape* of a pattern is the
positions of its literal tokens. Two patterns overlap exactly when their shapes permit a common length and their tokens
are equal wherever both are literal. That is one look-up in a table of those tokens per shape, and shapes are few.

Subjects in configurations are `str`. The data path has its own functions on bytes in `protocol`, on which the API and
the meta state machine must not depend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from jetcluster.records import NamedTuple

MAX_SUBJECT_CHARS = 16_383
"""Characters of a subject in a configuration: in UTF-8 they are at most 65,535 bytes, the limit of stored subjects."""
MAX_TOKENS = 2048
"""Tokens of a subject, as many as fit into nats-server's default control line."""
_BLANKS = frozenset(" \t\n\v\f\r")


def is_valid(subject: str) -> bool:
    """Returns True for a literal or wildcard subject within the limits: no empty token, no blanks, `>` only last."""
    if not subject or len(subject) > MAX_SUBJECT_CHARS or not _BLANKS.isdisjoint(subject):
        return False
    tokens = subject.split(".", MAX_TOKENS)
    return len(tokens) <= MAX_TOKENS and "" not in tokens and ">" not in tokens[:-1]


def is_literal(subject: str) -> bool:
    return not any(token in {"*", ">"} for token in subject.split("."))


def overlap(a: str, b: str) -> bool:
    """Returns True when a literal subject matches both."""
    return tokens_overlap(a.split("."), b.split("."))


def tokens_overlap(a: Sequence[str], b: Sequence[str]) -> bool:
    for x, y in zip(a, b, strict=False):
        if x == ">" or y == ">":
            return True
        if x != y and x != "*" and y != "*":
            return False
    return len(a) == len(b)


def is_subset(subject: str, of: str) -> bool:
    """Returns True when every subject that matches `subject` matches `of` too."""
    ours, theirs = subject.split("."), of.split(".")
    for position, wanted in enumerate(theirs):
        if wanted == ">":
            return len(ours) > position
        if position >= len(ours) or ours[position] == ">":
            return False
        if wanted not in {"*", ours[position]}:
            return False
    return len(ours) == len(theirs)


MAX_SHAPES = 128
"""A limit of this server only: shapes of the subjects in one list."""
MAX_TABLE_ENTRIES = 1 << 20
"""Entries of all tables for look-ups; beyond it all tables are discarded and made again when needed."""
MAX_PLANS = 1024
_Pick = Callable[[Sequence[str]], Any]


class Shape(NamedTuple):
    """A pattern without the text of its literal tokens."""

    length: int
    """Number of tokens without a final `>`."""
    open: bool
    """True with a final `>`."""
    literal: tuple[int, ...]
    """Positions of literal tokens, ascending."""

    def meets(self, other: Shape) -> bool:
        """Returns True when a subject of some length can match both."""
        if self.open:
            return other.open or other.length > self.length
        return self.length > other.length if other.open else self.length == other.length

    def fits(self, other: Shape) -> bool:
        """Returns True when subjects of every length that the other matches can match this one."""
        return other.length >= self.length + (not other.open) if self.open else other[:2] == self[:2]


@lru_cache(128)
def _all_literal(length: int) -> Shape:
    return Shape(length, False, tuple(range(length)))


def shape_of(tokens: Sequence[str]) -> Shape:
    if "*" not in tokens and ">" not in tokens:
        return _all_literal(len(tokens))
    length = tokens.index(">") if ">" in tokens else len(tokens)
    return Shape(length, length < len(tokens), tuple([i for i in range(length) if tokens[i] != "*"]))


class _Group:
    """Patterns of one shape, each with the number of times it was added."""

    __slots__ = ("entries", "shape", "tables")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.entries: dict[str, int] = {}
        self.tables: dict[tuple[int, ...], tuple[_Pick, dict[Any, int]]] = {}
        """Positions -> (getter of the tokens there, tokens -> number of patterns with them)."""

    def change(self, subject: str, tokens: Sequence[str], by: int) -> None:
        _count(self.entries, subject, by)
        for pick, table in self.tables.values():
            _count(table, pick(tokens), by)

    def table(self, positions: tuple[int, ...]) -> tuple[_Pick, dict[Any, int]]:
        found = self.tables.get(positions)
        if found is None:
            pick, table = _picker(positions), dict[Any, int]()
            for subject, count in self.entries.items():
                _count(table, pick(subject.split(".")), count)
            found = self.tables[positions] = pick, table
        return found


class Patterns:
    """A multiset of valid subjects with and without wildcards."""

    def __init__(self, subjects: Iterable[str] = ()) -> None:
        self._groups: dict[Shape, _Group] = {}
        self._plans: dict[Shape, list[tuple[_Pick, dict[Any, int]]]] = {}
        """Shape of a subject to look up -> (getter of its tokens, table) per group that it may overlap with."""
        self._projected = 0
        for subject in subjects:
            self.add(subject)

    @property
    def shapes(self) -> int:
        """The number of different shapes."""
        return len(self._groups)

    def add(self, subject: str) -> None:
        tokens = subject.split(".")
        self._add(subject, tokens, shape_of(tokens))

    def added_alone(self, subject: str) -> bool:
        """Adds the subject unless it overlaps with one of these, and then returns False."""
        tokens = subject.split(".")
        shape = shape_of(tokens)
        for pick, table in self._plan(shape):
            if pick(tokens) in table:
                return False
        self._add(subject, tokens, shape)
        return True

    def _add(self, subject: str, tokens: Sequence[str], shape: Shape) -> None:
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group(shape)
            self._plans.clear()
        group.change(subject, tokens, 1)
        self._projected += len(group.tables)

    def remove(self, subject: str) -> None:
        """Removes a subject once; it must have been added."""
        tokens = subject.split(".")
        shape = shape_of(tokens)
        group = self._groups[shape]
        group.change(subject, tokens, -1)
        if not group.entries:
            del self._groups[shape]
            self._plans.clear()

    def overlap(self, subject: str) -> bool:
        """Returns True when a literal subject matches both `subject` and one of these."""
        tokens = subject.split(".")
        for pick, table in self._plan(shape_of(tokens)):  # noqa: SIM110 - faster than any()
            if pick(tokens) in table:
                return True
        return False

    def overlaps(self, subject: str) -> int:
        """Returns the number of these with which it overlaps."""
        tokens = subject.split(".")
        return sum([table.get(pick(tokens), 0) for pick, table in self._plan(shape_of(tokens))])

    def _plan(self, shape: Shape) -> list[tuple[_Pick, dict[Any, int]]]:
        plan = self._plans.get(shape)
        if plan is None:
            literal = set(shape.literal)
            met = [group for group in self._groups.values() if group.shape.meets(shape)]
            wanted = [(group, tuple([i for i in group.shape.literal if i in literal])) for group in met]
            missing = sum(len(group.entries) for group, positions in wanted if positions not in group.tables)
            if self._projected + missing > MAX_TABLE_ENTRIES or len(self._plans) >= MAX_PLANS:
                self._forget()
            self._projected += missing
            plan = self._plans[shape] = [group.table(positions) for group, positions in wanted]
        return plan

    def _forget(self) -> None:
        self._plans.clear()
        self._projected = 0
        for group in self._groups.values():
            group.tables.clear()


def first_overlap(subjects: Sequence[str]) -> tuple[str, str] | None:
    """Returns (earlier, later): `later` is the first to overlap with an earlier one; or None."""
    seen = Patterns()
    for i, subject in enumerate(subjects):
        if not seen.added_alone(subject):
            alone = Patterns([subject])
            return next(earlier for earlier in subjects[:i] if alone.overlap(earlier)), subject
    return None


def one_within_another(subjects: Sequence[str]) -> bool:
    """Returns True when one of the subjects matches all that another one matches."""
    if len(set(subjects)) < len(subjects):
        return True
    by_shape: dict[Shape, list[list[str]]] = {}
    for subject in subjects:
        tokens = subject.split(".")
        by_shape.setdefault(shape_of(tokens), []).append(tokens)
    literal = {shape: sum(1 << position for position in shape.literal) for shape in by_shape}
    for outer, wider in by_shape.items():
        bits = literal[outer]
        # The narrower subject must have the same token wherever the wider one has a literal token.
        covered = [inner for inner in by_shape if inner != outer and outer.fits(inner) and not bits & ~literal[inner]]
        if covered:
            pick = _picker(outer.literal)
            taken = set(map(pick, wider))
            if any(pick(tokens) in taken for inner in covered for tokens in by_shape[inner]):
                return True
    return False


def too_various(subjects: Sequence[str]) -> bool:
    """Returns True when comparing the subjects would take too long: they have too many shapes, or too long ones."""
    shapes = {shape_of(subject.split(".")) for subject in subjects}
    return len(shapes) > MAX_SHAPES or len(shapes) * sum(shape.length for shape in shapes) > MAX_TABLE_ENTRIES


def _picker(positions: tuple[int, ...]) -> _Pick:
    return itemgetter(*positions) if positions else lambda tokens: ()


def _count(table: dict[Any, int], key: Any, by: int) -> None:
    count = table.get(key, 0) + by
    if count:
        table[key] = count
    else:
        del table[key]
