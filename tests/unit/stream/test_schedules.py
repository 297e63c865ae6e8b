"""The header checks of schedules, as nats-server 2.15.2 answers them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from jetcluster.protocol import headers
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.cron import parse
from jetcluster.stream.apply.schedules import Schedules, fire, produced, shortened, without_schedule
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import Firing
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import Stream

FAR = "Nats-Schedule: @at 2099-01-01T00:00:00Z"
TARGET = "Nats-Schedule-Target: s.t"


def scheduling(**config: object) -> Stream:
    config = {"allow_msg_schedules": True, "allow_rollup_hdrs": True, **config}
    return Stream(subjects=["s.>"], **config)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ([FAR, TARGET], None),
        (["Nats-Schedule: @every 1s", TARGET], None),
        (["Nats-Schedule: 0 0 0 1 1 *", TARGET], None),
        (["Nats-Schedule: @daily", TARGET, "Nats-Schedule-Time-Zone: Europe/Berlin"], None),
        (["Nats-Schedule: @daily", TARGET, "Nats-Schedule-Time-Zone: Local"], None),
        (["Nats-Schedule: junk", TARGET], 10189),
        (["Nats-Schedule: 0 0 0 30 2 *", TARGET], 10189),
        ([FAR, TARGET, "Nats-Schedule-Time-Zone: UTC"], 10189),
        (["Nats-Schedule: @daily", TARGET, "Nats-Schedule-Time-Zone: junk"], 10223),
        (["Nats-Schedule: @daily", TARGET, "Nats-Schedule-Time-Zone: europe/berlin"], 10223),
        (["Nats-Schedule: @daily", TARGET, "Nats-Schedule-Time-Zone:"], 10223),
        (["Nats-Schedule-Time-Zone: junk"], 10223),
        ([FAR], 10190),
        ([FAR, "Nats-Schedule-Target: s.x"], 10190),
        ([FAR, "Nats-Schedule-Target: s.*"], 10190),
        ([FAR, "Nats-Schedule-Target: zz"], 10190),
        ([FAR, TARGET, "Nats-Schedule-Source: s.src"], None),
        ([FAR, TARGET, "Nats-Schedule-Source: s.t"], 10203),
        ([FAR, TARGET, "Nats-Schedule-Source: s.x"], 10203),
        ([FAR, TARGET, "Nats-Schedule-Source: s.*"], 10203),
        ([FAR, TARGET, "Nats-Schedule-Source: zz"], 10203),
        ([FAR, TARGET, "Nats-Schedule-TTL: x"], 10191),
        ([FAR, TARGET, "Nats-Schedule-TTL: 5"], 10166),
        ([FAR, TARGET, "Nats-Schedule-Rollup: sub"], None),
        ([FAR, TARGET, "Nats-Schedule-Rollup: all"], 10192),
        ([FAR, TARGET, "Nats-Rollup: all"], 10192),
        ([FAR, TARGET, "Nats-Rollup: SUB"], None),
        ([FAR, TARGET, "Nats-Schedule-Next: purge"], 10212),
        ([FAR, TARGET, "Nats-Scheduler: s.y"], 10212),
        (["Nats-Scheduler: s.y"], 10212),
        (["Nats-Schedule-Next: purge"], 10212),
        (["Nats-Schedule-Next: 2099-01-01T00:00:00Z", "Nats-Scheduler: s.y"], 10212),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.x"], 10212),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.*"], 10212),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.none"], None),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.plain"], 10212),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.plan"], None),
    ],
)
def test_checks(fields: list[str], code: int | None) -> None:
    stream = scheduling()
    stream.one("s.plain")
    stream.one("s.plan", FAR, TARGET)
    verdict = stream.one("s.x", *fields)
    assert (verdict[0] if isinstance(verdict, tuple) else None) == code
    assert (3 in stream.seqs()) is (code is None)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ([FAR, TARGET], 10188),
        (["Nats-Schedule: junk"], 10188),
        (["Nats-Schedule-Time-Zone: junk"], 10188),
        (["Nats-Schedule-Next: purge", "Nats-Scheduler: s.y"], 10188),
        (["Nats-Scheduler: s.y"], 10212),
    ],
)
def test_on_another_stream(fields: list[str], code: int) -> None:
    verdict = scheduling(allow_msg_schedules=False).one("s.x", *fields)
    assert isinstance(verdict, tuple) and verdict[0] == code


def test_a_schedule_replaces_the_one_before_it() -> None:
    stream = scheduling()
    stream.one("s.x", FAR, TARGET)
    stream.one("s.x", FAR, TARGET, "Nats-Rollup: sub")
    assert stream.seqs() == [2]
    stream.one("s.x", FAR, TARGET)
    assert stream.seqs() == [3]
    assert stream.store.rows[3].headers == block(FAR, TARGET, "Nats-Rollup: sub")


def test_a_client_may_purge_a_schedule() -> None:
    stream = scheduling()
    stream.one("s.x", FAR, TARGET)
    stream.one("s.y", "Nats-Schedule-Next: purge", "Nats-Scheduler: s.x")
    assert stream.seqs() == [2]


def test_ttl_of_what_it_makes_needs_a_stream_with_ttls() -> None:
    stream = scheduling(allow_msg_ttl=True)
    assert stream.one("s.x", FAR, TARGET, "Nats-Schedule-TTL: 5m") == 1


@pytest.mark.parametrize(
    "fields",
    [
        [FAR, TARGET],
        [FAR, TARGET, FAR],
        ["Nats-Schedule-Next: purge", "Nats-Scheduler: s.plan"],
        ["Nats-Schedule-Time-Zone: UTC"],
        ["Nats-Schedule: ", TARGET],
    ],
)
def test_what_comes_from_another_account_schedules_nothing(fields: list[str]) -> None:
    stream = scheduling()
    stream.one("s.plan", FAR, TARGET)
    left = without_schedule(block(*fields)).decode().split("\r\n")[1:-2]
    verdict = stream.one("s.x", *left)
    assert isinstance(verdict, tuple) and verdict[0] == 10212
    assert stream.seqs() == [1]
    for kept in ([], ["A: 1", "Nats-Msg-Id: 7"], [TARGET]):
        assert without_schedule(block(*kept)) == block(*kept)


def test_a_pattern_of_great_length_is_refused_without_being_read() -> None:
    long = block("A: b", "Nats-Schedule: 0 " + "0," * 5000 + "1 2 * * *", "Nats-Schedule-Target: s.t")
    short = shortened(long)
    assert short == block("A: b", "Nats-Schedule: too long", "Nats-Schedule-Target: s.t")
    assert parse(b"too long", None) is None
    usual = block("Nats-Schedule: " + "0," * 100 + "0 1 2 * * *")
    assert shortened(usual) == usual


# Messages that due schedules make, and entries that remain valid.


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


def test_a_schedule_that_is_about_to_be_stored_outlives_the_sweep_of_deleted_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is noted before it is stored: a sweep that asks the store for it would forget when it is due."""
    monkeypatch.setattr("jetcluster.stream.apply.due_index.SWEEP_SLACK", 2)
    stream = scheduling()
    for number in range(20):
        stream.one(f"s.{number}", FAR, TARGET)
    stream.apply(commands.encode_purge(stream.now, b">"))
    stream.one("s.due", "Nats-Schedule: @every 3s", TARGET)
    due = stream.machine.next_schedule
    assert due is not None and due <= stream.machine.clock + 4 * 10**9
