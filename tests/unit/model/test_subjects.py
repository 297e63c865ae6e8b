from __future__ import annotations

import itertools

import pytest

from jetcluster.model.subjects import MAX_SUBJECT_CHARS, MAX_TOKENS, is_literal, is_subset, is_valid, overlap


@pytest.mark.parametrize("subject", ["a", "a.b", "*", ">", "a.*.c", "a.>", "a*b.c", "$JS.x"])
def test_valid(subject: str) -> None:
    assert is_valid(subject)


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", "a b", "a\tb", "a\r\nb"])
def test_invalid(subject: str) -> None:
    assert not is_valid(subject)


def test_bounds() -> None:
    assert is_valid(".".join(["a"] * MAX_TOKENS))
    assert not is_valid(".".join(["a"] * (MAX_TOKENS + 1)))
    assert is_valid("a" * MAX_SUBJECT_CHARS)
    assert not is_valid("a" * (MAX_SUBJECT_CHARS + 1))


def test_literal() -> None:
    assert is_literal("a.b*")
    assert not is_literal("a.*")
    assert not is_literal("a.>")


def _matches(literal: tuple[str, ...], pattern: str) -> bool:
    tokens = pattern.split(".")
    for position, wanted in enumerate(tokens):
        if wanted == ">":
            return len(literal) > position
        if position >= len(literal) or wanted not in {"*", literal[position]}:
            return False
    return len(literal) == len(tokens)


def test_overlap_and_subset_agree_with_enumeration() -> None:
    """Every pattern of up to three tokens over {a, b, *} and `>`, against every literal of up to five."""
    parts = ["a", "b", "*"]
    patterns = [".".join(p) for n in (1, 2, 3) for p in itertools.product(parts, repeat=n)]
    patterns += [">"] + [".".join((*p, ">")) for n in (1, 2) for p in itertools.product(parts, repeat=n)]
    literals = [p for n in range(1, 6) for p in itertools.product(["a", "b", "z"], repeat=n)]
    matched = {pattern: frozenset(lit for lit in literals if _matches(lit, pattern)) for pattern in patterns}
    for one, other in itertools.product(patterns, repeat=2):
        assert overlap(one, other) == bool(matched[one] & matched[other]), (one, other)
        assert is_subset(one, other) == (matched[one] <= matched[other]), (one, other)
