"""The checker of what depends on the time: each planted fault of it is found, and nothing else."""

from __future__ import annotations

import pytest

from chaos.checkers import judge
from chaos.checkers.times import BOUND, MAX_AGE
from jetcluster.pipeline.checkers.event import Event
from tests.chaos.test_checkers import Script

LIFE = 3000
"""Milliseconds."""


def look(script: Script, at: float, value: str, there: bool) -> None:
    script.now = at
    script.op("times", "look", msg_id=value, seq=1, count=int(there))


def clean() -> Script:
    script = Script()
    script.op("times", "put", msg_id="a", seq=1, count=LIFE)
    script.op("times", "schedule", msg_id="s", seq=2, count=LIFE)
    script.now = 1.0
    script.op("times", "put", msg_id="a", seq=1, count=LIFE)
    look(script, 2.0, "a", True)
    look(script, 2.1, "s", False)
    look(script, 3.5, "a", True)
    look(script, 3.6, "s", False)
    look(script, 10.0, "a", False)
    look(script, 10.1, "s", True)
    return script


def kinds(events: list[Event]) -> list[str]:
    return [finding.kind for finding in judge(events).findings]


def test_a_schedule_is_not_missed_once_what_it_fired_is_gone_by_its_age() -> None:
    """A look that met no leader is made again, on a busy machine much later."""
    for at, expected in ((LIFE / 1000 + BOUND + 1.5, ["not fired"]), (LIFE / 1000 + MAX_AGE + 0.5, [])):
        script = Script()
        script.op("times", "schedule", msg_id="s", seq=2, count=LIFE)
        look(script, at, "s", False)
        assert kinds(script.history.events) == expected, at


def test_what_comes_and_goes_in_time_is_fine() -> None:
    assert kinds(clean().history.events) == []


@pytest.mark.parametrize(
    ("at", "value", "there", "kind"),
    [
        (1.5, "a", False, "expired"),
        (9.5, "a", True, "kept"),
        (1.5, "s", True, "fired early"),
        (9.5, "s", False, "not fired"),
    ],
)
def test_planted_faults_of_time_are_found(at: float, value: str, there: bool, kind: str) -> None:
    script = clean()
    look(script, at, value, there)
    assert kinds(script.history.events) == [kind]


def test_an_id_that_is_stored_again_is_found() -> None:
    script = clean()
    script.op("times", "put", msg_id="a", seq=3, count=LIFE)
    assert kinds(script.history.events) == ["duplicated"]


@pytest.mark.parametrize(("kind", "excused"), [("process", True), ("clock", False)])
def test_without_a_leader_nothing_expires(kind: str, excused: bool) -> None:
    script = clean()
    begun = script.history.invoke(kind, "fault", "nemesis", subject="x")
    look(script, 10.6, "a", True)
    look(script, 10.7, "s", False)
    script.history.end(begun, "ok")
    assert kinds(script.history.events) == ([] if excused else ["kept", "not fired"])


def test_a_refused_look_says_nothing() -> None:
    script = clean()
    script.now = 9.5
    script.op("times", "look", kind="fail", msg_id="a", seq=1, count=1)
    assert kinds(script.history.events) == []
