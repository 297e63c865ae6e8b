"""Subjects and wildcards: tokens separated by dots, `*` is any one token, a final `>` is one or more.

`*` and `>` are wildcards only as whole tokens: `a*b` and `>x` are literals.
"""

from __future__ import annotations

_DOT = b"."
_STAR = b"*"
_FULL = b">"
_BLANKS = frozenset(b" \t\r\n\v\f\0")


def is_valid(subject: bytes) -> bool:
    """True for a subject that may be subscribed to, wildcards included: no empty token, no blank, `>` only last."""
    if not subject or not _BLANKS.isdisjoint(subject):
        return False
    tokens = subject.split(_DOT)
    return b"" not in tokens and _FULL not in tokens[:-1]


def is_literal(subject: bytes) -> bool:
    """True when no token is a wildcard. The subject need not be valid."""
    if _STAR not in subject and _FULL not in subject:
        return True
    tokens = subject.split(_DOT)
    return _STAR not in tokens and _FULL not in tokens


def is_valid_literal(subject: bytes) -> bool:
    """True for a subject that may be published to under the strict rules (pedantic, JetStream)."""
    return is_valid(subject) and is_literal(subject)


def is_sendable(subject: bytes) -> bool:
    """True for a subject that a line of the protocol can hold, so any that a PUB may have: no blank, not empty. What
    is sent with another one is several words to its receiver, or lines that nobody sent."""
    return subject.split() == [subject]


def tokens(subject: bytes) -> list[bytes]:
    return subject.split(_DOT)


def matches(subject: bytes, pattern: bytes) -> bool:
    """True when `pattern` matches the literal `subject`. Wildcards in `subject` are plain text."""
    if subject == pattern:
        return is_valid(subject)
    if is_literal(pattern):
        return False
    return _covers(pattern.split(_DOT), subject.split(_DOT), literal=True)


def is_subset(subject: bytes, pattern: bytes) -> bool:
    """True when `pattern` matches every literal subject that `subject` matches; both may hold wildcards."""
    return _covers(pattern.split(_DOT), subject.split(_DOT), literal=False)


def _covers(pattern: list[bytes], subject: list[bytes], *, literal: bool) -> bool:
    if b"" in subject:
        return False
    length = len(subject)
    for index, want in enumerate(pattern):
        if index >= length:
            return False
        if want == _FULL and index == len(pattern) - 1:
            return True
        have = subject[index]
        if want == _STAR:
            # `>` as a token of a literal is plain text, as a pattern it takes more tokens than `*` does.
            if have == _FULL and not literal:
                return False
        elif want != have or (not literal and have == _STAR):
            return False
    return length == len(pattern)


def collide(a: bytes, b: bytes) -> bool:
    """True when both patterns match some literal subject (nats-server: SubjectsCollide)."""
    if a == b:
        return True
    left, right = a.split(_DOT), b.split(_DOT)
    for x, y in zip(left, right, strict=False):
        if x == _FULL or y == _FULL:
            return True
        if x != y and x != _STAR and y != _STAR:
            return False
    return len(left) == len(right)
