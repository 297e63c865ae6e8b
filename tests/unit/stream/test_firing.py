"""Messages that due schedules make, and entries that remain valid."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from jetcluster.protocol import headers
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.schedules import Schedules, fire, produced
from jetcluster.stream.log.commands import Firing
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import block

PLAN = ("Nats-Schedule: @every 1s", "Nats-Schedule-Target: s.t")
DUE, NEXT = 1_000, 2_000


class Plan:
    """A stream with one schedule, on `s.plan`, that is due at `DUE`."""

    def __init__(self, *fields: str) -> None:
        self.store = BlockStore(MemKv(), 1, memory=False)
        self.rules = StreamRules.from_config({"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True})
        self.store_one(b"s.plan", block(*PLAN, *fields), b"plan")
        self.due = Schedules(self.store)
        self.due.index.add(DUE, [1])

    def store_one(self, subject: bytes, headers: bytes = b"", payload: bytes = b"x") -> None:
        batch = Batch.of([subject], [headers], [payload])
        self.store.append(batch, self.store.last_seq + 1, 1)

    def fire(self, **more: object) -> Batch | None:
        fields = {"seq": 1, "due": DUE, "next_due": NEXT, "planned_only": False, "next_text": b"later", **more}
        return fire(self.store, self.rules, self.due, [Firing(**fields)])  # type: ignore[arg-type]

    def makes(self) -> dict[bytes, bytes]:
        """Header fields of the message that is made."""
        schedule = self.store.get(1)
        assert schedule is not None
        made = produced(self.store, self.rules, schedule, b"purge")
        assert made is not None and made[0] == b"s.t"
        return dict(headers.parse(made[1]))


def test_an_entry_fires_once_and_moves_on() -> None:
    plan = Plan()
    batch = plan.fire()
    assert batch is not None and batch.count == 1
    subject, found, payload = batch.message(0)
    assert (subject, payload) == (b"s.t", b"plan")
    assert dict(headers.parse(found)) == {b"Nats-Scheduler": b"s.plan", b"Nats-Schedule-Next": b"later"}
    assert plan.due.index.next_due == NEXT
    assert plan.fire() is None, "another leader proposed the same entry"
    assert plan.fire(due=NEXT, next_due=0) is not None
    assert not plan.due.index.has(NEXT, 1), "it was the last time"


def test_a_schedule_that_was_replaced_makes_nothing() -> None:
    plan = Plan()
    plan.store_one(b"s.plan")
    assert plan.fire() is None
    assert not plan.due.index.has(NEXT, 1)


def test_of_an_entry_that_is_only_planned_just_the_time_is_new() -> None:
    plan = Plan()
    assert plan.fire(planned_only=True) is None
    assert plan.due.index.has(NEXT, 1)


def test_a_sealed_stream_stays_as_it_is() -> None:
    plan = Plan()
    plan.rules = StreamRules.from_config({"name": "S", "subjects": ["s.>"], "sealed": True})
    assert plan.fire() is None and plan.due.index.has(DUE, 1)


def test_a_target_that_the_stream_does_not_take_any_more_gets_nothing() -> None:
    plan = Plan()
    plan.rules = StreamRules.from_config({"name": "S", "subjects": ["other.>"], "allow_msg_schedules": True})
    assert plan.fire() is None


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (("X: 1", "Nats-Msg-Id: m", "Nats-TTL: 9", "Nats-Expected-Stream: S"), {b"X": b"1"}),
        (("Nats-Schedule-TTL: 5", "Nats-TTL: 9"), {b"Nats-TTL": b"5"}),
        (("Nats-Schedule-Rollup: sub", "Nats-Rollup: all"), {b"Nats-Rollup": b"sub"}),
    ],
)
def test_headers_go_with_the_message_but_for_what_concerns_the_schedule(
    fields: tuple[str, ...], wanted: dict[bytes, bytes]
) -> None:
    assert Plan(*fields).makes() == wanted | {b"Nats-Scheduler": b"s.plan", b"Nats-Schedule-Next": b"purge"}


def test_the_newest_message_of_a_source_is_what_is_sent() -> None:
    plan = Plan("Nats-Schedule-Source: s.src")
    assert (batch := plan.fire()) is not None and batch.message(0)[2] == b"plan", "the source is empty"
    for payload in (b"old", b"new"):
        plan.store_one(b"s.src", block("Y: 2"), payload)
    batch = plan.fire(due=NEXT)
    assert batch is not None and batch.message(0)[2] == b"new"
    assert plan.makes()[b"Y"] == b"2"


LONG = 16_000


def test_a_long_block_is_not_read_line_by_line() -> None:
    """Each repeating schedule is fired by every replica, for ever: of 64 KB the lines that mean something are found."""
    plan = Plan("Nats-Expected-Stream: S", "Nats-Msg-Id: m", "a:", "Nats-Other:  kept ", *["a:"] * LONG)
    schedule = plan.store.get(1)
    assert schedule is not None
    calls = called(lambda: produced(plan.store, plan.rules, schedule, b"later"))
    assert calls < 200
    made = produced(plan.store, plan.rules, schedule, b"later")
    assert made is not None
    lines = made[1].split(b"\r\n")
    assert lines[:4] == [b"NATS/1.0", b"a:", b"Nats-Other:  kept ", b"a:"], "as they were"
    assert lines[-4:] == [b"Nats-Scheduler: s.plan", b"Nats-Schedule-Next: later", b"", b""]
    assert made[1].count(b"\r\na:") == LONG + 1


def called(work: Callable[[], object]) -> int:
    """Calls of Python's and C functions while `work` runs."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
