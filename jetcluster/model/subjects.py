"""Subjects in configurations: validity and overlap, on `str`.

The data path has its own, on bytes (`protocol`); this one serves the edge and the meta state machine, which must not
depend on `protocol` (layers).
"""

from __future__ import annotations

from collections.abc import Sequence

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
