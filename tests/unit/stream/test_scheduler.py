"""Schedules that fire: the leader's command (`scheduler`) and what it does (`firing`), together."""

from __future__ import annotations

from datetime import tzinfo
from zoneinfo import ZoneInfo

import pytest

from jetcluster.stream.apply import scheduler
from jetcluster.stream.apply.scheduler import Scheduler, system_zone
from jetcluster.stream.apply.schedules import Schedules
from jetcluster.stream.log import commands
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import SECOND, Stream
from tests.unit.stream.test_schedules import scheduling

IN_10 = "Nats-Schedule: @at 2023-11-14T22:13:30Z"
TARGET = "Nats-Schedule-Target: s.t"


def tick(stream: Stream, seconds: float) -> int:
    """Moves the clock and lets the leader propose; how many messages were produced."""
    stream.now += int(seconds * SECOND)
    command = stream.machine.fire_command(stream.now)
    if command is None:
        return 0
    made = stream.apply(command)
    assert isinstance(made, int)
    return made


def stored(stream: Stream, subject: str) -> list[tuple[int, bytes, bytes]]:
    rows = sorted(stream.store.rows.values())
    return [(m.seq, m.headers, m.payload) for m in rows if m.subject == subject.encode()]


@pytest.fixture
def stream() -> Stream:
    return scheduling()


def test_at_fires_once_and_takes_the_schedule_away(stream: Stream) -> None:
    stream.one(
        "s.x",
        "User: u",
        IN_10,
        TARGET,
        "Nats-Msg-Id: m",
        "Nats-Expected-Stream: S",
        "Nats-Rollup: sub",
        payload=b"body",
    )
    assert tick(stream, 9.9) == 0
    stream.restart()
    assert tick(stream, 0.1) == 1
    made = block("User: u", "Nats-Scheduler: s.x", "Nats-Schedule-Next: purge")
    assert stored(stream, "s.t") == [(2, made, b"body")] and stored(stream, "s.x") == []
    assert tick(stream, 100) == 0


def test_two_leaders_fire_it_once(stream: Stream) -> None:
    stream.one("s.x", "Nats-Schedule: @every 10s", TARGET)
    stream.now += 10 * SECOND
    command = stream.machine.fire_command(stream.now)
    assert command is not None
    assert stream.apply(command) == 1 and stream.apply(command) == 0


def test_every_repeats_and_makes_up_once_for_what_was_missed(stream: Stream) -> None:
    stream.one("s.x", "Nats-Schedule: @every 10s", TARGET, "Nats-Schedule-Rollup: sub")
    assert tick(stream, 10.2) == 1 and tick(stream, 9) == 0 and tick(stream, 1) == 1
    assert stored(stream, "s.t") == [
        (3, block("Nats-Scheduler: s.x", "Nats-Schedule-Next: 2023-11-14T22:13:50Z", "Nats-Rollup: sub"), b"x")
    ]
    assert tick(stream, 100) == 1 and tick(stream, 0) == 0
    assert b"Nats-Schedule-Next: 2023-11-14T22:15:30Z\r\n" in stored(stream, "s.t")[0][1]
    assert tick(stream, 10) == 1


def test_cron_in_a_zone_is_planned_by_the_leader_first(stream: Stream) -> None:
    stream.one("s.x", "Nats-Schedule: 0 30 9 * * *", TARGET, "Nats-Schedule-Time-Zone: Asia/Kolkata")
    assert tick(stream, 0) == 0 and stored(stream, "s.t") == []  # 22:13:20 UTC is 03:43:20 there
    assert stream.machine.fire_command(stream.now + 1000 * SECOND) is None
    stream.restart()
    assert tick(stream, 5 * 3600 + 46 * 60 + 39) == 0
    assert tick(stream, 1) == 1
    made = block("Nats-Scheduler: s.x", "Nats-Schedule-Next: 2023-11-16T09:30:00+05:30")
    assert stored(stream, "s.t") == [(2, made, b"x")]


def test_a_zone_that_this_machine_does_not_know_is_taken_as_utc(stream: Stream) -> None:
    stream.one("s.x", "Nats-Schedule: 0 30 9 * * *", TARGET, "Nats-Schedule-Time-Zone: Asia/Kolkata")

    def find(name: str) -> tzinfo:
        raise LookupError(name)

    leader = Scheduler(stream.store, Schedules(stream.store), find)
    command = leader.command(stream.now)
    assert command is not None and leader.unknown_zones == {"Asia/Kolkata"}
    decoded = commands.decode(command)
    assert isinstance(decoded, commands.Fire)
    assert [(f.planned_only, f.next_text) for f in decoded.firings] == [(True, b"2023-11-15T09:30:00Z")]


def test_system_zone() -> None:
    assert system_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    with pytest.raises((LookupError, ValueError)):
        system_zone("No/Where")


def test_a_source_gives_body_and_headers_if_it_has_any() -> None:
    stream = scheduling(allow_msg_ttl=True)
    fields = (IN_10, TARGET, "Nats-Schedule-Source: s.src", "Nats-Schedule-TTL: 5m", "Own: 1")
    stream.one("s.x", *fields, payload=b"own")
    stream.one("s.y", *fields, payload=b"own")
    stream.one("s.src", "From: src", "Nats-Scheduler-X: dropped", payload=b"there")
    assert tick(stream, 10) == 2
    tail = ("Nats-Schedule-Next: purge", "Nats-TTL: 5m")
    assert [headers for _, headers, _ in stored(stream, "s.t")] == [
        block("From: src", f"Nats-Scheduler: s.{name}", *tail) for name in "xy"
    ]
    assert {payload for _, _, payload in stored(stream, "s.t")} == {b"there"}
    other = scheduling(allow_msg_ttl=True)
    other.one("s.x", *fields, payload=b"own")
    tick(other, 10)
    assert stored(other, "s.t") == [(2, block("Own: 1", "Nats-Scheduler: s.x", *tail), b"own")]
    other.now += 300 * SECOND
    assert other.apply(commands.encode_expire(other.now + SECOND)) == 1  # the TTL counts


def test_superseded_deleted_and_homeless_schedules_do_not_fire(stream: Stream) -> None:
    stream.one("s.gone", IN_10, TARGET)
    stream.one("s.gone")
    stream.one("s.del", IN_10, TARGET)
    stream.apply(commands.encode_delete_msg(stream.now, 3))
    stream.one("s.x", IN_10, TARGET)
    stream.one("s.x", "Nats-Schedule: @at 2023-11-14T22:13:40Z", TARGET)
    stream.one("s.o", IN_10, "Nats-Schedule-Target: s.out.there")
    stream.apply(commands.encode_update_config(0, {**stream.machine.config, "subjects": ["s.*"]}))
    assert tick(stream, 15) == 0 and tick(stream, 0) == 0
    assert tick(stream, 10) == 1


def test_the_past_fires_at_once(stream: Stream) -> None:
    stream.one("s.x", "Nats-Schedule: @at 2001-01-01T00:00:00Z", TARGET)
    assert tick(stream, 0) == 1


def test_a_sealed_stream_fires_nothing_and_forgets_nothing(stream: Stream) -> None:
    stream.one("s.x", IN_10, TARGET)
    stream.now += 20 * SECOND
    command = stream.machine.fire_command(stream.now)
    stream.apply(commands.encode_update_config(0, {**stream.machine.config, "sealed": True}))
    assert command is not None and stream.apply(command) == 0
    assert stream.machine.fire_command(stream.now) is None
    stream.apply(commands.encode_update_config(0, {**stream.machine.config, "sealed": False}))
    assert stream.machine.fire_command(stream.now) == command and stream.apply(command) == 1


def test_only_so_many_and_so_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_FIRINGS", 3)
    stream = scheduling()
    for n in range(5):
        stream.one(f"s.{n}", IN_10, f"Nats-Schedule-Target: s.t{n}")
    assert [tick(stream, 10 * (n == 0)) for n in range(3)] == [3, 2, 0]
    monkeypatch.setattr(scheduler, "MAX_WORK_MICROSECONDS", 5)
    for n in range(3):
        stream.one(f"s.{n}", IN_10, f"Nats-Schedule-Target: s.t{n}", payload=b"x" * 200)
    assert [tick(stream, 0) for _ in range(4)] == [1, 1, 1, 0]


def _fired(stream: Stream, seconds: float) -> int:
    """Schedules in the next command."""
    command = stream.machine.fire_command(stream.now + int(seconds * SECOND))
    assert command is not None
    fire = commands.decode(command)
    assert isinstance(fire, commands.Fire)
    return len(fire.firings)


def test_a_command_is_bounded_by_what_it_costs() -> None:
    few = scheduling()
    for number in range(1000):
        few.one(f"s.x{number}", "Nats-Schedule: @every 1s", TARGET)
    assert _fired(few, 2) == scheduler.MAX_FIRINGS
    fields = scheduling()
    for number in range(20):
        fields.one(f"s.x{number}", "Nats-Schedule: @every 1s", TARGET, *["Nats-X: y"] * 5000)
    assert _fired(fields, 2) == 2, "some milliseconds each"
    large = scheduling()
    for number in range(20):
        large.one(f"s.x{number}", "Nats-Schedule: @every 1s", TARGET, payload=bytes(900_000))
    assert 2 <= _fired(large, 2) <= 8


def test_times_in_zones_cost_more_unless_the_pattern_is_known(stream: Stream) -> None:
    for number in range(300):
        pattern = f"Nats-Schedule: {number % 60} {number // 60} 2 14 3 *"
        stream.one(f"s.x{number}", pattern, TARGET, "Nats-Schedule-Time-Zone: America/New_York")
    assert _fired(stream, 1) < 60
    same = scheduling()
    for number in range(600):
        same.one(f"s.x{number}", "Nats-Schedule: 0 30 2 14 3 *", TARGET, "Nats-Schedule-Time-Zone: America/New_York")
    assert _fired(same, 1) == scheduler.MAX_FIRINGS


def test_a_remembered_answer_is_that_of_the_pattern(stream: Stream) -> None:
    """The answer is that of `Pattern.next_after`, whatever was asked before."""
    stream.one("s.x", "Nats-Schedule: 0 */10 * * * *", TARGET)
    stream.one("s.y", "Nats-Schedule: 0 */10 * * * *", TARGET)
    texts = []
    for seconds in (600, 1, 599, 3000):
        tick(stream, seconds)
        texts += [headers for _, headers, _ in stored(stream, "s.t")][-2:]
    assert [text.count(b"Nats-Schedule-Next: 2023") for text in texts] == [1] * len(texts)
    last = texts[-1].split(b"Nats-Schedule-Next: ")[1][:20]
    assert last > texts[0].split(b"Nats-Schedule-Next: ")[1][:20]


def test_what_is_made_keeps_to_the_bytes_of_a_stream_that_discards_new_messages() -> None:
    """It replaces the oldest message of its subject only where that has as many bytes, as what clients publish does."""
    for size, fits in ((300, False), (20, True)):
        stream = scheduling(max_bytes=700, max_msgs_per_subject=1, discard="new")
        stream.one("s.t", payload=b"x" * 260)
        stream.one("s.x", IN_10, TARGET, payload=b"y" * size)
        tick(stream, 11)
        assert [len(payload) for _, _, payload in stored(stream, "s.t")] == [size if fits else 260]
        assert stream.store.byte_count <= 700
