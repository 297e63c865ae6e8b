"""Transforms of an import's subjects into the exporting account's, and back.

An import names its wildcards by number (`to: "local.$2.$1"`). Unlike a mapping it must work both ways, so its
transform is strict: `{{wildcard(n)}}` (or `$n`) is the only function, and every `*` of the source is used. Texts of the
errors are nats-server's; precedent: subject_transform.go there (NewSubjectTransformStrict, reverse).
"""

from __future__ import annotations

import re

from jetcluster.model.transforms import SubjectTransform, TransformError, bounded, check_length

_NUMBERED = re.compile(rb"\$[1-9].*")
_WILDCARD = re.compile(rb"\{\{\s*wildcard\s*\([^,]+\)\s*\}\}", re.IGNORECASE)
_INVALID = "invalid mapping destination"


def is_wild(subject: bytes) -> bool:
    """True when a token is `*` or `>`."""
    return any(token in (b"*", b">") for token in subject.split(b"."))


def numbered(subject: bytes) -> bytes:
    """`a.*.*` -> `a.$1.$2`."""
    count = 0
    tokens = []
    for token in subject.split(b"."):
        if token == b"*":
            count += 1
            token = b"$%d" % count
        tokens.append(token)
    return b".".join(tokens)


def starred(subject: bytes) -> tuple[bytes, list[bytes]]:
    """`a.$2.{{wildcard(1)}}` -> `a.*.*`, and the place holders in their order."""
    tokens, holders = [], []
    for token in subject.split(b"."):
        if _is_holder(token):
            holders.append(token)
            tokens.append(b"*")
        else:
            tokens.append(token)
    return b".".join(tokens), holders


def strict_transform(source: bytes, destination: bytes) -> SubjectTransform:
    """`source` has wildcards. Raises TransformError."""
    check_length(destination)
    tokens = destination.split(b".")
    for token in tokens:
        if len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}") and not _is_holder(token):
            SubjectTransform(source, destination)  # what is wrong with it in any case is said first
            raise TransformError(
                f"{_INVALID}: the only mapping function allowed for import transforms is {{{{Wildcard()}}}} "
                f"in {token.decode(errors='replace')}"
            )
    transform = bounded(SubjectTransform(source, destination))
    if sum(map(_is_holder, tokens)) < source.split(b".").count(b"*"):
        text = destination.decode(errors="replace")
        raise TransformError(f"{_INVALID}: not using all of the token wildcard(s) in {text}")
    return transform


def reverse(transform: SubjectTransform) -> SubjectTransform:
    """The way back of a strict transform: place holders go to the stars of its source in the order in which they stand
    in its destination, as upstream has it (two that change places come back right, a turn of three does not)."""
    source, holders = starred(transform.destination)
    left = iter(holders)
    tokens = [next(left, token) if token == b"*" else token for token in transform.source.split(b".")]
    return SubjectTransform(source, b".".join(tokens))


def _is_holder(token: bytes) -> bool:
    return _NUMBERED.fullmatch(token) is not None or _WILDCARD.fullmatch(token) is not None
