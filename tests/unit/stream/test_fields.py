from __future__ import annotations

import pytest

from jetcluster.stream.fields import appended, is_delete_marker, nats_fields, number
from tests.unit.stream.fake_store import block


def test_fields_are_the_first_of_their_name_in_exact_case() -> None:
    headers = block("X: 1", "Nats-TTL:  5 ", "Nats-TTL: 6", "nats-ttl: 7", "Nats-Empty:")
    assert nats_fields(headers) == {b"Nats-TTL": b"5", b"Nats-Empty": b""}
    assert nats_fields(block("X: Nats-TTL: 5")) == {}
    assert nats_fields(b"Nats-TTL: 5\r\nNats-A: 1\r\n\r\n") == {b"Nats-A": b"1"}  # the first line is no field


@pytest.mark.parametrize(("text", "expected"), [(b"7", 7), (b"007", 7), (b"-1", -1), (b"", -1), (b"9" * 21, -1)])
def test_number(text: bytes, expected: int) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (block("Nats-Marker-Reason: MaxAge"), True),
        (block("Nats-Marker-Reason:"), False),
        (block("KV-Operation: PURGE"), True),
        (block("KV-Operation: DEL"), False),
        (block("X: 1"), False),
        (b"", False),
    ],
)
def test_delete_marker(headers: bytes, expected: bool) -> None:
    assert is_delete_marker(headers) is expected


def test_appended() -> None:
    assert appended(b"", b"A", b"1") == block("A: 1")
    assert appended(block("A: 1"), b"B", b"2") == block("A: 1", "B: 2")
