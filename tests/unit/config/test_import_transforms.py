"""Transforms of imports: numbered wildcards, and the way back."""

from __future__ import annotations

import pytest

from jetcluster.config.import_rules import numbered, reverse, starred, strict_transform
from jetcluster.model.transforms import TransformError


def test_numbers_and_stars() -> None:
    assert numbered(b"a.*.b.*.>") == b"a.$1.b.$2.>"
    assert starred(b"a.$2.{{wildcard(1)}}.$KV.>") == (b"a.*.*.$KV.>", [b"$2", b"{{wildcard(1)}}"])


@pytest.mark.parametrize(
    ("source", "destination", "remote", "local"),
    [
        (b"x.*.*", b"q.$2.$1", b"x.1.2", b"q.2.1"),
        (b"x.>", b"imp.x.>", b"x.1.2", b"imp.x.1.2"),
        (b"x.*.>", b"$1.q.>", b"x.a.b.c", b"a.q.b.c"),
    ],
)
def test_there_and_back(source: bytes, destination: bytes, remote: bytes, local: bytes) -> None:
    transform = strict_transform(source, destination)
    assert transform.match(remote) == local
    assert reverse(transform).match(local) == remote


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        (b"q.$1", "not using all of the token wildcard"),
        (b"q.$1.{{left(2,1)}}", "the only mapping function allowed for import transforms is {{Wildcard"),
        (b"q.$1.$3", "wildcard index out of range"),
    ],
)
def test_refused(destination: bytes, why: str) -> None:
    with pytest.raises(TransformError, match=why):
        strict_transform(b"x.*.*", destination)
