"""The header checks of schedules, as nats-server 2.15.2 answers them."""

from __future__ import annotations

import pytest

from jetcluster.stream.cron import parse
from jetcluster.stream.schedules import shortened, without_schedule
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
