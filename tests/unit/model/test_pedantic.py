"""The checks of `"pedantic": true`."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.model.pedantic import check_pedantic
from jetcluster.model.stream import StreamConfig

SECOND = 1_000_000_000


def refusal(fields: dict[str, Any], limits: AccountLimits = UNLIMITED, **how: bool) -> tuple[int, str]:
    """(0, "") when it is taken as it is."""
    given = StreamConfig.from_object({"name": "P", "subjects": ["p.>"], **fields})
    try:
        check_pedantic(given, given.normalised(limits, **how), limits)
    except ApiError as error:
        return error.err_code, error.description
    return 0, ""


# Observed on nats-server 2.15.2.
@pytest.mark.parametrize(
    ("fields", "err_code", "text"),
    [
        ({"max_msgs_per_subject": -5}, 10157, "pedantic mode: max_msgs_per_subject must be set to -1"),
        ({"max_msgs": -7}, 10157, "pedantic mode: max_msgs must be set to -1"),
        ({"max_bytes": -9}, 10157, "pedantic mode: max_bytes must be set to -1"),
        ({"max_msg_size": -4}, 10157, "pedantic mode: max_msg_size must be set to -1"),
        ({"max_consumers": -3}, 10157, "pedantic mode: max_consumers must be set to -1"),
        ({"max_age": 60_000_000_000}, 10157, "pedantic mode: duplicate window cannot be bigger than max age"),
        ({"republish": {"dest": "y.>"}}, 10157, "pedantic mode: republish source can not be empty"),
        (
            {"subject_delete_marker_ttl": 2_000_000_000},
            10052,
            "subject delete marker cannot be set if message TTLs are disabled",
        ),
        (
            {"subject_delete_marker_ttl": 2_000_000_000, "allow_msg_ttl": True},
            10052,
            "subject delete marker cannot be set if roll-ups are disabled",
        ),
        ({"allow_msg_schedules": True}, 10052, "message scheduling cannot be set if roll-ups are disabled"),
        (
            {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "deny_purge": True},
            10052,
            "roll-ups require the purge permission",
        ),
        ({"max_age": 50_000_000}, 10052, "max age needs to be >= 100ms"),
        ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
        ({"max_msgs": 0, "duplicate_window": 0, "num_replicas": 0}, 0, ""),
        ({"max_age": 300_000_000_000}, 0, ""),
    ],
)
def test_what_would_be_mended_in_silence_is_refused(fields: dict[str, Any], err_code: int, text: str) -> None:
    assert refusal(fields) == (err_code, text)


def test_a_default_above_the_limit_of_the_account_is_refused() -> None:
    limits = AccountLimits(duplicate_window_max=60 * SECOND)
    told = "pedantic mode: duplicate window limits are higher than current limits"
    assert refusal({}, limits) == (10157, told)
    assert refusal({"duplicate_window": 30 * SECOND}, limits) == (0, "")


def test_direct_gets_are_not_switched_on_in_silence() -> None:
    fields = {"max_msgs_per_subject": 1}
    assert refusal(fields) == (10157, "pedantic mode: max msgs per subject requires allow direct")
    assert refusal({**fields, "allow_direct": True}) == (0, "")
    assert refusal(fields, auto_allow_direct=False) == (0, "")
