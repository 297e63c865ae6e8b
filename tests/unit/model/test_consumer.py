from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.consumer import (
    ConsumerCreateRequest,
    ConsumerPauseRequest,
    ConsumerResetRequest,
    ConsumerUnpinRequest,
)


def parse(config: bytes) -> dict[str, object]:
    return ConsumerCreateRequest.parse(b'{"stream_name":"S","config":%b}' % config).config.to_wire()


def test_only_what_was_given_is_on_the_wire() -> None:
    plain = {"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
    assert parse(b"{}") == plain
    assert parse(b'{"ack_policy":"","deliver_policy":"","replay_policy":"","priority_policy":""}') == plain
    assert parse(b'{"ACK_Policy":"all","max_deliver":null,"bogus":1}') == {**plain, "ack_policy": "all"}
    assert parse(b'{"priority_policy":"overflow"}') == {**plain, "priority_policy": "overflow"}


@pytest.mark.parametrize("absent", ["none", "explicit"])
def test_an_absent_ack_policy_is_what_the_server_says(absent: str) -> None:
    def settled(config: dict[str, object]) -> str:
        wanted = ConsumerCreateRequest.from_object({"stream_name": "S", "config": config}).config
        wanted.settle_ack_policy(absent)
        return wanted.ack_policy

    assert [settled(config) for config in ({}, {"ack_policy": ""}, {"ack_policy": None})] == [absent] * 3
    for policy in ("none", "all", "explicit", "flow_control"):
        assert settled({"ack_policy": policy}) == policy


def test_times_are_kept_as_text_and_as_nanoseconds() -> None:
    wire = parse(b'{"opt_start_time":"2026-01-01T02:00:00.500+02:00","pause_until":"2030-01-01T00:00:00Z"}')
    assert (wire["opt_start_time"], wire["opt_start_time_ns"]) == (
        "2026-01-01T02:00:00.5+02:00",
        1_767_225_600_500_000_000,
    )
    assert (wire["pause_until"], wire["pause_until_ns"]) == ("2030-01-01T00:00:00Z", 1_893_456_000_000_000_000)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"config":{"ack_policy":"bad"}}', r'can not unmarshal "\"bad\""'),
        (b'{"config":{"ack_policy":7}}', 'can not unmarshal "7"'),
        (b'{"config":{"priority_policy":"bad"}}', 'unknown priority policy: "bad"'),
        (b'{"action":"x"}', 'unknown consumer action: "x"'),
        (
            b'{"config":{"pause_until":"x"}}',
            'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"',
        ),
        (b'{"config":{"ack_wait":"5s"}}', "json: cannot unmarshal string into field config.ack_wait of type int64"),
        (
            b'{"config":{"opt_start_seq":-5}}',
            "json: cannot unmarshal number -5 into field config.opt_start_seq of type int64",
        ),
        (b"[]", "json: cannot unmarshal array into value of type object"),
    ],
)
def test_refused_json(body: bytes, text: str) -> None:
    with pytest.raises(ApiError) as info:
        ConsumerCreateRequest.parse(body)
    assert info.value.to_dict() == {"code": 400, "err_code": 10025, "description": f"invalid JSON: {text}"}


def test_strict_refuses_unknown_keys_at_both_levels() -> None:
    for body in (b'{"zz":1}', b'{"config":{"zz":1}}'):
        ConsumerCreateRequest.parse(body)
        with pytest.raises(ApiError, match='unknown field "zz"'):
            ConsumerCreateRequest.parse(body, strict=True)


def test_small_requests() -> None:
    assert ConsumerPauseRequest.parse(b'{"pause_until":""}').pause_until == ""
    assert ConsumerResetRequest.parse(b"{}").seq == 0
    assert ConsumerUnpinRequest.parse(b'{"group":"g"}').group == "g"
    with pytest.raises(ApiError, match="10025"):
        ConsumerResetRequest.parse(b'{"seq":-1}')
