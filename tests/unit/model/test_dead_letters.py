"""The wish for dead letters in a consumer's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.consumer import ConsumerConfig
from jetcluster.model.dead_letters import LetterWish, check, in_force, is_publishable, wish_of

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
        ({"dead_letter": {"subject": "_INBOX.d"}}, "begin with $ or _INBOX"),
        ({"dead_letter": {"subject": "d\x00e"}}, "literal subject"),
        ({"dead_letter": {"subject": "d.\x7f"}}, "literal subject"),
        ({"dead_letter": {"subject": "d" * 257}}, "too long, maximum allowed is 256 bytes"),
        ({"dead_letter": {"subject": "{subject}"}}, "literal first token"),
        ({"dead_letter": {"subject": "{stream}.dead"}}, "literal first token"),
        ({"dead_letter": {"subject": "d{consumer}.dead"}}, "literal first token"),
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
    assert check(wish, {"subjects": ["b.>"]}) is not None
    with pytest.raises(ApiError, match="the consumer gets"):
        check(wish, {"subjects": ["a.>"]})
    assert check(wish | {"filter_subject": "a.live"}, {"subjects": ["a.>"]}) is not None


@pytest.mark.parametrize("stream", [{"mirror": {"name": "M"}}, {"subjects": ["b.>"], "sources": [{"name": "O"}]}])
def test_what_comes_from_another_stream_is_known_by_the_filter_alone(stream: dict[str, Any]) -> None:
    wish = GOOD | {"dead_letter": {"subject": "a.dead"}}
    with pytest.raises(ApiError, match="without a filter requires a stream without mirror and sources"):
        check(wish, stream)
    assert check(wish | {"filter_subject": "a.live"}, stream) is not None


def test_a_transform_of_the_stream_brings_letters_behind_a_filter() -> None:
    wish = GOOD | {"dead_letter": {"subject": "a.dead"}, "filter_subject": "b.>"}
    stream = {"subjects": ["a.>"], "subject_transform": {"src": "a.>", "dest": "b.>"}}
    with pytest.raises(ApiError, match="the consumer gets"):
        check(wish, stream)
    assert check(wish, {**stream, "subjects": ["c.>"]}) is not None


def test_subjects_of_letters() -> None:
    wish = LetterWish(TO["subject"])
    assert wish.subject_of("S", "C", "a.b") == "dead.S.C.a.b" and wish.subject_of("S", "C", "") == "dead.S.C._"
    assert wish.pattern == "dead.*.*.>" and LetterWish("d.{stream}-{consumer}.x").pattern == "d.*.x"
    assert LetterWish("a.{subject}.b").subject_of("S", "C", "{stream}") == "a.{stream}.b"


@pytest.mark.parametrize("name", ["x{subject}", "{subject}", "{consumer}", "{stream}"])
def test_a_name_that_looks_like_a_place_is_a_name(name: str) -> None:
    wish = LetterWish("dead.{stream}")
    assert wish.subject_of(name, "C", "a.b") == wish.filter_of(name, "C") == f"dead.{name}"


@pytest.mark.parametrize(
    ("subject", "good"),
    [("d.a", True), ("d.\x01", False), ("d.*", False), ("d..a", False), ("$KV.b", False), ("_INBOX.1", False)],
)
def test_what_may_be_published_to(subject: str, good: bool) -> None:
    assert is_publishable(subject) is good


def given(wish: dict[str, Any] | None, **metadata: str) -> dict[str, Any]:
    """The configuration that a request with these fields has."""
    body = {**GOOD, "dead_letter": wish, "metadata": {META + key: value for key, value in metadata.items()}}
    return ConsumerConfig.from_fields(body).to_wire()


def test_a_request_gives_only_what_it_says() -> None:
    assert given({"On_Term": True}, subject="d")["dead_letter"] == {"on_term": True}
    assert check(given({"On_Term": True}, subject="d")) == LetterWish("d", True, True)
    assert check(given({"subject": "d"}, on_max_deliver="false", on_term="true")) == LetterWish("d", False, True)
    for wish in (None, {}, {"subject": None}):
        assert check(given(wish)) is None and check(given(wish, subject="d")) == LetterWish("d")
    with pytest.raises(ApiError, match="requires a subject"):
        check(given({"subject": ""}))


def test_a_key_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ApiError, match="dead_letter has no on_terms"):
        check(given({"subject": "d", "on_terms": True}))
    with pytest.raises(ApiError, match='json: unknown field "on_terms"'):
        ConsumerConfig.from_fields({"dead_letter": {"subject": "d", "on_terms": True}}, strict=True)
    with pytest.raises(ApiError) as refused:
        check(given({"subject": "d", "x" * 5000: 1}))
    assert len(refused.value.description) < 300
