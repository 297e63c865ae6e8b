"""Limits of an account before a stream is proposed (cluster/stream_limits.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.cluster.stream_limits import check_room, check_tier, limits_of
from jetcluster.errors import ApiError
from jetcluster.meta.machine import MetaMachine
from jetcluster.model.stream import StreamConfig

NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}


def wire(name: str, **fields: Any) -> dict[str, Any]:
    return StreamConfig(name=name, **fields).normalised().to_wire()


def machine(*streams: dict[str, Any]) -> MetaMachine:
    made = MetaMachine()
    for at, config in enumerate(streams, 1):
        peers = [f"n{number}" for number in range(config["num_replicas"])]
        command: dict[str, Any] = {
            "kind": "stream_create",
            "request": f"q{at}",
            "account": "A",
            "config": config,
            "peers": peers,
        }
        command |= {"leader": peers[0], "created": at, "limits": NO_LIMITS}
        made.apply(at, 1, json.dumps(command).encode())
    return made


def refusal(found: MetaMachine, config: dict[str, Any], **limits: int) -> int:
    try:
        check_room(found, "A", config, {**NO_LIMITS, **limits})
    except ApiError as error:
        return error.err_code
    return 0


def test_a_tiers_limits_come_before_the_accounts() -> None:
    assert limits_of({"limits": NO_LIMITS}) == NO_LIMITS
    assert limits_of({"limits": NO_LIMITS, "tier": {"max_streams": 1}}) == {"max_streams": 1}


def test_a_full_tier_takes_none_that_is_scaled_up() -> None:
    found = machine(wire("ONE"), wire("THREE", num_replicas=3))
    tier = {**NO_LIMITS, "max_streams": 1, "replicas": 3}
    body = {"account": "A", "config": wire("ONE", num_replicas=3), "limits": NO_LIMITS, "tier": tier}
    with pytest.raises(ApiError) as caught:
        check_tier(found, body)
    assert caught.value.err_code == 10027
    check_tier(found, {**body, "tier": {**tier, "max_streams": 2}})


@pytest.mark.parametrize(
    ("fields", "limits", "err_code"),
    [
        ({}, {}, 0),
        ({}, {"max_storage": 300}, 10047),
        ({}, {"max_storage": 301}, 0),
        ({"num_replicas": 3}, {"max_storage": 302}, 10047),
        ({"num_replicas": 3}, {"max_storage": 303}, 0),
        ({"storage": "memory"}, {"max_memory": 0}, 10028),
        ({"storage": "memory"}, {"max_storage": 0}, 0),
        ({"num_replicas": 3}, {"max_storage": 100, "replicas": 3}, 10047),
        ({"num_replicas": 3}, {"max_storage": 101, "replicas": 3}, 0),
        ({"max_bytes": 5}, {"max_storage": 300}, 0),  # that is for `apply`
    ],
)
def test_a_stream_that_could_store_nothing_is_refused(
    fields: dict[str, Any], limits: dict[str, int], err_code: int
) -> None:
    found = machine(wire("THERE", num_replicas=3, max_bytes=100))
    assert refusal(found, wire("NEW", **fields), **limits) == err_code
