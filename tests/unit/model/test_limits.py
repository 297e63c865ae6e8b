"""Limits of an account, with tiers and without."""

from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.limits import NO_LIMITS, UNLIMITED, AccountLimits, tier_replicas


@pytest.mark.parametrize(
    ("name", "replicas"), [("R1", 1), ("R3", 3), ("R10", 10), ("R0", 0), ("R", 0), ("r3", 0), ("R100", 0), ("R3 ", 0)]
)
def test_the_name_of_a_tier_says_its_replicas(name: str, replicas: int) -> None:
    assert tier_replicas(name) == replicas


def test_without_tiers_all_streams_have_the_same_limits() -> None:
    limits = AccountLimits(max_streams=3)
    assert limits.of(1) is limits.of(3) is limits.tier(5) is limits


def test_a_stream_of_no_tier_may_not_be() -> None:
    three = AccountLimits(max_streams=2, replicas=3)
    limits = AccountLimits(max_streams=9, tiers={"R3": three})
    assert limits.of(3) is limits.tier(3) is three
    assert limits.of(1) is limits
    with pytest.raises(ApiError) as raised:
        limits.tier(1)
    assert raised.value.err_code == NO_LIMITS


def test_a_strict_client_sees_only_what_nats_server_tells() -> None:
    limits = AccountLimits(duplicate_window_max=7, max_request_batch=5)
    assert "duplicate_window_max" not in limits.to_wire()
    assert limits.to_wire(duplicate_window_max=True) == limits.to_wire() | {"duplicate_window_max": 7}
    assert "max_request_batch" not in limits.to_wire()
    assert set(UNLIMITED.to_wire().values()) == {-1, False}
