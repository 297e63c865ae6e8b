"""Order per key in a consumer's configuration, and what it goes with."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model import consumer_rules
from jetcluster.model.order_per_key import KeyWish, check, in_force, wish_of

PLAIN = {"ack_policy": "explicit"}
ONE = {"max_ack_pending_per_subject": 1}


@pytest.mark.parametrize(
    ("given", "wish"),
    [
        ({}, None),
        ({"max_ack_pending_per_subject": 0}, None),
        (ONE, KeyWish(1)),
        ({**ONE, "key": "subject"}, KeyWish(1)),
        ({"max_ack_pending_per_subject": 20, "key": "token:2"}, KeyWish(20, token=2)),
        ({**ONE, "key": "header:Order-Id"}, KeyWish(1, header=b"Order-Id")),
        ({"metadata": {"jetcluster.max_ack_pending_per_subject": "3"}}, KeyWish(3)),
        ({"metadata": {"jetcluster.max_ack_pending_per_subject": "0"}}, None),
        ({"metadata": {"jetcluster.max_ack_pending_per_subject": "1", "jetcluster.key": "token:64"}}, KeyWish(1, 64)),
        ({**ONE, "metadata": {"jetcluster.max_ack_pending_per_subject": "1"}}, KeyWish(1)),
    ],
)
def test_a_wish_is_a_field_or_metadata(given: dict[str, Any], wish: KeyWish | None) -> None:
    assert wish_of(given) == check({**PLAIN, **given}) == in_force({**PLAIN, **given}) == wish


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_ack_pending_per_subject": -1}, "from 1 to"),
        ({"max_ack_pending_per_subject": 1 << 40}, "from 1 to"),
        ({"key": "subject"}, "key requires max_ack_pending_per_subject"),
        ({"metadata": {"jetcluster.key": "token:1"}}, "key requires"),
        ({"metadata": {"jetcluster.max_ack_pending_per_subject": "one"}}, "must be a number"),
        ({"metadata": {"jetcluster.max_ack_pending_per_subject": "-1"}}, "must be a number"),
        ({**ONE, "metadata": {"jetcluster.max_ack_pending_per_subject": "2"}}, "differs from"),
        ({**ONE, "key": "token:0"}, "key must be"),
        ({**ONE, "key": "token:65"}, "key must be"),
        ({**ONE, "key": "header:"}, "key must be"),
        ({**ONE, "key": "header:a b"}, "key must be"),
        ({**ONE, "key": "header:a:b"}, "key must be"),
        ({**ONE, "key": "header:" + "x" * 129}, "key must be"),
        ({**ONE, "key": "tokens"}, "key must be"),
        ({**ONE, "deliver_subject": "d"}, "requires a pull consumer"),
        ({**ONE, "ack_policy": "none"}, "requires ack policy explicit"),
        ({**ONE, "ack_policy": "all"}, "requires ack policy explicit"),
        ({**ONE, "replay_policy": "original"}, "requires replay policy instant"),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_in_force(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        check({**PLAIN, **given})
    assert in_force({**PLAIN, **given}) is None


def test_the_checks_of_a_consumer_include_it_and_its_answer_shows_it() -> None:
    stream = {"name": "S", "subjects": ["s.>"], "retention": "limits", "num_replicas": 1, "consumer_limits": {}}
    wire = {"deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant", **ONE, "key": "token:2"}
    config = consumer_rules.with_defaults(wire, stream)
    consumer_rules.check_config("C", config, stream)
    shown = consumer_rules.shown(config)
    assert (shown["max_ack_pending_per_subject"], shown["key"]) == (1, "token:2")
    with pytest.raises(ApiError, match="explicit"):
        consumer_rules.check_config("C", {**config, "ack_policy": "all"}, stream)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("jetcluster.max_ack_pending_per_subject", True),
        ("jetcluster.key", True),
        ("jetcluster.dead_letter.subject", True),
        ("jetcluster.archive", True),
        ("owner", True),
        ("jetcluster.max_ack_pendng_per_subject", False),
        ("jetcluster.keys", False),
        ("jetcluster.retention_guard", False),
    ],
)
def test_a_misspelled_name_in_a_request_is_refused(name: str, known: bool) -> None:
    if known:
        consumer_rules.check_metadata({"metadata": {name: "1"}})
        return
    with pytest.raises(ApiError, match=f"metadata of consumers has no {name}") as raised:
        consumer_rules.check_metadata({"metadata": {name: "1"}})
    assert raised.value.err_code == 10052
    in_force({**PLAIN, "metadata": {name: "1"}})  # a stored one goes on
