"""JSON objects in the log (stream/bodies.py)."""

from __future__ import annotations

import pytest

from jetcluster.stream.bodies import MAX_DEPTH, load_object


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "raw",
    [
        b"{}", b'{"a":{"b":[1,2]}}', nested(MAX_DEPTH), b'{"a":"%b"}' % (b"[" * 10_000),
        b'{"a":"\\"%b"}' % (b"{" * 10_000), b'{"a":[%b]}' % b",".join([b"[]"] * 10_000), '{"ä":"ö"}'.encode(),
    ],
)  # fmt: skip
def test_read(raw: bytes) -> None:
    assert isinstance(load_object(raw), dict)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"1", b"null", b"\xff", b'{"a"', nested(MAX_DEPTH + 1), b"[" * 200_000, b'{"a":' * 200_000,
        b'{"a":"x' + b"[" * 10_000, b'{"a":%b}' % (b"9" * 10_000), b'"' + b"\\" * 10_001,
    ],
)  # fmt: skip
def test_refused_with_one_kind_of_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        load_object(raw)
