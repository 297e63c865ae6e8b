from __future__ import annotations

import pytest

from jetcluster.stream.rules import StreamRules


def test_limits_that_are_off_become_zero() -> None:
    rules = StreamRules.from_config({"name": "S", "max_msgs": -1, "max_bytes": 0, "max_age": None})
    assert (rules.max_msgs, rules.max_bytes, rules.max_age, rules.max_msgs_per_subject) == (0, 0, 0, 0)
    assert not rules.evicts
    assert (rules.num_replicas, rules.memory, rules.discard_new, rules.subjects) == (1, False, False, ())


@pytest.mark.parametrize(
    ("config", "evicts"),
    [
        ({"max_msgs": 1}, True),
        ({"max_bytes": 1}, True),
        ({"max_msgs_per_subject": 1}, True),
        ({"max_msgs": 1, "discard": "new"}, False),
        ({"max_msgs_per_subject": 1, "discard": "new"}, True),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, False),
    ],
)
def test_evicts(config: dict[str, object], evicts: bool) -> None:
    assert StreamRules.from_config(config).evicts is evicts
