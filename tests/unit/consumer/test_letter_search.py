"""The search for letters that are stored already, question by question."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from jetcluster.consumer.owner.letter_search import CLOCK_SLACK_NS, LetterSearch, SearchError, SearchMemory
from jetcluster.protocol.bus import Origin
from testkit.twins.bus import MemBus

T = 1_700_000_000_000_000_000
NONE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


SINCE = "2023-11-14T22:12:20Z"


class Asked:
    """A search, and the questions that it put to the bus."""

    def __init__(self, memory: SearchMemory | None = None, since: int = T, *wanted: bytes) -> None:
        self.bus = MemBus()
        self.bus.subscribe(b"$JS.API.>", self.take)
        self.questions: list[tuple[str, dict[str, Any]]] = []
        self.memory = memory or SearchMemory()
        self.search = LetterSearch(
            self.bus, lambda: b"in.%d" % len(self.questions), self.memory, "dead.>", since, set(wanted) or {b"a", b"b"}
        )
        self.search.begin()

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        body = json.loads(payload or b"{}")
        self.prefixes = body.pop("msg_id_prefixes", None)
        self.questions.append((subject.decode().removeprefix("$JS.API."), body))

    def answer(self, answer: object) -> Any:
        return self.search.receive(b"", json.dumps(answer).encode())


def names(*streams: str) -> dict[str, Any]:
    return {"streams": list(streams) or None, "total": len(streams)}


def info(last: int, created: str = "then", **config: Any) -> dict[str, Any]:
    return {"config": config, "created": created, "state": {"last_seq": last}}


def message(seq: int, letter: str) -> dict[str, Any]:
    block = f"NATS/1.0\r\nNats-Msg-Id: {letter}\r\n\r\n" if letter else ""
    return {"message": {"seq": seq, "hdrs": base64.b64encode(block.encode()).decode()}}


def looked(searched: int, *letters: str) -> dict[str, Any]:
    return {"msg_ids": {"searched": searched, "found": letters}}


def test_all_streams_that_take_the_subjects_are_looked_through() -> None:
    asked = Asked()
    assert asked.answer(names("D", "E")) is None
    assert asked.answer(info(20, duplicate_window=7)) is None
    assert asked.answer(message(5, "a")) is None
    assert asked.answer(message(9, "other")) is None
    assert asked.search.at == "searching D: at 9 of 20"
    assert asked.answer(message(11, "")) is None
    assert asked.answer(NONE) is None
    assert asked.answer(info(20, duplicate_window=3, subject_transform={"src": "dead.>"})) is None
    assert asked.answer(NONE) == ({b"a"}, 3)
    assert CLOCK_SLACK_NS == 60 * 10**9
    assert asked.questions == [
        ("STREAM.NAMES", {"subject": "dead.>"}),
        ("STREAM.INFO.D", {}),
        ("STREAM.MSG.GET.D", {"start_time": SINCE, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 6, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 10, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 12, "next_by_subj": "dead.>"}),
        ("STREAM.INFO.E", {}),
        ("STREAM.MSG.GET.E", {"start_time": SINCE, "next_by_subj": ">"}),
    ]


def test_what_is_stored_meanwhile_is_not_looked_through() -> None:
    asked = Asked()
    asked.answer(names("D"))
    asked.answer(info(5))
    assert asked.answer(message(6, "x")) == (set(), 0)


def test_ids_are_looked_for_up_to_what_the_stream_has() -> None:
    asked = Asked(None, T, b"dl:b\xff", b"dl:a")
    asked.answer(names("D"))
    asked.answer(info(100))
    assert asked.answer(looked(60, "dl:a", "dl:ab")) is None
    assert asked.search.at == "searching D: at 60 of 100"
    assert asked.answer(looked(120, "dl:b\udcff")) == ({b"dl:a", b"dl:b\xff"}, 0)
    assert asked.questions[2:] == [
        ("STREAM.MSG.GET.D", {"start_time": SINCE, "next_by_subj": "dead.>"}),
        ("STREAM.MSG.GET.D", {"seq": 61, "next_by_subj": "dead.>"}),
    ]
    assert asked.prefixes == ["dl:a", "dl:b\udcff"]


def test_of_very_many_ids_what_they_begin_with_is_looked_for() -> None:
    asked = Asked(None, T, *[b"dl:S:C:%d" % number for number in range(1000, 1513)])
    asked.answer(names("D"))
    asked.answer(info(100))
    assert asked.prefixes == ["dl:S:C:1"]
    assert asked.answer(looked(100, "dl:S:C:1", "dl:S:C:1001")) == ({b"dl:S:C:1001"}, 0)


def test_a_strict_server_that_does_not_know_the_field_is_asked_for_each_message() -> None:
    asked = Asked()
    asked.answer(names("D"))
    asked.answer(info(9))
    refusal = {"error": {"err_code": 10025, "description": 'json: unknown field "msg_id_prefixes"'}}
    assert asked.answer(refusal) is None
    assert asked.prefixes is None and asked.questions[-1][0] == "STREAM.MSG.GET.D"
    assert asked.answer(message(9, "b")) == ({b"b"}, 0)
    asked = Asked()
    asked.answer(names("D"))
    asked.answer(info(9))
    asked.answer(refusal)
    with pytest.raises(SearchError, match="unknown field"):
        asked.answer(refusal)


def test_an_answer_about_nothing_new_ends_the_search() -> None:
    asked = Asked()
    asked.answer(names("D"))
    asked.answer(info(100))
    assert asked.answer(looked(60)) is None
    with pytest.raises(SearchError, match="nothing new in D"):
        asked.answer(looked(60))


def broken_off() -> Asked:
    asked = Asked()
    asked.answer(names("D"))
    asked.answer(info(20))
    asked.answer(message(5, "a"))
    return asked


def next_question(asked: Asked, created: str = "then") -> dict[str, Any]:
    asked.answer(names("D"))
    asked.answer(info(20, created))
    return asked.questions[-1][1]


def test_a_search_that_is_broken_off_is_continued() -> None:
    again = Asked(broken_off().memory, T + 5, b"a", b"b")
    assert next_question(again) == {"seq": 6, "next_by_subj": "dead.>"}
    assert again.answer(message(20, "b")) == ({b"a", b"b"}, 0)
    fewer = Asked(again.memory, T, b"b")
    fewer.answer(names("D"))
    assert fewer.answer(info(20)) == ({b"b"}, 0), "all is known"


def test_it_is_begun_anew_where_progress_says_nothing() -> None:
    whole = {"start_time": SINCE, "next_by_subj": "dead.>"}
    assert next_question(Asked(broken_off().memory, T, b"a", b"new")) == whole
    assert next_question(Asked(broken_off().memory, T), "made again") == whole
    assert next_question(Asked(broken_off().memory, T - 1))["start_time"] < SINCE
    memory = broken_off().memory
    memory.confirmed("other.>", b'{"stream":"D","seq":1}')
    assert next_question(Asked(memory, T)) == whole


def test_a_stream_without_deduplication_gives_the_shortest_window() -> None:
    for windows in ([0, 120], [120, 0], [None, 120], [120, None]):
        asked = Asked()
        asked.answer(names("D", "E"))
        asked.answer(info(0, duplicate_window=windows[0]))
        assert asked.answer(info(0, duplicate_window=windows[1])) == (set(), 0), windows


def test_where_no_stream_is_seen_none_is_absent() -> None:
    with pytest.raises(SearchError, match="cannot see whether a stream elsewhere has them"):
        Asked().answer(names())


def confirmed(puback: str, before: SearchMemory | None = None) -> Asked:
    memory = before or SearchMemory()
    memory.confirmed("dead.>", puback.encode())
    return Asked(memory)


def test_the_stream_that_confirms_must_be_seen() -> None:
    with pytest.raises(SearchError, match="whether stream D, not one here"):
        confirmed('{"stream":"D","seq":1}').answer(names("E"))
    asked = confirmed('{"stream":"D","seq":1,"domain":"hub"}')
    assert asked.answer(names("D")) is None
    assert asked.questions[-1] == ("INFO", {})
    with pytest.raises(SearchError, match="stream D of domain hub"):
        asked.answer({"domain": "leaf"})
    asked = confirmed('{"stream":"D","seq":1,"domain":"hub"}')
    asked.answer(names("D"))
    assert asked.answer({"domain": "hub"}) is None
    assert asked.questions[-1] == ("STREAM.INFO.D", {})


def test_a_stream_that_was_seen_and_takes_them_no_longer_is_looked_through_as_well() -> None:
    memory = confirmed('{"stream":"D","seq":1}').memory
    asked = Asked(memory)
    asked.answer(names("D"))
    assert asked.answer(info(0)) == (set(), 0)
    asked = Asked(memory)
    asked.answer(names("E"))
    asked.answer(info(20))
    assert asked.questions[-1] == ("STREAM.MSG.GET.D", {"seq": 1, "next_by_subj": ">"})
    assert asked.answer(message(20, "a")) is None
    assert asked.answer(info(0)) == ({b"a"}, 0)
    deleted = Asked(memory)
    deleted.answer(names("E"))
    assert deleted.answer({"error": {"err_code": 10059, "description": "stream not found"}}) is None
    assert deleted.questions[-1] == ("STREAM.INFO.E", {})


@pytest.mark.parametrize(
    "answers",
    [
        [{"error": {"err_code": 10039, "description": "no"}}],
        [{"streams": ["D"], "total": 2000}],
        [{}],
        [[]],
        [5],
        [names("D"), {"error": {"description": "stream not found"}}],
        [names("D"), {"error": {"err_code": 10059, "description": "stream not found"}}],
        [names("D"), {"config": {}}],
        [names("D"), info(9), {"error": {"err_code": 10008}}],
        [names("D"), info(9), {"message": {"seq": "x"}}],
        [names("D"), info(9), {"message": {"seq": 1, "hdrs": 5}}],
        [names("D"), info(9), {"msg_ids": {"searched": 5}}],
        [names("D"), info(9), {"msg_ids": {"searched": 5, "found": None}}],
    ],
)
def test_any_other_answer_is_none(answers: list[Any]) -> None:
    asked = Asked()
    *before, last = answers
    for answer in before:
        assert asked.answer(answer) is None
    with pytest.raises(SearchError):
        asked.answer(last)


def test_nobody_who_answers() -> None:
    with pytest.raises(SearchError, match="nobody"):
        LetterSearch(MemBus(), lambda: b"in", SearchMemory(), "dead.>", T, ()).begin()
    asked = Asked()
    with pytest.raises(SearchError, match="nobody"):
        asked.search.receive(b"NATS/1.0 503\r\n\r\n", b"")
    asked = Asked()
    with pytest.raises(SearchError, match="search"):
        asked.search.receive(b"", b"no JSON")
