"""The search for letters that are stored already, question by question."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from jetcluster.consumer.owner.letter_search import CLOCK_SLACK_NS, LetterSearch, SearchError
from jetcluster.protocol.bus import Origin
from testkit.twins.bus import MemBus

T = 1_700_000_000_000_000_000
NONE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


class Asked:
    """A search, and the questions that it put to the bus."""

    def __init__(self) -> None:
        self.bus = MemBus()
        self.bus.subscribe(b"$JS.API.>", self.take)
        self.questions: list[tuple[str, dict[str, Any]]] = []
        self.search = LetterSearch(self.bus, lambda: b"in.%d" % len(self.questions), "dead.>", T, {b"a", b"b"})

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.questions.append((subject.decode().removeprefix("$JS.API."), json.loads(payload or b"{}")))

    def answer(self, answer: object) -> Any:
        return self.search.receive(b"", json.dumps(answer).encode())


def message(seq: int, letter: str) -> dict[str, Any]:
    block = f"NATS/1.0\r\nNats-Msg-Id: {letter}\r\n\r\n" if letter else ""
    return {"message": {"seq": seq, "hdrs": base64.b64encode(block.encode()).decode()}}


def test_all_streams_that_take_the_subjects_are_looked_through() -> None:
    asked = Asked()
    asked.search.begin()
    assert asked.answer({"streams": ["D", "E"], "total": 2}) is None
    assert asked.answer({"config": {"duplicate_window": 7}}) is None
    assert asked.answer(message(5, "a")) is None
    assert asked.answer(message(9, "other")) is None
    assert asked.answer(message(11, "")) is None
    assert asked.answer(NONE) is None
    assert asked.answer({"config": {"duplicate_window": 3, "subject_transform": {"src": "dead.>"}}}) is None
    assert asked.answer(NONE) == ({b"a"}, 3)
    since = "2023-11-14T22:12:20Z"
    assert CLOCK_SLACK_NS == 60 * 10**9
    assert asked.questions == [
        ("STREAM.NAMES", {"subject": "dead.>"}),
        ("STREAM.INFO.D", {}),
        ("STREAM.MSG.GET.D", {"start_time": since, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 6, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 10, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 12, "next_by_subj": "dead.>"}),
        ("STREAM.INFO.E", {}),
        ("STREAM.MSG.GET.E", {"start_time": since, "next_by_subj": ">"}),
    ]


def test_no_stream_has_none() -> None:
    asked = Asked()
    asked.search.begin()
    assert asked.answer({"streams": None, "total": 0}) == (set(), 0)


@pytest.mark.parametrize(
    "answers",
    [
        [{"error": {"err_code": 10039, "description": "no"}}],
        [{"streams": ["D"], "total": 2000}],
        [{}],
        [[]],
        [5],
        [{"streams": ["D"], "total": 1}, {"error": {"description": "stream not found"}}],
        [{"streams": ["D"], "total": 1}, {"config": {}}, {"error": {"err_code": 10008}}],
        [{"streams": ["D"], "total": 1}, {"config": {}}, {"message": {"seq": "x"}}],
        [{"streams": ["D"], "total": 1}, {"config": {}}, {"message": {"seq": 1, "hdrs": 5}}],
    ],
)
def test_any_other_answer_is_none(answers: list[Any]) -> None:
    asked = Asked()
    asked.search.begin()
    *before, last = answers
    for answer in before:
        assert asked.answer(answer) is None
    with pytest.raises(SearchError):
        asked.answer(last)


def test_nobody_who_answers() -> None:
    with pytest.raises(SearchError, match="nobody"):
        LetterSearch(MemBus(), lambda: b"in", "dead.>", T, ()).begin()
    asked = Asked()
    asked.search.begin()
    with pytest.raises(SearchError, match="nobody"):
        asked.search.receive(b"NATS/1.0 503\r\n\r\n", b"")
    with pytest.raises(SearchError, match="search"):
        asked.search.receive(b"", b"no JSON")
