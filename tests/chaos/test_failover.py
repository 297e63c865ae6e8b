"""Checkers of faults under which somebody must always be served: each broken promise is found, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from chaos.checkers import judge
from jetcluster.pipeline.checkers.event import Event
from tests.chaos.test_checkers import Script


def history(
    fault: str, gap: float = 0.1, moves: float | None = 1.5, back: bool = False, late: float = 0.0
) -> list[Event]:
    """`fault` from 10 to 16 s (or longer) on n1, which leads; the probe has no ack for `gap` seconds, the leader moves
    after `moves`; `late`: for how long of the gap this process itself stood still."""
    script = Script()
    script.history.note("queue", "leader", replica="n1")
    script.now = 10.0
    begun = script.history.invoke("disk", "fault", "nemesis", subject=fault)
    number = 0
    end = 10.0 + max(6.0, gap + 1.0)
    while script.now < end:
        number += 1
        took = gap if number == 5 else 0.1
        script.write("queue", "queue.probe", f"probe-{number}", client="probe", took=took)
        if number == 5 and late:
            script.history.note("pause", "fault", "machine", since=script.now - late, subject="late")
    script.now = end
    script.history.end(begun, "ok", replica="n1")
    events = script.history.events
    if moves is not None:
        at = 10.0 + moves
        events.append(Event("ok", 9000, "queue", "leader", "probe", replica="n2", t0=at, t1=at))
    if back:
        events.append(Event("ok", 9001, "queue", "leader", "probe", replica="n1", t0=15.0, t1=15.0))
    return events


def kinds(events: list[Event]) -> list[str]:
    return [finding.kind for finding in judge(events).findings]


@pytest.mark.parametrize("fault", ["hung-journal", "failing-store"])
def test_a_failover_within_its_time_is_fine(fault: str) -> None:
    assert kinds(history(fault, gap=3.0)) == []


@pytest.mark.parametrize("fault", ["hung-journal", "failing-store"])
def test_planted_failovers_that_do_not_come_are_found(fault: str) -> None:
    assert kinds(history(fault, gap=5.0)) == ["outage"]
    assert kinds(history(fault, moves=5.5)) == ["kept leading"]
    assert kinds(history(fault, moves=None)) == ["kept leading"]
    assert kinds(history(fault, back=True)) == ["kept leading"]


def test_a_machine_that_stood_still_is_no_outage() -> None:
    assert kinds(history("hung-journal", gap=5.0, late=2.0)) == []
    assert kinds(history("hung-journal", gap=5.5, late=0.5)) == ["outage"]


def test_other_faults_promise_no_such_thing() -> None:
    assert kinds(history("kill-leader", gap=5.0, moves=None)) == []


def test_an_ack_of_less_than_a_majority_is_found() -> None:
    script = Script()
    script.write("queue", "q", "before")
    slow = script.history.invoke("queue", "publish", "c", msg_id="on its way", seq=2)
    script.now += 1.0
    begun = script.history.invoke("files", "fault", "machine", subject="without-majority", replica="n2")
    script.now += 1.0
    script.history.end(slow, "ok")
    script.stored("queue", "", "on its way", 2)
    script.seqs["queue"] = 2
    script.now += 1.0
    assert kinds([*script.history.events]) == []
    script.write("queue", "q", "of a minority")
    script.now += 1.0
    script.history.end(begun, "ok")
    script.write("queue", "q", "after")
    found = judge(script.history.events).findings
    assert [(finding.kind, finding.text.split()[0]) for finding in found] == [("minority ack", "of")]


def test_a_flood_moves_no_leader_and_keeps_nobody_waiting_for_long() -> None:
    assert kinds(history("flood", gap=5.0, moves=None)) == []
    assert kinds(history("flood", gap=9.0, moves=None)) == ["outage"]
    assert kinds(history("flood", moves=1.0)) == ["moved leader"]
    unnamed = Event("ok", 9002, "queue", "leader", "probe", t0=11.0, t1=11.0)
    again = Event("ok", 9003, "queue", "leader", "probe", replica="n1", t0=12.0, t1=12.0)
    assert kinds([*history("flood", moves=None), unnamed, again]) == []


def test_a_server_that_ends_by_itself_is_found() -> None:
    script = Script()
    script.history.note("process", "died", replica="n2", error="Too many open files")
    assert kinds(script.history.events) == ["died"]


def test_what_follows_the_probe_is_no_outage() -> None:
    """The fault's end takes its time, and nobody publishes meanwhile."""
    events = history("no-descriptors", moves=None)
    last = max(event.t1 for event in events if event.client == "probe" and event.type == "ok")
    longer = [dataclasses.replace(e, t1=e.t1 + 15.0) if e.f == "fault" and e.type == "ok" else e for e in events]
    assert kinds(longer) == ["outage"]
    assert kinds([*longer, Event("ok", 9002, "queue", "probed", "probe", t0=10.0, t1=last)]) == []
