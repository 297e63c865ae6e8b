"""Pins of the journal: their owners, duration and size, and the work that goes on beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jetcluster.raft.config import JournalOptions, RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.peer_progress import FlowState
from jetcluster.raft.journal.journal_state import PinLimits
from jetcluster.raft.journal.log import GroupLog, JournalDamageError
from jetcluster.raft.membership import Config
from testkit.twins.journal import JournalDisk
from tests.unit.raft.journal_rig import Rig, content, fill, filled
from tests.unit.raft.loopback import Loopback, Recorder, led

SCALED = JournalOptions(
    segment_bytes=32 << 10, retain_bytes=8 << 10, retain_entries=64, node_retain_bytes=64 << 10, reserve_bytes=0
)
"""The default limits divided by 1,000."""
CONFIG = RaftConfig(pin_seconds=0.12, pin_bytes=256 << 10, offer_retry=0.02, stall=0.05)


class Transfer:
    """C is behind the log of A, which is written without pause; a transfer of the state to C takes `seconds`."""

    def __init__(self, seconds: float, options: JournalOptions = SCALED) -> None:
        self.net = Loopback("ABC", options, CONFIG)
        self.seconds = seconds
        self.rounds = 0
        self.busy = False
        self.alive = True
        self.leader = self.net.start(leader="A")
        self.net["C"].machine().on_snapshot_needed = self._needed  # type: ignore[method-assign]
        self._load()
        self._flush()
        self.net.run(0.3)
        self.net.isolate("C")
        self.net.run(1.0)
        assert self.leader.log.base_index > self.net["C"].group().last_index
        self.net.connect_all()

    def _needed(self, leader: str, index: int, term: int) -> None:
        if self.busy or leader != "A":
            return
        self.busy = True
        self.rounds += 1
        at = self.leader.machine_index
        self.net["C"].group().suspend()
        self.leader.fetches("C", at)
        self.net.time.call_later(self.seconds, self._end, at, self.leader.log.term_at(at), self.leader.members_at(at))

    def _end(self, at: int, term: int, members: Config) -> None:
        self.busy = False
        machine: Recorder = self.net["C"].machine()
        machine.applied[:] = [entry for entry in self.net["A"].machine().applied if entry[0] <= at]
        self.net["C"].group().install(at, term, members)

    def _load(self) -> None:
        if self.alive:
            self.leader.propose(b"." * 500)  # 250 KB in a second: what 250 MB are to the limits
            self.net.time.call_later(0.002, self._load)

    def _flush(self) -> None:
        for name in "AB":
            group = self.net[name].group()
            group.compact(group.machine_index)
            group.node.journal.housekeep()
        self.net.time.call_later(0.03, self._flush)

    @property
    def group(self) -> Group:
        return self.net["C"].group()

    def close(self) -> None:
        self.alive = False


@pytest.mark.parametrize("seconds", [0.06, 0.4, 4.0])
def test_a_transfer_that_takes_longer_than_any_pin_happens_once(seconds: float) -> None:
    transfer = Transfer(seconds)
    transfer.net.run(seconds + 0.5)
    assert transfer.rounds == 1
    assert transfer.leader.last_index - transfer.group.applied_index < 10
    transfer.net.run(0.5)
    held = transfer.net["A"].disk.segments()
    assert len(held) <= 4, "what the transfer needed is gone again"
    assert transfer.leader.node.journal.counters.carried_entries < 20


def test_the_memory_of_a_pinned_log_does_not_grow_with_what_is_written() -> None:
    transfer = Transfer(4.0)
    transfer.net.run(3.9)
    log = transfer.leader.log
    assert log.last_index - log.base_index > 1_800
    assert log.bytes > 900_000
    assert sum(map(len, log._cache.values())) <= transfer.leader.node.journal.options.cache_bytes + 1_000


def test_a_link_that_is_lost_for_less_than_a_pin_costs_nothing() -> None:
    transfer = Transfer(2.0)
    transfer.net.run(1.0)
    transfer.net.cut("A", "C")
    transfer.net.run(0.1)
    transfer.net.connect("A", "C")
    transfer.net.run(1.5)
    assert transfer.rounds == 1
    assert transfer.leader.last_index - transfer.group.applied_index < 10


def test_a_peer_that_falls_silent_is_given_up() -> None:
    transfer = Transfer(4.0)
    transfer.net.run(0.5)
    log = transfer.leader.log
    pinned = log.pin
    assert log.base_index <= pinned < log.last_index - 200
    transfer.net.cut("A", "C")
    transfer.net.run(0.1)
    assert log.base_index <= pinned
    transfer.net.run(0.3)
    assert log.base_index > pinned
    assert len(transfer.net["A"].disk.segments()) <= 4


def test_a_link_that_is_there_is_no_sign_of_life_of_the_peer_that_fetches() -> None:
    """Its process hangs, or the group does there: offers are repeated, but nobody asks."""
    transfer = Transfer(4.0)
    transfer.net.run(0.5)
    transfer.net.filter = lambda source, target, gid, frame: not (gid and source == "C")
    transfer.net.run(0.5)
    assert transfer.leader.replicator.flows["C"].state is FlowState.SNAPSHOT
    assert transfer.leader.log.last_index - transfer.leader.log.base_index < 200


def test_a_follower_that_takes_entries_slowly_is_not_sent_the_whole_state() -> None:
    """It is behind what is retained, and every answer brings it further."""
    net = Loopback(
        "ABC", dataclasses.replace(SCALED, retain_entries=16), RaftConfig(window_batches=1, frame_entries=20)
    )
    leader = net.start(leader="A")
    net.run(0.1)
    net.latency = 0.02
    net.crowd(leader, 400, form=b"%d")
    net.until(lambda: leader.replicator.flows["B"].match > 100, step=0.001)
    net.run(0.001)
    leader.compact(leader.machine_index)
    net.filter = lambda source, target, gid, frame: not (gid and source == "C")  # C lags behind B for a while
    net.run(0.8)
    leader.compact(leader.machine_index)
    net.filter = None
    net.run(3.0)
    assert net["C"].machine().snapshots == []
    assert net["C"].group().applied_index == leader.last_index


# -- the journal alone


def written(rig: Rig, log: GroupLog, segments: int) -> None:
    end = rig.journal.segment + segments
    while rig.journal.segment < end:
        rig.fill(log, 5, size=50)


def pinned(turns: int = 0, **options: Any) -> tuple[Rig, GroupLog]:
    """A log with a pin, which is written and flushed so many times."""
    rig = Rig(**{"retain_entries": 50, "retain_bytes": 2_000} | options)
    rig.journal.pins = PinLimits(bytes=1 << 40, most=1 << 40)
    log = rig.log(1)
    fill(log, 1)
    log.pin = 1
    for _ in range(turns):
        written(rig, log, 1)
        flushed(rig, log)
    return rig, log


def flushed(rig: Rig, *logs: GroupLog) -> None:
    for log in logs:
        log.compactable = log.last_index
        rig.journal.retention.trim(log)
    rig.settle(1.0)
    rig.housekeep()


def test_what_a_large_catch_up_needs_stays_where_it_is() -> None:
    rig, log = pinned(20)
    assert len(rig.disk.segments()) >= 20
    assert rig.journal.counters.carried_entries == 0
    assert log.base_index <= 1
    before = content(log)
    log.pin = 1 << 62
    flushed(rig, log)
    flushed(rig, log)
    assert len(rig.disk.segments()) <= 5
    assert content(log) == before[-len(content(log)) :]


def test_little_that_is_pinned_is_carried_and_holds_nothing_back() -> None:
    """A quiet group that somebody catches up with, beside a busy one."""
    rig, quiet = pinned()
    fill(quiet, 4)
    busy = rig.log(2)
    for _ in range(20):
        written(rig, busy, 1)
        fill(quiet, 1)
        flushed(rig, busy, quiet)
    assert len(rig.disk.segments()) <= 6
    assert [index for index, _, _ in content(quiet)] == list(range(2, 26))
    assert rig.journal.counters.carried_entries > 20
    rig.crash()
    assert rig.found.damage == []
    assert len(content(rig.log(1))) == 24


def test_beside_a_pin_other_groups_forget_and_their_segments_go_with_the_pinned_ones() -> None:
    rig, log = pinned()
    other = rig.log(2)
    for _ in range(10):
        written(rig, log, 1)
        written(rig, other, 1)
        flushed(rig, log, other)
    assert other.last_index - other.base_index < 200, "it forgets as always"
    log.pin = log.last_index - 3
    flushed(rig, log, other)
    flushed(rig, log, other)
    assert len(rig.disk.segments()) <= 5


def test_pins_hold_a_share_of_the_free_space_and_at_least_a_fixed_amount() -> None:
    rig, log = pinned(node_retain_bytes=8_192)
    rig.journal.pins = PinLimits(bytes=40_000, share=0.25)
    for free, most in ((100_000, 40_000), (400_000, 90_000)):
        log.pin = log.base_index
        rig.disk.capacity = rig.disk.used() + free
        held = 0
        while log.pin == log.base_index:
            written(rig, log, 1)
            held = max(held, rig.disk.used())
            flushed(rig, log)
            assert held < most * 2
        assert most * 0.8 < held < most * 1.4
        assert rig.disk.used() < 30_000
    assert rig.journal.counters.pins_given_up == 2


@pytest.mark.parametrize("limits", [PinLimits(1 << 40, most=50_000), PinLimits(1 << 40, most=1 << 40, entries=500)])
def test_what_pins_hold_is_bounded_on_any_disk(limits: PinLimits) -> None:
    rig, log = pinned()
    rig.journal.pins = limits
    for _ in range(20):
        written(rig, log, 1)
        flushed(rig, log)
        assert log.last_index - log.base_index < 800
    assert rig.journal.counters.pins_given_up == 1


def test_a_full_disk_ends_all_pins() -> None:
    rig, log = pinned(10)
    rig.disk.reported_free = 1_000
    rig.journal.housekeep()
    flushed(rig, log)
    assert len(rig.disk.segments()) <= 3


def test_what_pins_hold_does_not_ask_for_flushes_but_what_is_not_flushed_does() -> None:
    """A flush per second, for as long as a transfer takes, would free nothing."""
    rig, log = pinned(10)
    retention = rig.journal.retention
    assert not retention.wants_compaction
    written(rig, log, 8)
    rig.journal.housekeep()
    assert retention.wants_compaction
    flushed(rig, log)
    assert not retention.wants_compaction


def test_what_is_to_be_forgotten_goes_when_the_pin_ends() -> None:
    rig, log = pinned()
    written(rig, log, 3)
    flushed(rig, log)
    rig.journal.forget_old()
    last = rig.journal.segment
    for _ in range(3):
        flushed(rig, log)
    assert 1 in rig.disk.segments()
    log.pin = log.last_index
    for _ in range(3):
        flushed(rig, log)
    assert min(rig.disk.segments()) > last


def test_a_large_log_forgets_its_head_in_large_steps() -> None:
    rig = Rig(retain_entries=8, retain_bytes=1 << 10, segment_bytes=1 << 20, node_retain_bytes=1 << 21)
    log = rig.log()
    fill(log, 800)
    bases = set()
    for index in range(0, 800, 5):
        log.compactable = log.pin = index
        rig.journal.retention.trim(log)
        bases.add(log.base_index)
    assert log.base_index > 780
    assert len(bases) < 40


def test_a_journal_without_groups_keeps_what_shows_that_nothing_is_missing(rig: Rig) -> None:
    rig.fill(rig.log(2), 5, seconds=2.0)
    rig.journal.remove(2)
    for _ in range(3):
        for _ in range(3):
            rig.settle(2.0)
            rig.journal.housekeep()
        rig.settle(2.0)
        rig.crash()
        assert rig.found.damage == [] and rig.found.groups == {}
        assert rig.journal.open_seq == rig.mark.batch + 1, "the open one tells of the group that left"
    rig.fill(rig.log(3), 5, seconds=2.0)
    rig.housekeep(2.0)
    assert len(rig.disk.segments()) == 1, "what is not needed goes with the next batch"
    rig.crash()
    assert rig.found.damage == [] and rig.journal.groups[3].last_index == 5


def test_a_roll_after_the_last_group_went_takes_nothing_away(rig: Rig) -> None:
    for gid in range(2, 40):
        rig.fill(rig.log(gid), 5)
        rig.journal.remove(gid)
        rig.settle(1.0)
        rig.housekeep(1.0)
        rig.crash()
        assert rig.found.damage == []


# -- entries that cannot be read


def rot(disk: JournalDisk, log: GroupLog, body: bytes) -> None:
    """The only copy of an entry's `body` on the disk rots, and memory has forgotten it."""
    assert log.shrink(0)
    (place,) = [(number, at) for number in disk.segments() if (at := disk.load(number).find(body)) >= 0]
    disk.corrupt(*place, b"ROT")


def test_an_entry_that_cannot_be_read_is_forgotten_when_its_state_is_on_the_disk() -> None:
    rig = Rig(retain_entries=50, retain_bytes=2_000)
    told: list[tuple[int, str]] = []
    rig.journal.serve(lambda logs: None, lambda gid, text: told.append((gid, text)))
    quiet, busy = rig.log(1), rig.log(2)
    rig.fill(quiet, 4)
    rot(rig.disk, quiet, b"000003")
    for _ in range(20):
        written(rig, busy, 1)
        flushed(rig, busy)
    assert (quiet.damaged, quiet.unreadable, len(told)) == (False, 3, 1), (
        "reported once, and nothing that it vouched for"
    )
    assert rig.journal.counters.read_failures == 1, "it is not tried again and again"
    assert rig.journal.retention.wants_compaction and min(rig.disk.segments()) <= quiet.first_segment()
    flushed(rig, quiet)
    assert (quiet.unreadable, quiet.base_index >= 3, quiet.last_index) == (0, True, 4)
    for _ in range(3):
        written(rig, busy, 1)
        flushed(rig, busy)
    assert len(rig.disk.segments()) <= 6
    rig.crash()
    assert rig.found.damage == [] and not rig.log(1).damaged


def test_nobody_keeps_an_entry_that_cannot_be_read() -> None:
    """It is pinned for a peer, to which it cannot be sent."""
    rig, log = pinned()
    rig.fill(log, 3)
    rot(rig.disk, log, b"000002")
    with pytest.raises(JournalDamageError):
        log.slice(2, 1 << 20, 100)
    assert log.unreadable == 2
    flushed(rig, log)
    assert (log.base_index, log.unreadable, log.damaged) == (2, 0, False)


def test_an_entry_that_is_replaced_need_not_be_readable() -> None:
    rig, log = filled(4)
    rot(rig.disk, log, b"000003")
    with pytest.raises(JournalDamageError):
        log.command(3)
    log.truncate(4)
    assert log.unreadable == 3
    log.truncate(3)
    assert log.unreadable == 0


def test_who_has_an_entry_that_cannot_be_read_goes_on_to_count() -> None:
    """Its journal carries entries forward all the time, and the state is not flushed."""
    net, leader = led(options=SCALED)
    net.crowd(leader, 20, form=b"number %03d", after=0.5)
    group = net["C"].group()
    rot(net["C"].disk, group.log, b"number 007")
    net.cut("A", "B")
    net.cut("B", "C")
    other = net["C"].journal.create(9, Config(("C",)), durable=True)
    for _ in range(30):
        fill(other, 200, size=50)
        other.compactable = other.last_index
        net["C"].journal.retention.trim(other)
        index = net.propose(leader, b"more", after=1.0)
        assert leader.commit_index >= index and not leader.replicator.flows["C"].recovering
        assert not group.log.damaged
    assert group.log.unreadable
    group.compact(group.machine_index)
    net.run(1.1)
    assert not group.log.unreadable
    assert [text for _, text in net["C"].reports if "does not validate" in text]


@pytest.mark.parametrize("applied", [True, False])
def test_who_lacks_an_entry_that_it_has_not_applied_does_not_stand(applied: bool) -> None:
    net, leader = led()
    net.propose(leader, b"x", after=0.3)
    group = net["C"].group()
    group.log.unreadable = group.last_index
    group.applied_index -= not applied
    assert group.may_campaign() == applied
