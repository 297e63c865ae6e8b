"""Questions to a mirror's origin, and answers that are of no use."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.mirror.link import RESPONSE_SECONDS
from jetcluster.mirror.origin import ANSWER_SECONDS, MAX_WAITING, PROVING, RARE_SECONDS
from jetcluster.mirror.ports import LastSequence
from tests.unit.mirror.rig import CREATED, SOURCE, Rig, begun


def live() -> tuple[Rig, list[LastSequence | None]]:
    rig = begun()
    rig.live()
    return rig, []


def test_an_answer_is_shared_by_all_who_asked_before_it_was_asked_for() -> None:
    rig, told = live()
    before = rig.count("STREAM.INFO")
    rig.links.ask_origin(told.append)
    assert rig.count("STREAM.INFO") == before + 1 and rig.bus.headers == PROVING
    for _ in range(3):
        rig.links.ask_origin(told.append)
    assert rig.count("STREAM.INFO") == before + 1, "one at a time"
    rig.inform(5)
    assert told == [LastSequence(5, False)]
    assert rig.count("STREAM.INFO") == before + 2
    rig.inform(6, freshness={"applied_seq": 6, "last_message": 4})
    assert told == [LastSequence(5, False)] + [LastSequence(4, True)] * 3
    assert rig.count("STREAM.INFO") == before + 2, "nobody waits"


@pytest.mark.parametrize(
    "more",
    [
        {"created": "2026-01-02T03:04:05.000000007Z"},
        {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}},
        {"freshness": 5},
        {"freshness": {"applied_seq": 5}},
        {"freshness": {"applied_seq": 5, "last_message": -1}},
    ],
)
def test_an_answer_of_another_stream_or_none_is_no_answer(more: dict[str, Any]) -> None:
    rig, told = live()
    rig.links.ask_origin(told.append)
    rig.inform(5, **more)
    assert told == [None]


@pytest.mark.parametrize("last", [-1, "5", 1 << 64, True])
def test_a_sequence_that_none_can_be_is_no_answer(last: Any) -> None:
    rig, told = live()
    rig.links.ask_origin(told.append)
    rig.inform(last)
    assert told == [None]


def test_a_proof_is_of_the_sequence_that_is_told() -> None:
    rig, told = live()
    rig.links.ask_origin(told.append)
    rig.inform(7, freshness={"applied_seq": 6, "last_message": 6})
    assert told == [LastSequence(7, False)]


def test_an_empty_origin_has_nothing_that_a_copy_could_lack() -> None:
    rig, told = live()
    rig.links.ask_origin(told.append)
    state = {"created": CREATED, "state": {"last_seq": 9, "messages": 0}}
    rig.answer("STREAM.INFO", state)
    assert told == [LastSequence(0, False)]


def test_nobody_answers() -> None:
    rig, told = live()
    rig.links.ask_origin(told.append)
    rig.links.ask_origin(told.append)
    rig.run(ANSWER_SECONDS - 0.1)
    assert not told
    rig.run(0.2)
    assert told == [None], "the second is asked now"
    late = rig.asked("STREAM.INFO")[2]
    rig.run(ANSWER_SECONDS + 0.1)
    assert told == [None, None]
    assert rig.bus.arrive(late, late, b"", b"", b"{}") == 0, "nobody listens to a late answer"
    rig.bus.deaf = True
    rig.links.ask_origin(told.append)
    rig.run(0.01)
    assert told == [None] * 3, "at once when the request has no taker"


def test_those_who_wait_are_bounded_and_told_when_the_link_ends() -> None:
    rig, told = live()
    for _ in range(MAX_WAITING + 2):
        rig.links.ask_origin(told.append)
    assert told == [None], "one too many, besides the one that is asked for"
    rig.links.end()
    assert told == [None] * (MAX_WAITING + 2)
    rig.links.ask_origin(told.append)
    assert told[-1] is None and len(told) == MAX_WAITING + 3, "there is no link"


def test_an_origin_that_did_not_answer_the_link_is_asked_rarely() -> None:
    """As one whose imports, or the user of a leaf link, permit only consumers."""
    rig = begun(mirror={"name": "UP", "external": {"api": "$JS.hub.API"}})
    told: list[LastSequence | None] = []
    rig.run(RESPONSE_SECONDS + 0.1)
    rig.accept()
    rig.commit()
    assert rig.link.live
    before = rig.count("STREAM.INFO")
    for _ in range(30):
        rig.links.ask_origin(told.append)
        rig.run(1.0)
        rig.control(f"Nats-Last-Consumer: {rig.dseq}")
    assert rig.count("STREAM.INFO") - before == 3
    rig.run(RARE_SECONDS)
    rig.links.ask_origin(told.append)
    rig.inform(0)
    assert told == [None] * 30 + [LastSequence(0, False)]
    for _ in range(3):
        rig.links.ask_origin(told.append)
        rig.inform(0)
    assert told[-3:] == [LastSequence(0, False)] * 3, "it answers now"


def test_a_source_has_no_origin_to_be_asked() -> None:
    rig = begun(**SOURCE)
    told: list[LastSequence | None] = []
    rig.links.ask_origin(told.append)
    assert told == [None]
