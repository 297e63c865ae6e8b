from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.stream.fields import NEVER, appended, check_ttl, is_delete_marker, nats_fields, number, parse_ttl
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


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5),
        ("007", 7),
        ("1s", 1),
        ("1.5s", 1),
        ("1h2m", 3720),
        ("1m0.5s", 60),
        ("1s1s", 2),
        ("never", NEVER),
        ("NEVER", NEVER),
        ("99999999999", 99_999_999_999),
        ("9223372036854775807", 2**63 - 1),
        ("0", None),
        ("-1", None),
        ("+5", None),
        ("-5s", None),
        ("5.5", None),
        ("500ms", None),
        ("1d", None),
        ("junk", None),
        ("9223372036854775808", None),
        ("9" * 40, None),
    ],
)
def test_parse(value: str, seconds: int | None) -> None:
    """Each as nats-server 2.15.2 takes or refuses it."""
    assert parse_ttl(value.encode()) == seconds


@pytest.mark.parametrize(
    ("value", "allowed", "code"),
    [
        (b"5", True, None),
        (b"", True, None),
        (b"", False, None),
        (b"0", True, 10165),
        (b"5", False, 10166),
        (b"junk", False, 10166),
    ],
)
def test_check(value: bytes, allowed: bool, code: int | None) -> None:
    error = check_ttl({b"Nats-TTL": value}, allowed=allowed)
    assert (error.err_code if isinstance(error, ApiError) else None) == code
    assert check_ttl({}, allowed=allowed) is None
