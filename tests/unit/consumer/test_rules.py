"""A consumer's configuration as its parts work with it."""

from __future__ import annotations

import pytest

from jetcluster.consumer.state.rules import ConsumerRules


@pytest.mark.parametrize(("deliveries", "wait"), [(1, 10), (2, 20), (3, 30), (9, 30)])
def test_a_backoff_replaces_the_ack_wait_and_its_last_step_repeats(deliveries: int, wait: int) -> None:
    assert ConsumerRules("C", {"ack_wait": 5, "backoff": [10, 20, 30]}).wait_after(deliveries) == wait
    assert ConsumerRules("C", {"ack_wait": 5}).wait_after(deliveries) == 5


@pytest.mark.parametrize(
    ("config", "filters", "filtered"),
    [
        ({}, (b">",), False),
        ({"filter_subject": "a.*"}, (b"a.*",), True),
        ({"filter_subjects": ["a", "b"]}, (b"a", b"b"), True),
        ({"filter_subject": "", "filter_subjects": []}, (b">",), False),
    ],
)
def test_a_consumer_without_filters_wants_everything(
    config: dict[str, object], filters: tuple[bytes, ...], filtered: bool
) -> None:
    rules = ConsumerRules("C", config)
    assert (rules.filters, rules.filtered) == (filters, filtered)


def test_null_and_absent_are_the_default() -> None:
    keys = (
        "ack_wait",
        "max_deliver",
        "max_ack_pending",
        "backoff",
        "sample_freq",
        "deliver_subject",
        "priority_groups",
    )
    absent, null = ConsumerRules("C", {}), ConsumerRules("C", dict.fromkeys(keys))
    for name in ConsumerRules.__slots__:
        if name != "config":
            assert getattr(absent, name) == getattr(null, name), name
    assert absent.acks and not absent.push and absent.max_deliver == 0
    assert ConsumerRules("C", {"max_deliver": -1, "ack_policy": "none"}).max_deliver == 0
    assert not ConsumerRules("C", {"ack_policy": "none"}).acks
    assert ConsumerRules("C", {"sample_freq": "30%"}).sample == 30
