from __future__ import annotations

import time
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.limits import AccountLimits
from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import (
    check_config,
    check_create,
    merge_update,
)

SECOND = 1_000_000_000
MEMORY = {"storage": "memory"}


def wire(**fields: Any) -> dict[str, Any]:
    return StreamConfig.from_object({"name": "S", **fields}).normalised().to_wire()


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        config = wire(**fields)
        check_create(config)
        check_config(config)
    return caught.value


# 10052 texts; most were compared with nats-server 2.15.2 as well.
BAD_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
    ({"name": "a.b"}, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
    ({"name": "a b"}, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
    ({"name": "n" * 256}, "stream name is too long, maximum allowed is 255"),
    ({"description": "d" * 4097}, "stream description is too long, maximum allowed is 4096"),
    ({"metadata": {"k": "v" * 131072}}, "stream metadata exceeds maximum size of 131072 bytes"),
    ({"num_replicas": 6}, "maximum replicas is 5"),
    ({"max_age": -1}, "max age can not be negative"),
    ({"max_age": 10}, "max age needs to be >= 100ms"),
    ({"duplicate_window": -20}, "duplicates window can not be negative"),
    ({"duplicate_window": 20}, "duplicates window needs to be >= 100ms"),
    (
        {"max_age": SECOND, "duplicate_window": 2 * SECOND},
        "duplicates window can not be larger then max age",
    ),
    ({"deny_purge": True, "allow_rollup_hdrs": True}, "roll-ups require the purge permission"),
    ({"discard_new_per_subject": True}, "discard new per subject requires discard new policy to be set"),
    (
        {"discard_new_per_subject": True, "discard": "new"},
        "discard new per subject requires max msgs per subject > 0",
    ),
    ({"subject_delete_marker_ttl": 5}, "subject delete marker TTL must be at least 1 second"),
    ({"subject_delete_marker_ttl": -5}, "subject delete marker TTL must not be negative"),
    ({"persist_mode": "async", **MEMORY}, "async persist mode is only supported on file storage"),
    ({"persist_mode": "async", "num_replicas": 3}, "async persist mode is not supported on replicated streams"),
    (
        {"persist_mode": "async", "allow_atomic": True},
        "async persist mode is not supported with atomic batch publish",
    ),
    ({"allow_msg_counter": True, "discard": "new"}, "counter stream cannot use discard new"),
    # Of two faults the one that nats-server names.
    (
        {"allow_msg_counter": True, "discard": "new", "discard_new_per_subject": True},
        "counter stream cannot use discard new",
    ),
    (
        {"discard": "new", "discard_new_per_subject": True, "subject_delete_marker_ttl": 5},
        "discard new per subject requires max msgs per subject > 0",
    ),
    ({"allow_msg_counter": True, "allow_msg_ttl": True}, "counter stream cannot use message TTLs"),
    ({"allow_msg_counter": True, "allow_msg_schedules": True}, "counter stream cannot use message schedules"),
    ({"allow_msg_counter": True, "retention": "interest"}, "counter stream can only use limits retention"),
    ({"allow_msg_schedules": True, "discard": "new"}, "message scheduling cannot use discard new"),
    ({"subjects": ["a..b"]}, "invalid subject"),
    ({"subjects": [""]}, "invalid subject"),
    ({"subjects": ["a b"]}, "invalid subject"),
    ({"subjects": [">.a"]}, "invalid subject"),
    ({"subjects": ["a", "a"]}, 'subject "a" overlaps with "a"'),
    ({"subjects": ["a.*", "a.b"]}, 'subject "a.*" overlaps with "a.b"'),
    ({"subjects": ["x", "a.b", "a.>"]}, 'subject "a.b" overlaps with "a.>"'),
    ({"subjects": [">"]}, "capturing all subjects requires no-ack to be true"),
    ({"subjects": [">"], "no_ack": True, "num_replicas": 3}, "capturing all subjects requires replicas of 1"),
    ({"subjects": ["$JS.API.x"]}, "subjects that overlap with jetstream api require no-ack to be true"),
    ({"subjects": ["*.>"]}, "subjects that overlap with jetstream api require no-ack to be true"),
    ({"subjects": ["$JS.>"]}, "subjects that overlap with jetstream api require no-ack to be true"),
    ({"subjects": ["$SYS.x"]}, "subjects that overlap with system api require no-ack to be true"),
    ({"placement": {"preferred": "x"}}, "preferred server not permitted in placement"),
    ({"sealed": True}, "stream configuration for create can not be sealed"),
    ({"mirror_direct": True}, "stream has no mirror but does have mirror direct"),
]


@pytest.mark.parametrize(("fields", "text"), BAD_CONFIGS)
def test_bad_configurations(fields: dict[str, Any], text: str) -> None:
    error = refusal(**fields)
    assert (error.code, error.err_code, error.description) == (500, 10052, text)


@pytest.mark.parametrize(
    ("fields", "code", "err_code"),
    [
        ({"name": "a/b"}, 400, 10128),
        ({"name": "a\\b"}, 400, 10128),
        ({"num_replicas": -1}, 400, 10133),
    ],
)
def test_refusals_with_their_own_code(fields: dict[str, Any], code: int, err_code: int) -> None:
    error = refusal(**fields)
    assert (error.code, error.err_code) == (code, err_code)


def test_a_first_sequence_leaves_room_for_messages() -> None:
    for seq in (1 << 63, (1 << 64) - 1):
        assert refusal(first_seq=seq).err_code == 10052


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "Ünï-c_0"},
        {"num_replicas": 5},
        {"subjects": ["a.*", "b.>", "c.*.d"]},
        {"subjects": ["$JS.EVENT.ADVISORY.>"]},
        {"subjects": ["$SYS.ACCOUNT.X.>"]},
        {"subjects": [">"], "no_ack": True},
        {"subjects": ["$KV.b.>"], "max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True},
        {"max_age": 100_000_000},
        {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"retention": "workqueue", "compression": "s2", **MEMORY},
        {"placement": {"cluster": "C", "tags": ["a"]}},
        {"first_seq": (1 << 63) - 1},
        {"allow_msg_counter": True, "sources": [{"name": "U"}], "max_msgs_per_subject": 1},
        {"first_seq": 100, "description": "x", "metadata": {"a": "b"}, "consumer_limits": {"max_ack_pending": 5}},
    ],
)
def test_good_configurations(fields: dict[str, Any]) -> None:
    config = wire(**fields)
    check_create(config)
    check_config(config)


@pytest.mark.parametrize(
    ("limits", "fields", "err_code"),
    [
        (AccountLimits(max_bytes_required=True), {}, 10113),
        (AccountLimits(storage_max_stream_bytes=10), {"max_bytes": 11}, 10122),
        (AccountLimits(memory_max_stream_bytes=10), {"max_bytes": 11, **MEMORY}, 10122),
        (AccountLimits(max_consumers=1), {"max_consumers": 2}, 10026),
        (AccountLimits(duplicate_window_max=60 * SECOND), {"duplicate_window": 61 * SECOND}, 10052),
    ],
)
def test_account_limits(limits: AccountLimits, fields: dict[str, Any], err_code: int) -> None:
    with pytest.raises(ApiError) as caught:
        check_config(wire(**fields), limits)
    assert caught.value.err_code == err_code
    if err_code == 10052:
        assert caught.value.description == "duplicates window can not be larger then server limit of 1m0s"


def test_no_number_of_consumers_is_any_number() -> None:
    """As in nats-server, where 0 in a configuration limits nothing."""
    check_config(wire(max_consumers=5), AccountLimits(max_consumers=0))


UPDATE = "stream configuration update can not "


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({}, {"name": "T"}, "stream configuration name must match original"),
        ({}, MEMORY, UPDATE + "change storage type"),
        ({}, {"retention": "workqueue"}, UPDATE + "change retention policy to/from workqueue"),
        ({"retention": "workqueue"}, {}, UPDATE + "change retention policy to/from workqueue"),
        ({"sealed": True}, {}, UPDATE + "unseal a sealed stream"),
        ({"deny_delete": True}, {}, UPDATE + "cancel deny message deletes"),
        ({"deny_purge": True}, {}, UPDATE + "cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
        ({}, {"allow_msg_counter": True}, UPDATE + "change message counter setting"),
        ({"allow_msg_schedules": True}, {}, "message schedules can not be disabled"),
        ({"persist_mode": "async"}, {}, UPDATE + "change persist mode"),
    ],
)
def test_refused_updates(old: dict[str, Any], new: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as caught:
        merge_update(wire(**old), wire(**new))
    assert (caught.value.err_code, caught.value.description) == (10052, text)


@pytest.mark.parametrize(
    ("old", "new", "err_code"),
    [
        ({}, {"mirror": {"name": "U"}}, 10055),
        ({"mirror": {"name": "U"}}, {"mirror": {"name": "V"}}, 10055),
        ({}, {"num_replicas": 3, "placement": {"tags": ["x"]}}, 10123),
    ],
)
def test_refused_updates_with_their_own_code(old: dict[str, Any], new: dict[str, Any], err_code: int) -> None:
    with pytest.raises(ApiError) as caught:
        merge_update(wire(**old), wire(**new))
    assert caught.value.err_code == err_code


def test_an_update_replaces_everything_but_first_seq() -> None:
    old = wire(first_seq=7, max_msgs=5, description="old", subjects=["a"])
    merged = merge_update(old, wire(first_seq=9))
    assert merged == {**wire(), "first_seq": 7}
    assert "first_seq" not in merge_update(wire(), wire(first_seq=9))


def test_sealing_forbids_what_would_change_the_stream() -> None:
    merged = merge_update(wire(allow_rollup_hdrs=True), wire(sealed=True, max_age=SECOND, allow_rollup_hdrs=True))
    shown = {key: merged[key] for key in ("max_age", "discard", "deny_delete", "deny_purge", "allow_rollup_hdrs")}
    assert shown == {
        "max_age": 0,
        "discard": "new",
        "deny_delete": True,
        "deny_purge": True,
        "allow_rollup_hdrs": False,
    }


def test_a_mirror_can_be_promoted() -> None:
    assert merge_update(wire(mirror={"name": "U"}), wire())["subjects"] == ["S"]


def test_as_many_subjects_as_allowed_are_checked_quickly_and_the_first_pair_is_named() -> None:
    listed = [f"m.a{i}.x.z" for i in range(5000)] + [f"m.*.y.{i}" for i in range(4999)]
    config = StreamConfig.from_object({"name": "S", "subjects": listed}).normalised().to_wire()
    begun = time.process_time()
    check_config(config)
    with pytest.raises(ApiError, match=r'subject "m.a0.x.z" overlaps with "m.a0\.\*.z"'):
        check_config({**config, "subjects": [*listed, "m.a0.*.z"]})
    assert time.process_time() - begun < 2.0


def test_subjects_with_wildcards_at_very_many_places_are_refused() -> None:
    places = [".".join("*" if i >> bit & 1 else f"x{i}" for bit in range(8)) for i in range(200)]
    config = StreamConfig.from_object({"name": "S", "subjects": places}).normalised().to_wire()
    with pytest.raises(ApiError, match="too many places"):
        check_config(config)
    check_config({**config, "subjects": [f"{i}.*.b" for i in range(500)]})
