"""Subjects: validity and the three relations, checked against each other by enumeration."""

from __future__ import annotations

from itertools import product

import pytest

from jetcluster.protocol import parser, subjects

TOKENS = (b"a", b"b", b"*", b">")
LITERALS = [b".".join(p) for n in range(1, 4) for p in product((b"a", b"b", b"c"), repeat=n)]
PATTERNS = [s for n in range(1, 4) for p in product(TOKENS, repeat=n) if subjects.is_valid(s := b".".join(p))]


@pytest.mark.parametrize(
    ("subject", "valid"),
    [
        (b"a", True),
        (b"a.b", True),
        (b"a.*.c", True),
        (b">", True),
        (b"a.>", True),
        (b"a*b.>x", True),
        ("grüße".encode(), True),
        (b"", False),
        (b".", False),
        (b"a..b", False),
        (b".a", False),
        (b"a.", False),
        (b"a.>.b", False),
        (b"a b", False),
        (b"a\tb", False),
        (b"a\0", False),
    ],
)
def test_valid(subject: bytes, valid: bool) -> None:
    assert subjects.is_valid(subject) is valid


@pytest.mark.parametrize(
    ("subject", "literal"),
    [(b"a.b", True), (b"a*b", True), (b">a", True), (b"*", False), (b"a.*", False), (b"a.>", False)],
)
def test_literal(subject: bytes, literal: bool) -> None:
    assert subjects.is_literal(subject) is literal
    assert subjects.is_valid_literal(subject) is literal


@pytest.mark.parametrize(
    ("subject", "pattern", "match"),
    [
        (b"a.b", b"a.b", True),
        (b"a.b", b"a.*", True),
        (b"a", b"a.>", False),
        (b"a.b.c", b"a.>", True),
        (b"a.b.c", b"a.*", False),
        (b"a.*", b"a.*", True),
        (b"a.*", b"a.b", False),
        (b"a.>", b"a.*", True),
        (b"a..b", b"a.>", False),
        (b"a..b", b"a..b", False),
        (b"a*b", b"a*b", True),
        (b"axb", b"a*b", False),
    ],
)
def test_matches(subject: bytes, pattern: bytes, match: bool) -> None:
    assert subjects.matches(subject, pattern) is match


def test_relations_agree_with_enumeration() -> None:
    taken = {p: {s for s in LITERALS if subjects.matches(s, p)} for p in PATTERNS}
    for p in PATTERNS:
        for q in PATTERNS:
            # Three tokens are enough to tell these patterns apart, except that `>` also takes longer subjects.
            if b">" not in p or b">" in q:
                assert subjects.is_subset(p, q) == (taken[p] <= taken[q]), (p, q)
            assert subjects.collide(p, q) == subjects.collide(q, p)
            assert subjects.collide(p, q) == bool(taken[p] & taken[q]) or b">" in p + q, (p, q)
            if taken[p] & taken[q]:
                assert subjects.collide(p, q)


def test_full_wildcard_is_no_subset_of_stars() -> None:
    assert not subjects.is_subset(b"a.>", b"a.*")
    assert subjects.is_subset(b"a.*", b"a.>")
    assert subjects.is_subset(b"a.>", b"a.>")
    assert not subjects.collide(b"a.>", b"a")


def test_a_subject_is_sendable_that_a_publish_may_have() -> None:
    """Each byte, within a subject and as one, as the parser of the clients' commands takes it."""
    for byte in range(256):
        for subject in (b"a%cb" % byte, b"%c" % byte):
            commands = parser.Parser().feed(b"PUB %b 1\r\nx\r\n" % subject)
            carried = bool(commands) and commands[0][1] == subject and commands[0][2] == b""
            assert subjects.is_sendable(subject) == carried, subject
    assert not subjects.is_sendable(b"")
    assert not subjects.is_sendable(b"s 9 0\r\n\r\nMSG forged 9 1\r\nx\r\nMSG s")
    assert all(map(subjects.is_sendable, (*PATTERNS, b"a..b", b"a.\xff\xfe")))


def test_all_that_a_line_is_split_at_is_no_part_of_a_subject() -> None:
    blanks = [byte for byte in range(256) if bytes([byte]).isspace()]
    assert blanks == [9, 10, 11, 12, 13, 32]
    assert not any(subjects.is_valid(b"a%cb" % byte) for byte in blanks)
