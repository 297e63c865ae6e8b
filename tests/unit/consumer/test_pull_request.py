from __future__ import annotations

import pytest

from jetcluster.consumer.pull_request import BadRequestError, PullRequest


@pytest.mark.parametrize(
    ("body", "left"),
    [(b"", 1), (b" 7\n", 7), (b"+3", 3), (b"-3", 1), (b"0", 1), (b"1.5", 1), (b"x", 1), (b"[5]", 1), (b"9" * 30, 1)],
)
def test_bodies_that_are_no_object(body: bytes, left: int) -> None:
    assert PullRequest.decode(b"r", body).left == left


def test_an_object() -> None:
    body = (
        b'{"batch":5,"max_bytes":10,"expires":9,"idle_heartbeat":4,"no_wait":true,"min_pending":1,"min_ack_pending":2,'
        b'"group":"g","id":"p","priority":3,"other":[]}'
    )
    request = PullRequest.decode(b"r", body)
    assert (request.left, request.max_bytes, request.left_bytes, request.timeout, request.heartbeat) == (
        5,
        10,
        10,
        9,
        4,
    )
    assert (request.no_wait, request.min_pending, request.min_ack_pending) == (True, 1, 2)
    assert (request.group, request.pin, request.priority) == (b"g", b"p", 3)


def test_absent_null_and_negative() -> None:
    request = PullRequest.decode(b"r", b'{"batch":-1,"max_bytes":-5,"expires":null,"idle_heartbeat":-1}')
    assert (request.left, request.max_bytes, request.timeout, request.heartbeat) == (1, 0, 0, 0)
    assert PullRequest.decode(b"r", b"{}").left == 1


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"batch":1}x', b'{"batch":"1"}', b'{"batch":true}', b'{"no_wait":1}', b'{"group":7}', b'{"batch":NaN}',
     b'{"batch":1e3}', b'{"batch":99999999999999999999}', b'{"a":' + b"[" * 100_000],
)  # fmt: skip
def test_bad_objects(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        PullRequest.decode(b"r", body)


def test_a_heartbeat_is_at_most_half_of_expires() -> None:
    PullRequest.decode(b"r", b'{"expires":10,"idle_heartbeat":5}')
    with pytest.raises(BadRequestError, match="heartbeat value too large"):
        PullRequest.decode(b"r", b'{"expires":9,"idle_heartbeat":5}')


@pytest.mark.parametrize("number", ["1.5", "99999999999999999999"])
def test_a_number_that_does_not_fit_is_named(number: str) -> None:
    with pytest.raises(BadRequestError, match=f"cannot unmarshal number {number} into Go struct field"):
        PullRequest.decode(b"r", b'{"batch":%b}' % number.encode())
