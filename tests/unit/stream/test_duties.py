from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.model.times import rfc3339
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError, KvError
from jetcluster.stream.lead.duties import SOON_NS, DueTimer, LeaderDuties
from jetcluster.stream.log import commands
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import FakeBus
from tests.unit.stream.test_machine import SECOND, Stream
from tests.unit.stream.test_schedules import scheduling


class Leader:
    """A stream whose commands are applied when the test says so."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.bus = FakeBus()
        self.log: list[bytes] = []
        self.soon: list[Callable[[], None]] = []
        self.accepting = True
        self.failures: list[Exception] = []
        self.time = ManualTime()
        self.set_back = 0
        """Nanoseconds by which the clock was set back."""
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.duties = LeaderDuties(
            stream.machine,
            self.bus,
            self,
            self.propose,
            self.soon.append,
            self.call_later,
            lambda event, error: self.failures.append(error),
        )

    def time_ns(self) -> int:
        return self.stream.now - self.set_back

    def monotonic(self) -> float:
        return self.stream.now / SECOND

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        timer = (delay, call)
        self.later.append(timer)
        return SimpleNamespace(cancel=lambda: self.later.remove(timer) if timer in self.later else None)

    def wait(self, late: int = 0) -> tuple[float, list[int]]:
        """Until the timer goes off, so many nanoseconds late: seconds, and kinds of what was applied then."""
        ((delay, call),) = self.later
        self.later.clear()
        self.stream.now += round(delay * SECOND) + late
        call()
        return delay, self.apply()

    def propose(self, command: bytes) -> bool:
        if self.accepting:
            self.log.append(command)
        return self.accepting

    def apply(self) -> list[int]:
        """Kinds of what was in the log."""
        log, self.log = self.log, []
        for command in log:
            self.stream.apply(command)
            self.duties.applied(command[0])
        return [command[0] for command in log]

    def tick(self, seconds: float) -> list[int]:
        self.stream.now += int(seconds * SECOND)
        self.duties.tick()
        return self.apply()


def test_expiry_and_schedules_are_proposed_when_due_and_once() -> None:
    stream = scheduling(allow_msg_ttl=True)
    stream.one("s.a", "Nats-TTL: 5")
    stream.one("s.x", "Nats-Schedule: @every 10s", "Nats-Schedule-Target: s.t")
    leader = Leader(stream)
    assert leader.tick(60) == []  # not the leader
    leader.duties.begin()
    leader.duties.tick()
    leader.duties.tick()
    assert leader.apply() == [commands.EXPIRE, commands.FIRE]
    assert leader.tick(0) == []
    assert leader.tick(10) == [commands.FIRE]
    leader.duties.end()
    assert leader.tick(60) == []


def test_a_ttl_ends_in_time_and_not_at_the_next_tick() -> None:
    """nats.js: a message with a TTL of 4 s is not there any more when it is asked for after 4.02 s."""
    leader = Leader(Stream(allow_msg_ttl=True))
    leader.duties.begin()
    for _ in range(2):
        leader.stream.one("a", "Nats-TTL: 5")
    leader.stream.now += SECOND // 25
    leader.stream.one("a", "Nats-TTL: 5")
    assert leader.tick(4.4) == [] and leader.later == []
    assert leader.tick(0.2) == [] and leader.tick(0) == []
    delay, kinds = leader.wait(1_000_000)
    assert 0.25 < delay < 0.4 and kinds == [commands.EXPIRE]
    assert leader.stream.seqs() == [3]
    assert leader.wait() == (0.05, [commands.EXPIRE]), "those that end soon after go together"
    assert leader.stream.seqs() == [] and leader.later == []


def test_what_is_too_old_goes_in_time_and_leaves_its_marker() -> None:
    leader = Leader(
        Stream(allow_msg_ttl=True, allow_rollup_hdrs=True, max_age=SECOND, subject_delete_marker_ttl=SECOND)
    )
    leader.duties.begin()
    stored = leader.stream.now
    leader.stream.one("a")
    leader.tick(0.7)
    assert leader.wait()[1] == [commands.EXPIRE]
    assert leader.stream.now - stored <= SECOND + 1_000_000
    assert leader.stream.seqs() == [2], "the marker"


def test_what_is_too_old_and_leaves_no_marker_goes_with_what_follows() -> None:
    leader = Leader(Stream(max_age=SECOND))
    leader.duties.begin()
    for _ in range(3):
        leader.stream.one("a")
        leader.stream.now += SECOND // 10
    leader.tick(0.5)
    assert leader.wait()[1] == [commands.EXPIRE] and leader.stream.seqs() == [2, 3]
    assert leader.wait() == (0.25, [commands.EXPIRE]) and leader.stream.seqs() == []


def test_a_pause_after_a_refusal_ends_in_time_though_the_clock_is_set_back() -> None:
    leader = Leader(Stream(max_age=SECOND))
    leader.stream.one("a")
    leader.duties.begin()
    leader.tick(3.0)
    leader.stream.one("a")
    leader.duties.refused(commands.EXPIRE)
    leader.set_back = 2 * SECOND
    assert leader.tick(4.0) == [] and leader.stream.seqs() == [2]
    assert leader.tick(1.0) == [commands.EXPIRE] and leader.stream.seqs() == []


def test_who_tells_of_publishes() -> None:
    for stream, heeds in ((Stream(), False), (scheduling(), True), (Stream(republish={"src": "a", "dest": "b"}), True)):
        leader = Leader(stream)
        assert not leader.duties.heeds_publishes
        leader.duties.begin()
        assert leader.duties.heeds_publishes is heeds
        leader.duties.end()
        assert not leader.duties.heeds_publishes


def test_a_schedule_fires_in_time_also_when_it_is_due_before_the_next_tick() -> None:
    leader = Leader(scheduling())
    leader.duties.begin()
    due = leader.stream.now + SECOND // 10
    at = rfc3339(due)
    leader.stream.one("s.x", f"Nats-Schedule: @at {at}", "Nats-Schedule-Target: s.t")
    assert leader.later == []
    leader.duties.applied(commands.PUBLISH)
    assert leader.duties.rest() < 0
    assert leader.wait()[1] == [commands.FIRE]
    assert 0 <= leader.stream.now - due <= 1_000_000
    assert leader.later == [] and leader.duties.rest() == inf


def test_an_earlier_schedule_takes_the_place_of_the_timer_and_those_at_once_fire_together() -> None:
    leader = Leader(scheduling())
    leader.duties.begin()
    for number, late in enumerate((300, 200, 203, 250)):
        at = rfc3339(leader.stream.now + late * 1_000_000)
        leader.stream.one(f"s.x{number}", f"Nats-Schedule: @at {at}", "Nats-Schedule-Target: s.t")
        leader.duties.applied(commands.PUBLISH)
        assert len(leader.later) == 1
    before = leader.stream.now
    delays = []
    while leader.later:
        assert leader.wait()[1] == [commands.FIRE]
        delays.append((leader.stream.now - before) // 1_000_000)
    assert len(delays) == 4 and delays[1] - delays[0] == 5, "a pause between two commands"


@pytest.mark.parametrize("error", [DamagedError(1, 1), KvError("input/output error")])
def test_a_schedule_that_cannot_be_read_is_reported_at_the_next_tick(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    leader = Leader(scheduling())
    leader.duties.begin()
    leader.stream.one("s.x", "Nats-Schedule: @every 10s", "Nats-Schedule-Target: s.t")
    leader.tick(9.7)

    def broken(now: int) -> bytes:
        raise error

    monkeypatch.setattr(leader.stream.machine, "fire_command", broken)
    assert leader.wait() == (pytest.approx(0.3, abs=0.01), [])
    with pytest.raises(type(error)):
        leader.tick(0.2)
    monkeypatch.undo()
    assert leader.tick(0.1) == [commands.FIRE]


def test_a_table_of_schedules_that_is_damaged_on_disk_is_damage_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows have no checksum of ours: RocksDB reports the damage while the timer runs."""
    leader = Leader(scheduling())
    leader.duties.begin()
    leader.stream.one("s.x", "Nats-Schedule: @every 10s", "Nats-Schedule-Target: s.t")
    leader.tick(9.7)

    def broken(*_: object) -> Iterator[tuple[bytes, bytes]]:
        raise KvDamagedError("block checksum mismatch")

    monkeypatch.setattr(type(leader.stream.machine.store), "side_scan", broken)
    assert leader.wait() == (pytest.approx(0.3, abs=0.01), [])
    with pytest.raises(DamagedError) as caught:
        leader.tick(0.2)
    assert isinstance(caught.value.__cause__, KvDamagedError)


def test_a_timer_that_goes_off_too_early_or_without_leadership_does_nothing_wrong() -> None:
    leader = Leader(Stream(allow_msg_ttl=True))
    leader.duties.begin()
    leader.stream.one("a", "Nats-TTL: 5")
    leader.tick(4.7)
    (_, call) = leader.later.pop()
    call()
    assert leader.log == [] and len(leader.later) == 1
    ((_, call),) = leader.later
    leader.duties.end()
    assert leader.later == []
    leader.stream.now += SECOND
    call()
    assert leader.log == [] and leader.later == []


def test_a_refused_proposal_is_made_again() -> None:
    leader = Leader(Stream(allow_msg_ttl=True))
    leader.duties.begin()
    leader.stream.one("a", "Nats-TTL: 5")
    leader.accepting = False
    assert leader.tick(6) == []
    leader.accepting = True
    assert leader.tick(0) == [commands.EXPIRE]


def test_a_new_term_forgets_what_the_old_one_had_proposed() -> None:
    leader = Leader(Stream(allow_msg_ttl=True))
    leader.stream.one("a", "Nats-TTL: 5")
    leader.duties.begin()
    leader.stream.now += 6 * SECOND
    leader.duties.tick()
    leader.log.clear()  # lost with the leadership
    leader.duties.end()
    leader.duties.begin()
    assert leader.tick(0) == [commands.EXPIRE]


def test_more_than_one_command_can_remove_goes_on_at_once() -> None:
    leader = Leader(Stream(allow_msg_ttl=True))
    leader.duties.begin()
    for _ in range(2):
        leader.stream.one("a", "Nats-TTL: 5")
        leader.stream.now += 6 * SECOND
    leader.log.append(commands.encode_expire(leader.stream.now - 6 * SECOND))  # removes the first only
    leader.apply()
    leader.duties.end()
    leader.duties.begin()
    leader.stream.one("a", "Nats-TTL: 5")
    leader.stream.now += 60 * SECOND
    leader.stream.machine.clock += 60 * SECOND
    leader.duties.applied(commands.EXPIRE)
    assert [delay for delay, _ in leader.later] == [0.0]


def test_republish_only_while_leading_and_as_configured_now() -> None:
    leader = Leader(Stream(republish={"src": ">", "dest": "r.>"}))
    leader.stream.one("a")
    leader.duties.applied(commands.PUBLISH)
    leader.duties.begin()
    leader.stream.one("b")
    assert leader.bus.sent == []
    leader.duties.applied(commands.PUBLISH)
    assert [subject for subject, _, _ in leader.bus.sent] == [b"r.b"]
    leader.stream.apply(commands.encode_update_config(0, {"name": "S", "republish": {"src": ">", "dest": "q.>"}}))
    leader.duties.config_changed()
    leader.stream.one("c")
    leader.duties.applied(commands.PUBLISH)
    leader.duties.end()
    leader.stream.one("d")
    leader.duties.applied(commands.PUBLISH)
    assert [subject for subject, _, _ in leader.bus.sent] == [b"r.b", b"q.c"]


def test_a_job_is_gone_on_with_until_it_is_done_one_piece_at_a_time() -> None:
    stream = Stream()
    stream.store.slices.step = 3
    leader = Leader(stream)
    leader.duties.begin()
    stream.publish(*[(f"a.{n}", b"", b"x") for n in range(10)], ("b", b"", b"x"))
    leader.log.append(commands.encode_purge(stream.now, b"a.*"))
    leader.apply()
    kinds = []
    while leader.soon:
        assert len(leader.soon) == 1
        leader.soon.pop()()
        assert len(leader.log) <= 1
        leader.duties.tick()
        assert len(leader.log) <= 1
        kinds += leader.apply()
    assert set(kinds) == {commands.CONTINUE} and len(kinds) > 3
    assert stream.seqs() == [11]
    assert leader.tick(1) == []


def test_a_new_leader_goes_on_with_a_job_and_a_refused_piece_is_proposed_again() -> None:
    stream = Stream()
    stream.store.slices.step = 3
    stream.publish(*[(f"a.{n}", b"", b"x") for n in range(10)], ("b", b"", b"x"))
    stream.apply(commands.encode_purge(stream.now, b"a.*"))
    leader = Leader(stream)
    assert leader.tick(0) == []
    leader.duties.begin()
    leader.accepting = False
    assert leader.tick(0) == []
    assert leader.duties.rest() == 0, "nothing else would wake an idle stream"
    leader.accepting = True
    leader.duties.tick()
    assert leader.duties.rest() == inf
    assert leader.apply() == [commands.CONTINUE]
    leader.duties.end()
    leader.soon.pop()()
    assert leader.tick(0) == []


def test_trouble_with_republishing_is_reported_and_does_not_get_into_apply() -> None:
    leader = Leader(Stream(republish={"src": ">", "dest": "r.>"}))
    leader.duties.begin()
    broken = KeyError("cache")

    def last_seq_of(subject: bytes) -> int:
        raise broken

    store = leader.stream.machine.store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "last_seq_of", last_seq_of)
        leader.stream.one("a")
    assert leader.failures == [broken]
    assert store.messages == 1
    leader.stream.one("b")
    assert leader.failures == [broken]
    assert store.messages == 2


MS = 1_000_000


class Rig:
    def __init__(self, pause: int = 0) -> None:
        self.time = ManualTime()
        self.due: int | None = None
        self.done: list[int] = []
        self.able = True
        self.timer = DueTimer(self.time, self.time.call_later, lambda: self.due, lambda: pause, self.act)

    def act(self, now: int) -> bool:
        self.done.append(now)
        self.due = None if self.able else self.due
        return self.able

    @property
    def now(self) -> int:
        return self.time.time_ns()


def test_it_acts_when_it_is_due_and_not_before() -> None:
    rig = Rig()
    rig.timer.look()
    due = rig.due = rig.now + 100 * MS
    rig.timer.look()
    rig.timer.look()
    rig.time.advance(0.099)
    assert rig.done == []
    rig.time.advance(0.002)
    assert len(rig.done) == 1 and rig.done[0] >= due
    rig.time.advance(1.0)
    assert len(rig.done) == 1


def test_what_is_far_away_is_left_to_those_who_look() -> None:
    rig = Rig()
    rig.due = rig.now + SOON_NS + MS
    rig.timer.look()
    rig.time.advance(1.0)
    assert rig.done == []
    rig.timer.look()
    assert len(rig.done) == 1


def test_what_is_due_earlier_takes_the_timer_over() -> None:
    rig = Rig()
    for late in (300, 200, 400):
        rig.due = rig.now + late * MS
        rig.timer.arm()
    rig.due = rig.now + 200 * MS
    rig.time.advance(0.201)
    assert len(rig.done) == 1


def test_between_two_times_there_is_a_pause_unless_there_is_a_hurry() -> None:
    rig = Rig(pause=50 * MS)
    rig.due = rig.now
    rig.timer.look()
    rig.due = rig.now
    rig.timer.look()
    assert len(rig.done) == 1
    rig.time.advance(0.051)
    assert len(rig.done) == 2
    rig.due = rig.now
    rig.timer.hurry()
    rig.timer.look()
    assert len(rig.done) == 3


def test_what_could_not_be_done_is_tried_again_without_a_pause() -> None:
    rig = Rig(pause=50 * MS)
    rig.able = False
    rig.due = rig.now
    rig.timer.look()
    rig.able = True
    rig.timer.look()
    assert len(rig.done) == 2


def test_a_timer_may_be_armed_for_what_is_due_and_cancelled() -> None:
    rig = Rig()
    rig.due = rig.now
    rig.timer.arm()
    assert rig.done == []
    rig.timer.cancel()
    rig.time.advance(0.1)
    assert rig.done == []
    rig.timer.arm()
    rig.time.advance(0.001)
    assert len(rig.done) == 1


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    rig = Rig(pause=50 * MS)
    rig.due = rig.now
    rig.timer.look()
    rig.time.set_time_ns(rig.now - 3600 * 10**9)
    rig.due = rig.now
    rig.timer.look()
    assert len(rig.done) == 2
