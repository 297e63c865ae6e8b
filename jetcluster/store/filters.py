"""Subject filters over many subjects at once: one regular expression per filter, run over a list in C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

Matcher = Callable[[bytes], object]
"""Gives something true for the subjects that match."""


def is_literal(subject_filter: bytes) -> bool:
    """True when no token is `*` or a final `>`."""
    if b"*" not in subject_filter and b">" not in subject_filter:
        return True
    tokens = subject_filter.split(b".")
    return b"*" not in tokens and tokens[-1] != b">"


def bounds(subject_filter: bytes) -> tuple[bytes, bytes | None]:
    """Every subject that matches is at or behind the first and, unless it is None, before the second."""
    tokens = subject_filter.split(b".")
    depth = 0
    while depth < len(tokens) and tokens[depth] != b"*" and not (depth == len(tokens) - 1 and tokens[depth] == b">"):
        depth += 1
    start = b".".join(tokens[:depth])
    if depth == len(tokens):
        return start, start + b"\0"
    return (start + b".", start + b"/") if depth else (b"", None)


def only_rest(subject_filter: bytes) -> bool:
    """True when its only wildcard is a final `>`: it takes everything within its `bounds`."""
    tokens = subject_filter.split(b".")
    return tokens[-1] == b">" and b"*" not in tokens


@lru_cache(256)
def matcher(subject_filter: bytes) -> Matcher:
    """A callable that gives something true for the subjects the filter matches.

    `*` stands for exactly one token, a final `>` for one or more; elsewhere the two are plain characters.
    """
    tokens = subject_filter.split(b".")
    rest = tokens[-1] == b">"
    parts = [rb"[^.]+" if token == b"*" else re.escape(token) for token in (tokens[:-1] if rest else tokens)]
    if rest:
        parts.append(rb".+")
    return re.compile(rb"\.".join(parts), re.DOTALL).fullmatch


def matches(subject_filter: bytes, subject: bytes) -> bool:
    """As `matcher`, for a filter that may never be asked for again."""
    wanted, tokens = subject_filter.split(b"."), subject.split(b".")
    last = len(wanted) - 1
    if wanted[last] == b">":
        if len(tokens) <= last or (len(tokens) == last + 1 and not tokens[last]):
            return False
        wanted.pop()
    elif len(tokens) != len(wanted):
        return False
    return all(token == want or (want == b"*" and token != b"") for want, token in zip(wanted, tokens, strict=False))


def select(subject_filter: bytes, subjects: Iterable[bytes]) -> list[bytes]:
    """The subjects that match, in the order given."""
    return list(filter(matcher(subject_filter), subjects))
