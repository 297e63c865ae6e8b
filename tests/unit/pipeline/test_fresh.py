"""Reads of every strength in a history of real servers. The rules themselves: tests/sim/cluster/test_workloads.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.pipeline.checkers import check, fresh
from jetcluster.pipeline.checkers.event import Event, load


def op(number: int, f: str, at: float, **more: object) -> Event:
    """It took a tenth of a second."""
    return Event("ok", number, "register", f, **{"client": "c", "t0": at, "t1": at + 0.1} | more)  # type: ignore[arg-type]


WRITES = [
    op(seq, "cas", float(seq), subject="r.0", msg_id=f"v{seq}", seq=seq, expect=seq - 1, client=f"w{seq}")
    for seq in (1, 2, 3)
]
STORED = [op(10 + seq, "stored", 20.0, subject="r.0", msg_id=f"v{seq}", seq=seq, replica="n1") for seq in (1, 2, 3)]


def look(seq: int, wish: str = fresh.EVENTUAL, **more: object) -> Event:
    fields = {"subject": "r.0", "seq": seq, "msg_id": f"v{seq}" if seq else "", "wish": wish}
    return op(30, "fresh", 9.0, **fields | more)


GOOD = [
    look(3, fresh.LINEARIZABLE),
    look(1),
    look(0, "eventual"),
    look(3, bound=5.0, age=2.0, applied=3),
    look(3, bound=0.05, age=0.122),  # a clock that is fast by 10 %, counted as one that is slow by as much
    look(2, expect=2),
    look(2, fresh.SESSION, client="w2"),
    replace(look(0, expect=4, applied=3), type="fail", error=fresh.BEHIND),
    replace(look(0, fresh.LINEARIZABLE), type="info"),
]
LOST = [
    replace(WRITES[2], type="info", seq=0, client="w4"),
    replace(look(0, fresh.SESSION, client="w4", applied=2), type="fail", error=fresh.BEHIND),
]
"""A write that ended without an answer, and a read of the same client: its ack may have come to the server."""
BAD = {
    "stale": look(2, fresh.LINEARIZABLE),
    "an own write": look(2, fresh.SESSION, client="w3"),
    "the token": look(2, expect=3),
    "too old": look(2, bound=5.0),
    "older than it tells": look(2, age=5.0),
    "an age beyond its wish": look(3, bound=2.0, age=2.5),
    "an age beyond what clocks explain": look(3, bound=0.05, age=0.13),
    "nothing": look(0, fresh.LINEARIZABLE),
    "another value": look(3, msg_id="v2"),
    "refused": replace(look(0, expect=3, applied=3), type="fail", error=fresh.BEHIND),
}
KINDS = {
    "another value": "wrong value",
    "an age beyond its wish": "wrong age",
    "an age beyond what clocks explain": "wrong age",
    "refused": "refused",
}


@pytest.mark.parametrize("event", GOOD)
def test_what_was_asked_for_is_enough(event: Event) -> None:
    assert check([*WRITES, event, *STORED]) == []


def test_a_write_without_an_answer_may_be_what_a_session_waits_for() -> None:
    assert check([*WRITES[:2], *LOST, *STORED]) == []
    (finding,) = check([*WRITES, LOST[1], *STORED])
    assert finding.kind == "refused"
    (finding,) = check([*WRITES[:2], LOST[0], replace(LOST[1], applied=3), *STORED])
    assert finding.kind == "refused", "it has all that the client can have been told of"


@pytest.mark.parametrize("name", BAD)
def test_less_is_found(name: str) -> None:
    (finding,) = check([*WRITES, BAD[name], *STORED])
    assert (finding.kind, finding.workload) == (KINDS.get(name, "stale"), "register")
    assert finding.text.startswith(f"{BAD[name].wish} read of r.0 by {BAD[name].client}: ")


def test_without_a_copy_that_was_read_nothing_can_be_said() -> None:
    assert check([*WRITES, BAD["stale"]]) == []


def test_what_a_read_asked_for_and_was_told_is_kept_in_a_history() -> None:
    event = look(3, bound=5.0, age=2.0, applied=3, expect=2)
    assert load([event.to_json()]) == [event]
    assert not {"wish", "bound", "applied", "age"} & set(op(1, "read", 1.0).to_json().split('"'))
