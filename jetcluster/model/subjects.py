"""`Patterns`: many subjects with wildcards, of which it is asked whether one more overlaps with any.

Comparing each with each is quadratic, and a tree of tokens is too where `*` comes first. Patterns of one *shape*, the
positions of their literal tokens, are alike in all but those tokens: two of given shapes overlap exactly when they
agree where both have a literal one, which is a look-up in a table of those tokens. So a question costs one look-up per
shape, and shapes are few.

Subjects in configurations are `str`. The data path has its own functions, on bytes (`protocol`); these serve the edge
and the meta state machine, which must not depend on `protocol` (layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

MAX_LENGTH = 16_383
"""Characters of a subject in a configuration: at most 65,535 bytes, which is what a stored subject may have."""
MAX_TOKENS = 2048
"""Tokens of a subject: as many as fit into nats-server's default control line. Each is a node of a tree."""
_BLANKS = frozenset(" \t\n\f\r")


def is_valid(subject: str) -> bool:
    """A literal or a wildcard subject within bounds: no empty token, no blanks, `>` only as the last token."""
    if not subject or len(subject) > MAX_LENGTH or not _BLANKS.isdisjoint(subject):
        return False
    tokens = subject.split(".", MAX_TOKENS)
    return len(tokens) <= MAX_TOKENS and "" not in tokens and ">" not in tokens[:-1]


def is_literal(subject: str) -> bool:
    return not any(token in {"*", ">"} for token in subject.split("."))


def overlap(a: str, b: str) -> bool:
    """True when some literal subject matches both."""
    return tokens_overlap(a.split("."), b.split("."))


def tokens_overlap(a: Sequence[str], b: Sequence[str]) -> bool:
    for x, y in zip(a, b, strict=False):
        if x == ">" or y == ">":
            return True
        if x != y and x != "*" and y != "*":
            return False
    return len(a) == len(b)


def is_subset(subject: str, of: str) -> bool:
    """True when every subject that matches `subject` matches `of` too."""
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
"""Ours: with wildcards at more different places than this, a list of more than so many subjects is refused."""
MAX_PROJECTED = 1 << 20
"""Entries of the tables made for questions; with more, all are made anew when they are needed."""
PLANS_KEPT = 1024

_Pick = Callable[[Sequence[str]], Any]


class Shape(NamedTuple):
    """A pattern without the text of its literal tokens."""

    length: int
    """Tokens, without a final `>`."""
    open: bool
    """There is a final `>`."""
    literal: tuple[int, ...]
    """Positions of literal tokens, ascending."""

    def meets(self, other: Shape) -> bool:
        """A subject may be long enough, and not too long, for both."""
        if self.open:
            return other.open or other.length > self.length
        return self.length > other.length if other.open else self.length == other.length

    def fits(self, other: Shape) -> bool:
        """A subject that is long enough, and not too long, for the other is so for this one."""
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
    """Patterns of one shape; each may be in several times."""

    __slots__ = ("entries", "shape", "tables")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.entries: dict[str, int] = {}
        self.tables: dict[tuple[int, ...], tuple[_Pick, dict[Any, int]]] = {}
        """By positions: how many patterns have which tokens there."""

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
    """Subjects with and without wildcards, valid ones. A subject that was added twice is there until it was removed
    twice."""

    def __init__(self, subjects: Iterable[str] = ()) -> None:
        self._groups: dict[Shape, _Group] = {}
        self._plans: dict[Shape, list[tuple[_Pick, dict[Any, int]]]] = {}
        """By the shape of who asks: what to look up, and where."""
        self._projected = 0
        for subject in subjects:
            self.add(subject)

    @property
    def shapes(self) -> int:
        """Different places of wildcards."""
        return len(self._groups)

    def add(self, subject: str) -> None:
        tokens = subject.split(".")
        self._add(subject, tokens, shape_of(tokens))

    def added_alone(self, subject: str) -> bool:
        """Adds the subject, unless it overlaps with one of these: False then."""
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
        """Takes a subject away that was added before."""
        tokens = subject.split(".")
        shape = shape_of(tokens)
        group = self._groups[shape]
        group.change(subject, tokens, -1)
        if not group.entries:
            del self._groups[shape]
            self._plans.clear()

    def overlap(self, subject: str) -> bool:
        """True when some literal subject matches both `subject` and one of these."""
        tokens = subject.split(".")
        for pick, table in self._plan(shape_of(tokens)):  # noqa: SIM110 - this is the quicker way
            if pick(tokens) in table:
                return True
        return False

    def overlaps(self, subject: str) -> int:
        """With how many of these it overlaps."""
        tokens = subject.split(".")
        return sum([table.get(pick(tokens), 0) for pick, table in self._plan(shape_of(tokens))])

    def _plan(self, shape: Shape) -> list[tuple[_Pick, dict[Any, int]]]:
        plan = self._plans.get(shape)
        if plan is None:
            literal = set(shape.literal)
            met = [group for group in self._groups.values() if group.shape.meets(shape)]
            wanted = [(group, tuple([i for i in group.shape.literal if i in literal])) for group in met]
            missing = sum(len(group.entries) for group, positions in wanted if positions not in group.tables)
            if self._projected + missing > MAX_PROJECTED or len(self._plans) >= PLANS_KEPT:
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
    """The first subject in the list that overlaps with one before it, and the first of those: (earlier, later)."""
    seen = Patterns()
    for i, subject in enumerate(subjects):
        if not seen.added_alone(subject):
            alone = Patterns([subject])
            return next(earlier for earlier in subjects[:i] if alone.overlap(earlier)), subject
    return None


def one_within_another(subjects: Sequence[str]) -> bool:
    """One of the subjects takes all that another one takes."""
    if len(set(subjects)) < len(subjects):
        return True
    by_shape: dict[Shape, list[list[str]]] = {}
    for subject in subjects:
        tokens = subject.split(".")
        by_shape.setdefault(shape_of(tokens), []).append(tokens)
    literal = {shape: sum(1 << position for position in shape.literal) for shape in by_shape}
    for outer, wider in by_shape.items():
        bits = literal[outer]
        # Where the wider one has a literal token the other one must have it too.
        covered = [inner for inner in by_shape if inner != outer and outer.fits(inner) and not bits & ~literal[inner]]
        if covered:
            pick = _picker(outer.literal)
            taken = set(map(pick, wider))
            if any(pick(tokens) in taken for inner in covered for tokens in by_shape[inner]):
                return True
    return False


def too_various(subjects: Sequence[str]) -> bool:
    """The wildcards of the subjects are at more than MAX_SHAPES different places, or at so many in subjects of so many
    tokens that to compare them takes long."""
    shapes = {shape_of(subject.split(".")) for subject in subjects}
    return len(shapes) > MAX_SHAPES or len(shapes) * sum(shape.length for shape in shapes) > MAX_PROJECTED


def _picker(positions: tuple[int, ...]) -> _Pick:
    return itemgetter(*positions) if positions else lambda tokens: ()


def _count(table: dict[Any, int], key: Any, by: int) -> None:
    count = table.get(key, 0) + by
    if count:
        table[key] = count
    else:
        del table[key]
