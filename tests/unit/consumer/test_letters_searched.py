"""Dead letters that may be stored already: the owner looks through the target before it sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.protocol.bus import Origin
from tests.unit.consumer.rig import SECOND
from tests.unit.consumer.test_owner_letters import API, Target, given_up, rig


@pytest.mark.parametrize("old", [False, True])
def test_a_new_owner_looks_first_and_sends_none_twice(old: bool) -> None:
    """The stream has forgotten the ids meanwhile."""
    r = rig()
    target = Target(r)
    target.old = old
    target.silent = True
    given_up(r, 2)
    r.hold = True
    r.lose()
    target.silent = False
    assert len(r.state.letters) == 2 and target.seqs == [1, 2]
    r.time.advance(1000)
    r.hold = False
    r.crash()
    target.again()
    r.publish(b"s.z")
    r.advance(20)
    assert target.seqs == [1, 2] and not r.state.letters
    assert API + b"STREAM.MSG.GET.DEAD" in target.asked


def test_a_new_owner_sends_what_is_not_there() -> None:
    r = rig()
    target = Target(r)
    target.deaf = True
    given_up(r, 2)
    target.deaf = False
    r.time.advance(1000)
    r.crash()
    target.again()
    r.publish(b"s.z")
    r.advance(20)
    assert sorted(target.seqs) == [1, 2] and not r.state.letters


def test_a_search_without_an_answer_is_begun_again_and_nothing_is_sent_before() -> None:
    r = rig()
    target = Target(r)
    target.silent = True
    given_up(r)
    r.time.advance(1000)
    r.crash()
    target.again()
    r.publish(b"s.z")
    tries = target.tries
    r.advance(100)
    assert target.tries == tries and r.state.letters and "search" in r.owner.letters.last_error
    target.silent = False
    r.advance(40)
    assert target.seqs == [1] and not r.state.letters


def test_one_that_may_be_where_nobody_can_look_waits() -> None:
    """A target of another account stores the letter; it has forgotten its id when a new owner would send it again."""
    r = rig()
    target = Target(r)
    target.silent = target.hidden = True
    given_up(r)
    target.silent = False
    r.time.advance(1000)
    r.crash()
    target.again()
    r.publish(b"s.z")
    r.advance(600)
    assert target.seqs == [1] and 1 in r.state.letters
    assert r.owner.letters.last_error == (
        "cannot see whether a stream elsewhere has them: none here takes their subjects"
    )
    given_up(r, 3)
    r.advance(60)
    assert target.seqs[0] == 1 and len(target.seqs) == 4 and list(r.state.letters.by_seq) == [1], "the others go out"
    target.hidden = False
    r.advance(60)
    assert len(target.seqs) == 4 and not r.state.letters


def test_the_stream_that_confirmed_others_must_be_among_those_looked_through() -> None:
    """Another one here takes the subjects as well, and has no letters."""
    r = rig()
    target = Target(r)
    given_up(r)
    assert target.seqs == [1]
    target.silent = True
    given_up(r)
    target.silent = False

    def other(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        answer: dict[str, Any] = {"streams": ["OTHER"], "total": 1}
        if subject.endswith(b"INFO.OTHER"):
            answer = {"config": {"duplicate_window": 7}, "created": "then", "state": {"last_seq": 0}}
        r.bus.publish(reply, json.dumps(answer).encode())

    target.gone()
    for asked in (b"STREAM.NAMES", b"STREAM.INFO.OTHER"):
        r.bus.subscribe(API + asked, other)
    taker = r.bus.subscribe(b"dead.>", target.publish)
    r.advance(600)
    assert target.seqs == [1, 2] and len(r.state.letters) == 1 and "stream DEAD, not" in r.owner.letters.last_error
    r.bus.unsubscribe(taker)


def test_a_window_that_an_update_made_shorter_is_heard_of() -> None:
    r = rig(ack_wait=SECOND)
    target = Target(r)
    target.silent = True
    given_up(r)
    target.silent = False
    r.advance(40)  # a search: the window is long
    assert target.seqs == [1] and not r.state.letters
    target.window = SECOND // 10
    r.advance(70)
    target.silent = True
    given_up(r)
    target.silent = False
    r.advance(60)
    assert target.seqs == [1, 2] and not r.state.letters


def test_people_are_told_of_a_search() -> None:
    r = rig()
    target = Target(r)
    target.silent = True
    given_up(r)
    r.advance(4.5)
    assert r.owner.letters.trouble == r.owner.letters.last_error == "no stream answers"
    r.advance(1)
    assert r.owner.letters.trouble == "searching"


def test_a_target_that_forgets_ids_at_once() -> None:
    r = rig()
    target = Target(r, window=0.1)
    target.silent = True
    given_up(r)
    target.silent = False
    r.crash()
    target.again()
    r.publish(b"s.z")
    r.advance(30)
    assert target.seqs == [1] and not r.state.letters
