"""The wish for dead letters in a consumer's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.dead_letters import LetterWish, check, in_force, wish_of

GOOD = {"ack_policy": "explicit", "max_deliver": 3}
TO = {"subject": "dead.{stream}.{consumer}.{subject}"}
META = "jetcluster.dead_letter."


@pytest.mark.parametrize(
    ("config", "wish"),
    [
        ({}, None),
        ({"metadata": {"jetcluster.dead": "x"}}, None),
        ({"dead_letter": None}, None),
        ({"dead_letter": TO}, LetterWish(TO["subject"])),
        ({"dead_letter": {"subject": "d", "on_term": True}}, LetterWish("d", True, True)),
        ({"metadata": {META + "subject": "d"}}, LetterWish("d")),
        (
            {"metadata": {META + "subject": "d", META + "on_term": "true", META + "on_max_deliver": "false"}},
            LetterWish("d", False, True),
        ),
        ({"dead_letter": {"subject": "d"}, "metadata": {META + "subject": "d"}}, LetterWish("d")),
    ],
)
def test_both_ways_mean_the_same(config: dict[str, Any], wish: LetterWish | None) -> None:
    assert wish_of(config) == wish
    assert check(GOOD | config) == in_force(GOOD | config) == wish


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"dead_letter": {"on_term": True}}, "requires a subject"),
        ({"metadata": {META + "on_term": "true"}}, "requires a subject"),
        ({"dead_letter": {"subject": "d", "x": 1}}, "has no x"),
        ({"metadata": {META + "subject": "d", META + "on": "true"}}, "has no on"),
        ({"metadata": {META + "subject": "d", META + "on_term": "yes"}}, "true or false"),
        ({"dead_letter": {"subject": "d"}, "metadata": {META + "subject": "e"}}, "differs"),
        ({"dead_letter": {"subject": 5}}, "must have a subject"),
        ({"dead_letter": {"subject": "d", "on_term": 1}}, "true or false"),
        ({"dead_letter": [1]}, "must be an object"),
        ({"dead_letter": TO, "ack_policy": "none"}, "ack policy"),
        ({"dead_letter": TO, "ack_policy": "flow_control"}, "ack policy"),
        ({"dead_letter": {**TO, "on_max_deliver": False}}, "requires on_max_deliver or on_term"),
        ({"dead_letter": TO, "max_deliver": -1}, "requires max_deliver"),
        ({"dead_letter": TO, "max_deliver": None}, "requires max_deliver"),
        ({"dead_letter": {"subject": "d.*"}}, "literal subject"),
        ({"dead_letter": {"subject": "d..e"}}, "literal subject"),
        ({"dead_letter": {"subject": "d.{time}"}}, "literal subject"),
        ({"dead_letter": {"subject": "d e"}}, "literal subject"),
        ({"dead_letter": {"subject": "$SYS.d"}}, "begin with $"),
        ({"dead_letter": {"subject": "d.x{subject}"}}, "token of its own"),
        ({"dead_letter": {"subject": "d"}, "filter_subject": "d"}, "the consumer gets"),
        ({"dead_letter": TO, "filter_subjects": ["a", "dead.>"]}, "the consumer gets"),
        ({"dead_letter": {"subject": "d.{consumer}"}, "filter_subject": "d.x"}, "the consumer gets"),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text.replace("$", r"\$")):
        check(GOOD | config)
    assert in_force(GOOD | config) is None


def test_an_unfiltered_consumer_gets_what_its_stream_takes() -> None:
    wish = GOOD | {"dead_letter": {"subject": "a.dead"}}
    assert check(wish, ["b.>"]) is not None
    with pytest.raises(ApiError, match="the consumer gets"):
        check(wish, ["a.>"])
    assert check(wish | {"filter_subject": "a.live"}, ["a.>"]) is not None


def test_subjects_of_letters() -> None:
    wish = LetterWish(TO["subject"])
    assert wish.subject_of("S", "C", "a.b") == "dead.S.C.a.b" and wish.subject_of("S", "C", "") == "dead.S.C._"
    assert wish.pattern == "dead.*.*.>" and LetterWish("d.{stream}-{consumer}.x").pattern == "d.*.x"
    assert LetterWish("a.{subject}.b").subject_of("S", "C", "{stream}") == "a.{stream}.b"
