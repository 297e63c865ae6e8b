from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.stream.fields import NEVER, check_ttl, parse_ttl


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
