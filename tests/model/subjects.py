"""Subjects: whether one matches, covers or overlaps another, and what a transform makes of it."""

from __future__ import annotations

import re


def valid(subject: str, *, wildcards: bool = True) -> bool:
    tokens = subject.split(".")
    if any(not token or re.search(r"\s", token) for token in tokens):
        return False
    if ">" in tokens[:-1]:
        return False
    return wildcards or not {"*", ">"} & set(tokens)


def matches(pattern: str, subject: str) -> bool:
    """True when the pattern takes all that the subject, which may be a pattern itself, takes."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > at
        if at >= len(tokens) or tokens[at] == ">" or (token not in ("*", tokens[at])):
            return False
    return len(wanted) == len(tokens)


def overlap(one: str, other: str) -> bool:
    """True when some subject matches both."""
    ones, others = one.split("."), other.split(".")
    for a, b in zip(ones, others, strict=False):
        if ">" in (a, b):
            return True
        if "*" not in (a, b) and a != b:
            return False
    return len(ones) == len(others)


def transformed(source: str, destination: str, subject: str) -> str | None:
    """None where the source does not match. Knows `$1`, `{{wildcard(1)}}` and `>`."""
    if not matches(source, subject):
        return None
    tokens, wanted = subject.split("."), source.split(".")
    stars = [tokens[at] for at, token in enumerate(wanted) if token == "*"]
    made = []
    for token in destination.split("."):
        number = re.fullmatch(r"\$(\d+)|\{\{wildcard\((\d+)\)\}\}", token)
        if number:
            made.append(stars[int(number[1] or number[2]) - 1])
        elif token == ">":
            made += tokens[len(wanted) - 1 :]
        else:
            made.append(token)
    return ".".join(made)
