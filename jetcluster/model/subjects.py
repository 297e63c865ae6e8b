"""Subjects in configurations: validity and overlap, on `str`.

The data path has its own, on bytes (`protocol`); this one serves the edge and the meta state machine, which must not
depend on `protocol` (layers).
"""

from __future__ import annotations

from collections.abc import Sequence

_BLANKS = frozenset(" \t\n\f\r")


def is_valid(subject: str) -> bool:
    """A literal or a wildcard subject: no empty token, no blanks, `>` only as the last token."""
    if not subject or not _BLANKS.isdisjoint(subject):
        return False
    tokens = subject.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


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
