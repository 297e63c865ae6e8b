"""Defaults and refusals as nats-server 2.15.2 gives them: each case was asked there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.model import consumer_rules
from jetcluster.model.consumer_rules import MAX_FILTERS
from jetcluster.model.limits import UNLIMITED, AccountLimits

SECOND = 1_000_000_000
STREAM: dict[str, Any] = {
    "name": "S",
    "subjects": ["s.>"],
    "retention": "limits",
    "num_replicas": 3,
    "consumer_limits": {},
}
PLAIN = {"deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant"}
PUSH = {"deliver_subject": "d.x"}
GROUPS = {"priority_groups": ["a"], "priority_policy": "overflow"}
FLOW = {"ack_policy": "flow_control", **PUSH}


def filled(config: dict[str, Any], stream: dict[str, Any] = STREAM, limits: AccountLimits = UNLIMITED) -> Any:
    return consumer_rules.with_defaults({**PLAIN, **config}, stream, limits)


def check(config: dict[str, Any], stream: dict[str, Any] = STREAM, limits: AccountLimits = UNLIMITED) -> None:
    name = config.get("name", "c")
    consumer_rules.check_config(name, filled({**config, "name": name}, stream, limits), stream, limits)


def test_defaults_of_a_durable_pull_consumer_in_wire_order() -> None:
    config = filled({"durable_name": "C", "name": "C"})
    assert list(config.items()) == [
        ("durable_name", "C"), ("name", "C"), ("deliver_policy", "all"), ("ack_policy", "explicit"),
        ("ack_wait", 30 * SECOND), ("max_deliver", -1), ("replay_policy", "instant"), ("max_waiting", 512),
        ("max_ack_pending", 1000), ("num_replicas", 0), ("metadata", {"_nats.req.level": "0"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"inactive_threshold": 5 * SECOND}),
        ({"durable_name": "c"}, {"inactive_threshold": None}),
        ({"ack_policy": "none"}, {"ack_wait": None, "max_ack_pending": None, "max_waiting": 512}),
        ({"ack_policy": "none", "ack_wait": 5}, {"ack_wait": 5}),
        ({"max_deliver": -7}, {"max_deliver": -1}),
        ({"max_ack_pending": -5}, {"max_ack_pending": -1}),
        ({"max_waiting": -1, "max_batch": -1, "max_expires": -1, "max_bytes": -1}, {"max_waiting": 512}),
        ({"backoff": [5, 6], "ack_wait": 9}, {"ack_wait": 5}),
        (PUSH, {"max_waiting": None, "max_ack_pending": 1000}),
        ({**PUSH, "idle_heartbeat": -1}, {"idle_heartbeat": None}),
        (FLOW, {"flow_control": True, "idle_heartbeat": SECOND, "ack_wait": None, "max_ack_pending": 1000}),
        ({"priority_groups": ["a"], "priority_policy": "pinned_client"}, {"priority_timeout": 120 * SECOND}),
        (GROUPS, {"priority_timeout": None, "metadata": {"_nats.req.level": "1"}}),
        (FLOW, {"metadata": {"_nats.req.level": "4"}}),
        (
            {"pause_until": "2090-01-01T00:00:00Z", "pause_until_ns": 3_786_912_000 * SECOND},
            {"metadata": {"_nats.req.level": "1"}},
        ),
        (
            {"pause_until": "0001-01-01T00:00:00Z", "pause_until_ns": -62_135_596_800 * SECOND},
            {"metadata": {"_nats.req.level": "0"}},
        ),
        (
            {"metadata": {"a": "1", "_nats.x": "2", "_nats.ver": "9"}},
            {"metadata": {"_nats.req.level": "0", "_nats.x": "2", "a": "1"}},
        ),
    ],
)
def test_defaults(config: dict[str, Any], expected: dict[str, Any]) -> None:
    result = filled(config)
    assert {key: result.get(key) for key in expected} == expected
    for key in ("max_batch", "max_expires", "max_bytes"):
        assert key not in result


def test_what_is_beyond_the_limits_of_a_stream() -> None:
    config = {"max_ack_pending": 50, "inactive_threshold": 10}
    for limits in ({}, {"max_ack_pending": -1}, {"max_ack_pending": 50, "inactive_threshold": 10}):
        assert not consumer_rules.is_beyond(config, limits)
    assert consumer_rules.is_beyond(config, {"max_ack_pending": 49})
    assert consumer_rules.is_beyond(config, {"max_ack_pending": 50, "inactive_threshold": 9})
    assert not consumer_rules.is_beyond({"max_ack_pending": -1}, {"max_ack_pending": 1})


def test_an_ephemeral_consumer_without_a_threshold_of_its_own_is_always_new() -> None:
    assert consumer_rules.always_new({}, STREAM)
    assert not consumer_rules.always_new({"durable_name": "c"}, STREAM)
    assert not consumer_rules.always_new({"inactive_threshold": 5}, STREAM)
    assert not consumer_rules.always_new({}, {**STREAM, "consumer_limits": {"inactive_threshold": 5}})


def test_defaults_of_stream_account_and_server() -> None:
    limited = {**STREAM, "consumer_limits": {"max_ack_pending": 50, "inactive_threshold": 10 * SECOND}}
    for config in ({}, {"durable_name": "c"}, {"ack_policy": "none"}):
        result = filled(config, limited)
        assert (result["max_ack_pending"], result["inactive_threshold"]) == (50, 10 * SECOND)
    assert filled({}, STREAM, AccountLimits(max_ack_pending=20))["max_ack_pending"] == 20
    assert filled({}, STREAM, AccountLimits(server_max_ack_pending=10, max_ack_pending=20))["max_ack_pending"] == 10


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "ack_policy": st.sampled_from(["none", "all", "explicit", "flow_control"]),
            "ack_wait": st.integers(-2, 5),
            "max_deliver": st.integers(-3, 3),
            "max_ack_pending": st.integers(-3, 3),
            "max_waiting": st.integers(-3, 3),
            "backoff": st.lists(st.integers(1, 3), max_size=2),
            "deliver_subject": st.sampled_from(["", "d.x"]),
            "metadata": st.dictionaries(st.sampled_from(["a", "_nats.ver", "_nats.x"]), st.just("1")),
            "inactive_threshold": st.integers(-1, 2),
        },
    )
)
def test_defaults_are_idempotent(config: dict[str, Any]) -> None:
    once = filled(config)
    assert consumer_rules.with_defaults(once, STREAM) == once
    assert consumer_rules.with_defaults(consumer_rules.shown(once), STREAM) == once


REFUSED: list[tuple[dict[str, Any], int, int, str]] = [
    ({"name": "a*b"}, 500, 10052, "consumer name can not contain '.', '*', '>', '\\', '/'"),
    ({"name": "a b"}, 500, 10052, "consumer name can not contain '.', '*', '>', '\\', '/'"),
    ({"num_replicas": 4}, 400, 10126, "consumer config replica count exceeds parent stream"),
    ({"num_replicas": -1}, 400, 10133, "replicas count cannot be negative"),
    ({"backoff": [-1]}, 400, 10184, "consumer backoff needs to be positive"),
    ({"ack_wait": -1}, 400, 10183, "consumer ack wait needs to be positive"),
    ({"backoff": [1, 2, 3], "max_deliver": 2}, 400, 10116, "max deliver is required to be > length of backoff values"),
    ({"description": "x" * 4097}, 400, 10107, "consumer description is too long, maximum allowed is 4096"),
    ({"deliver_subject": "d.*"}, 400, 10079, "consumer deliver subject has wildcards"),
    ({"deliver_subject": "d..x"}, 400, 10112, "invalid push consumer deliver subject"),
    ({"deliver_subject": "s.x"}, 400, 10081, "consumer deliver subject forms a cycle"),
    ({**PUSH, "max_waiting": 5}, 400, 10080, "consumer in push mode can not set max waiting"),
    (
        {**PUSH, "ack_policy": "none", "max_ack_pending": 5},
        400, 10082, "consumer requires ack policy for max ack pending",
    ),
    ({**PUSH, "idle_heartbeat": 1000}, 400, 10083, "consumer idle heartbeat needs to be >= 100ms"),
    ({"rate_limit_bps": 5}, 400, 10086, "consumer in pull mode can not have rate limit set"),
    ({"idle_heartbeat": SECOND}, 400, 10088, "consumer idle heartbeat requires a push based consumer"),
    ({"flow_control": True}, 400, 10089, "consumer flow control requires a push based consumer"),
    ({"max_expires": 1000}, 400, 10115, "consumer max request expires needs to be >= 1ms"),
    ({"direct": True}, 400, 10090, "consumer direct requires a push based consumer"),
    (
        {**PUSH, "direct": True, "durable_name": "c"},
        400, 10091, "consumer direct requires an ephemeral consumer",
    ),
    (
        {"filter_subject": "s.a", "filter_subjects": ["s.b"]},
        400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified",
    ),
    ({"filter_subject": "s..a"}, 500, 10052, "invalid subject"),
    ({"filter_subject": "s.a b"}, 500, 10052, "invalid subject"),
    ({"filter_subjects": ["s..a"]}, 500, 10052, "invalid subject"),
    ({"filter_subjects": ["s.a", ""]}, 400, 10139, "consumer filter in FilterSubjects cannot be empty"),
    ({"filter_subjects": ["s.a", "s.*"]}, 400, 10138, "consumer subject filters cannot overlap"),
    ({"filter_subjects": ["s.a", "s.a"]}, 400, 10138, "consumer subject filters cannot overlap"),
    ({"sample_freq": "abc"}, 400, 10095,
     'failed to parse consumer sampling configuration: strconv.Atoi: parsing "abc": invalid syntax'),
    ({"sample_freq": "1%%"}, 400, 10095,
     'failed to parse consumer sampling configuration: strconv.Atoi: parsing "1%": invalid syntax'),
    ({"sample_freq": "-1"}, 400, 10095, "failed to parse consumer sampling configuration: <nil>"),
    ({**PUSH, "flow_control": True}, 400, 10108, "consumer with flow control also needs heartbeats"),
    ({"durable_name": "d"}, 400, 10132, "Consumer Durable and Name have to be equal if both are provided"),
    ({"metadata": {"k": "x" * (1 << 17)}}, 400, 10135, "consumer metadata exceeds maximum size of 128KB"),
    ({**PUSH, **GROUPS}, 400, 10178, "priority groups can not be used with push consumers"),
    (
        {"priority_policy": "overflow"},
        400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set",
    ),
    ({**GROUPS, "priority_groups": [""]}, 400, 10161, "Group name cannot be an empty string"),
    ({**GROUPS, "priority_groups": ["a b"]}, 400, 10162,
     "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"),
    ({**GROUPS, "priority_groups": ["x" * 17]}, 400, 10162,
     "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"),
    ({"priority_groups": ["a"]}, 400, 10196, "consumer can not have priority groups when policy is none"),
    ({"priority_timeout": 1}, 400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
    ({"ack_policy": "flow_control"}, 400, 10218, "flow control ack policy requires a push based consumer"),
    ({**FLOW, "max_ack_pending": -1}, 400, 10220, "flow control ack policy requires max ack pending"),
    ({**FLOW, "ack_wait": 5}, 400, 10221, "flow control ack policy requires unset ack wait"),
    ({**FLOW, "max_deliver": 5}, 400, 10222, "flow control ack policy requires unset max deliver"),
    ({"name": "y" * 256}, 400, 10102, "consumer name is too long, maximum allowed is 255"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "code", "err_code", "text"), REFUSED)
def test_refused(config: dict[str, Any], code: int, err_code: int, text: str) -> None:
    with pytest.raises(ApiError) as info:
        check(config)
    assert info.value == ApiError(code, err_code, text)


@pytest.mark.parametrize(
    "config",
    [
        {}, PUSH, FLOW, GROUPS, {"sample_freq": "50%"}, {"sample_freq": "101"}, {"filter_subject": "other.x"},
        {"filter_subjects": ["s.b", "s.a"]}, {**PUSH, "ack_policy": "none", "max_ack_pending": -1},
        {**PUSH, "direct": True}, {"backoff": [1, 2, 3], "max_deliver": 3}, {"backoff": [1, 2, 3]},
        {"num_replicas": 1}, {**PUSH, "deliver_group": "g"}, {"deliver_group": "g"}, {"name": "x" * 255},
        {"priority_policy": "pinned_client", "priority_groups": ["a", "b"], "priority_timeout": 5},
    ],
)  # fmt: skip
def test_accepted(config: dict[str, Any]) -> None:
    check(config)


def test_filters_may_overlap_in_part() -> None:
    check({"filter_subjects": ["a.*.c", "x", "a.b.*"]})
    check({"filter_subjects": ["a.*.c", "x", "a.*.d", "b.>"]})
    with pytest.raises(ApiError, match="10138"):
        check({"filter_subjects": ["a.*.c", "x", "a.b.*", "*.*.c"]})


def test_thousands_of_filters() -> None:
    many = [f"s.{n % 64}.{n}" for n in range(MAX_FILTERS - 1)]
    check({"filter_subjects": [*many, "t.*"]})
    with pytest.raises(ApiError, match="10138"):
        check({"filter_subjects": [*many, "s.*.7"]})
    with pytest.raises(ApiError, match="too many filter subjects"):
        check({"filter_subjects": [*many, "t.*", "u.*"]})


WORDS = {
    "all": "all", "last": "last", "new": "new", "by_start_sequence": "by start sequence",
    "by_start_time": "by start time", "last_per_subject": "last per subject",
}  # fmt: skip
SEQ, TIME = {"opt_start_seq": 5}, {"opt_start_time": "2026-01-01T00:00:00Z", "opt_start_time_ns": 1}


@pytest.mark.parametrize(
    ("policy", "options", "problem"),
    [
        *((p, SEQ, "start sequence is also set") for p in ("all", "last", "new", "last_per_subject")),
        *((p, TIME, "start time is also set") for p in ("all", "last", "new", "last_per_subject")),
        ("by_start_sequence", {}, "start sequence is not set"),
        ("by_start_sequence", TIME, "start sequence is not set"),
        ("by_start_sequence", SEQ | TIME, "start time is also set"),
        ("by_start_time", SEQ, "start time is not set"),
        ("by_start_time", SEQ | TIME, "start start sequence is also set"),
        ("last_per_subject", {}, "filter subject is not set"),
    ],
)
def test_start_positions(policy: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiError) as info:
        check({"deliver_policy": policy, **options})
    text = f"consumer delivery policy is deliver {WORDS[policy]}, but optional {problem}"
    assert info.value == ApiError(400, 10094, text)


def test_start_positions_that_are_right() -> None:
    for policy, options in (("by_start_sequence", SEQ), ("by_start_time", TIME), ("new", {}), ("last", {})):
        check({"deliver_policy": policy, **options})
    check({"deliver_policy": "last_per_subject", "filter_subjects": ["s.a", "s.b"]})


def test_rules_of_retention() -> None:
    for retention in ("interest", "workqueue"):
        stream = {**STREAM, "retention": retention}
        for replicas in (0, 3):
            check({"num_replicas": replicas}, stream)
        with pytest.raises(ApiError, match="10134"):
            check({"num_replicas": 1}, stream)
    queue = {**STREAM, "retention": "workqueue"}
    with pytest.raises(ApiError, match="10084"):
        check({"ack_policy": "none"}, queue)
    check({"ack_policy": "none"}, {**STREAM, "retention": "interest"})


def test_limits_of_stream_account_and_server() -> None:
    limited = {**STREAM, "consumer_limits": {"max_ack_pending": 50, "inactive_threshold": 10 * SECOND}}
    check({"max_ack_pending": 50, "inactive_threshold": 10 * SECOND}, limited)
    check({"max_ack_pending": -1}, limited)
    with pytest.raises(ApiError) as info:
        check({"max_ack_pending": 51}, limited)
    assert info.value == ApiError(400, 10121, "consumer max ack pending exceeds system limit of 50")
    with pytest.raises(ApiError) as info:
        check({"inactive_threshold": 20 * SECOND}, limited)
    assert info.value == ApiError(400, 10153, "consumer inactive threshold exceeds system limit of 10s")
    for limits in (AccountLimits(max_ack_pending=50), AccountLimits(server_max_ack_pending=50)):
        check({"max_ack_pending": 50}, limits=limits)
        with pytest.raises(ApiError, match="10121"):
            check({"max_ack_pending": 51}, limits=limits)
    with pytest.raises(ApiError) as info:
        check({"max_batch": 6}, limits=AccountLimits(max_request_batch=5))
    assert info.value == ApiError(400, 10125, "consumer max request batch exceeds server limit of 5")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"max_deliver": -5}, "max_deliver must be set to -1"),
        ({"max_ack_pending": -5}, "max_ack_pending must be set to -1"),
        ({"max_waiting": -3}, "max_waiting must not be negative"),
        ({"max_batch": -1}, "max_batch must not be negative"),
        ({"max_expires": -1}, "max_expires must not be negative"),
        ({"max_bytes": -1}, "max_bytes must not be negative"),
        ({"inactive_threshold": -1}, "inactive_threshold must not be negative"),
        ({**PUSH, "idle_heartbeat": -1}, "idle_heartbeat must not be negative"),
        ({**GROUPS, "priority_timeout": -1}, "priority_timeout must not be negative"),
        ({"backoff": [5], "ack_wait": 6}, "first backoff value has to equal batch AckWait"),
        ({"backoff": [5]}, "first backoff value has to equal batch AckWait"),
        ({"max_deliver": -5, "backoff": [5]}, "max_deliver must be set to -1"),
    ],
)
def test_pedantic(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as info:
        consumer_rules.check_pedantic({**PLAIN, **config}, STREAM)
    assert info.value == ApiError(400, 10157, f"pedantic mode: {text}")
    check(config)


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({}, ApiError(400, 10219, "flow control ack policy requires flow control")),
        ({"flow_control": True}, ApiError(500, 10052, "flow control ack policy heartbeat needs to be 1s")),
        (
            {"flow_control": True, "idle_heartbeat": 2 * SECOND},
            ApiError(500, 10052, "flow control ack policy heartbeat needs to be 1s"),
        ),
        ({"flow_control": True, "idle_heartbeat": SECOND}, None),
    ],
)
def test_pedantic_flow_control_acks_say_all_they_need(config: dict[str, Any], refusal: ApiError | None) -> None:
    result = consumer_rules.with_defaults({**PLAIN, **FLOW, **config}, STREAM, pedantic=True)
    if refusal is None:
        consumer_rules.check_config("c", result, STREAM)
        return
    with pytest.raises(ApiError) as info:
        consumer_rules.check_config("c", result, STREAM)
    assert info.value == refusal


def test_pedantic_wants_the_streams_limits_to_be_repeated() -> None:
    consumer_rules.check_pedantic(PLAIN, STREAM)
    limited = {**STREAM, "consumer_limits": {"max_ack_pending": 50, "inactive_threshold": 10 * SECOND}}
    consumer_rules.check_pedantic({**PLAIN, "max_ack_pending": 1, "inactive_threshold": 1}, limited)
    for config, key in (({}, "max_ack_pending"), ({"max_ack_pending": 20}, "inactive_threshold")):
        with pytest.raises(ApiError, match=f"{key} must be set if it's configured in stream limits"):
            consumer_rules.check_pedantic({**PLAIN, **config}, limited)


def test_what_clients_see() -> None:
    stored = filled({**TIME, "deliver_policy": "by_start_time", "metadata": {"a": "1"}})
    assert "opt_start_time_ns" in stored
    seen = consumer_rules.shown(stored)
    assert not [key for key in seen if key.endswith("_ns")]
    assert list(seen["metadata"]) == ["_nats.level", "_nats.req.level", "_nats.ver", "a"]
    assert consumer_rules.shown(stored, versions=False)["metadata"] == {"_nats.req.level": "0", "a": "1"}


def test_the_shown_pause_is_that_of_the_last_pause() -> None:
    text = "2030-01-01T02:00:00+02:00"
    created = filled({"pause_until": text, "pause_until_ns": 1_893_456_000 * SECOND})
    assert consumer_rules.shown(created)["pause_until"] == text
    moved = {**created, "pause_until_ns": 1_893_456_001 * SECOND}
    assert consumer_rules.shown(moved)["pause_until"] == "2030-01-01T00:00:01Z"
    resumed = consumer_rules.shown({**created, "pause_until_ns": 0})
    assert "pause_until" not in resumed
    assert consumer_rules.shown(moved)["metadata"]["_nats.req.level"] == "1"
    assert resumed["metadata"]["_nats.req.level"] == "0", "nats-server works it out anew at PAUSE"
    assert list(consumer_rules.shown({**filled(GROUPS), "pause_until_ns": SECOND}))[-4:] == [
        "metadata", "pause_until", "priority_groups", "priority_policy",
    ]  # fmt: skip
