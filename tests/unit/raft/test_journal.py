from __future__ import annotations

import errno

import pytest

from jetcluster import faults
from jetcluster.raft.codec import CONFIG, REGULAR
from jetcluster.raft.journal.log import NO_PIN, GroupLog
from jetcluster.raft.membership import Config, encode_config
from tests.unit.raft.journal_rig import ABC, Rig, content, fill, filled, forget


def test_one_write_carries_the_entries_of_all_groups() -> None:
    rig = Rig(segment_bytes=1 << 16)
    for gid in range(1, 21):
        fill(rig.log(gid), 5)
    rig.settle()
    assert rig.journal.counters.batches == 1
    assert all(log.durable_index == 5 for log in rig.journal.groups.values())


def test_the_next_batch_collects_while_one_is_written(rig: Rig) -> None:
    told: list[int] = []
    rig.journal.serve(lambda logs: told.append(logs[0].durable_index))
    log = rig.log()
    fill(log, 1)
    rig.journal._kick()
    fill(log, 3)
    assert log.durable_index == 0
    rig.settle()
    assert told == [1, 4]
    assert rig.journal.counters.batches == 2


def test_everything_comes_back_after_a_crash(rig: Rig) -> None:
    log = rig.log()
    fill(log, 10)
    log.set_term(4, "B")
    log.truncate(8)
    fill(log, 2, term=4)
    log.append(CONFIG, 4, encode_config(Config(("A", "B", "C", "D"))))
    log.set_commit_hint(7)
    other = rig.log(2, durable=False)
    fill(other, 3)
    other.install(50, 3, Config(("A",)))
    rig.fill(other, 2, term=3)
    before = content(log)
    again = rig.crash()
    assert rig.found.damage == []
    one, two = again.groups[1], again.groups[2]
    assert content(one) == before
    assert (one.term, one.voted_for, one.commit_hint, one.durable) == (4, "B", 7, True)
    assert one.config == Config(("A", "B", "C", "D"))
    assert one.config_at(9) == ABC
    assert (two.base_index, two.base_term, two.last_index, two.durable) == (50, 3, 52, False)
    assert two.config == Config(("A",))


def test_what_was_not_synced_is_gone_and_nothing_else() -> None:
    rig, log = filled(5)
    fill(log, 5)
    again = rig.crash()
    assert again.groups[1].last_index == 5
    assert not again.groups[1].damaged


def test_a_removed_group_is_forgotten(rig: Rig) -> None:
    fill(rig.log(1), 3)
    rig.fill(rig.log(2), 3)
    rig.journal.remove(1)
    rig.settle()
    assert list(rig.crash().groups) == [2]


def test_segments_roll_and_older_entries_are_read_back() -> None:
    rig = Rig(cache_bytes=200)
    log = rig.log()
    for _ in range(60):
        rig.fill(log, 5, size=50)
    assert len(rig.disk.segments()) > 3
    assert sum(map(len, log._cache.values())) < 400
    assert content(log) == [(i, 1, b"%06d" % i + b"." * 50) for i in range(1, 301)]
    again = rig.crash().groups[1]
    assert len(content(again)) == 300


def test_an_entry_larger_than_a_segment(rig: Rig) -> None:
    log = rig.log()
    log.append(REGULAR, 1, b"x" * 20_000)
    rig.fill(log, 3)
    rig.fill(log, 3)
    assert [len(c) for _, _, c in content(rig.crash().groups[1])] == [20_000, 26, 26, 26, 26, 26, 26]


def compact(log: GroupLog, index: int) -> None:
    log.compactable = index
    forget(log, index)


def test_compacted_segments_are_deleted(rig: Rig) -> None:
    log = rig.log()
    for _ in range(60):
        rig.fill(log, 5, size=50)
    compact(log, 290)
    rig.housekeep()
    assert len(rig.disk.segments()) <= 2
    again = rig.crash().groups[1]
    assert (again.base_index, again.base_term, again.last_index) == (290, 1, 300)


def test_an_idle_group_does_not_hold_back_segments_and_loses_nothing(rig: Rig) -> None:
    quiet, busy = rig.log(1), rig.log(2)
    fill(quiet, 7)
    quiet.set_term(3, "C")
    for _ in range(200):
        rig.fill(busy, 5, size=50)
        compact(busy, busy.last_index - 5)
        rig.housekeep()
    assert len(rig.disk.segments()) <= 6
    assert min(rig.disk.segments()) > 5
    assert rig.journal.counters.carried_entries >= 7
    assert len(content(quiet)) == 7
    for _ in range(3):
        again = rig.crash()
        assert rig.found.damage == []
        one = again.groups[1]
        assert content(one) == [(i, 1, b"%06d" % i + b"." * 20) for i in range(1, 8)]
        assert (one.term, one.voted_for, one.damaged) == (3, "C", False)


def test_retention_keeps_a_tail_for_slow_followers() -> None:
    rig = Rig(retain_entries=40, retain_bytes=1 << 20)
    log = rig.log()
    fill(log, 200)
    log.compactable = 190
    rig.journal.retention.trim(log)
    assert log.last_index - log.base_index == 40
    log.pin = 165
    log.compactable = 200
    fill(log, 100)
    rig.journal.retention.trim(log)
    assert log.base_index == 165


def test_a_full_disk_is_a_state_that_ends() -> None:
    rig, log = filled(5)
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        rig.fill(log, 5, seconds=0.5)
        assert rig.journal.full
        assert log.durable_index == 5
        assert rig.fatal == []
    rig.settle(0.2)
    assert not rig.journal.full
    assert log.durable_index == 10
    assert rig.journal.counters.full_episodes == 1
    assert len(content(rig.crash().groups[1])) == 10


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_of_descriptors_is_waited_out(error: int) -> None:
    rig, log = filled(5)
    with faults.armed("journal.create", faults.fail(error)):
        for _ in range(20):
            rig.fill(log, 5)
        rig.settle(1.0)
        waiting = log.last_index
        assert log.durable_index < waiting, "a segment was needed"
        assert rig.fatal == []
        assert not rig.journal.in_flight, "nothing hangs"
        assert not rig.journal.full, "nor is the disk full"
        assert rig.journal.counters.shortages > 2
    rig.settle(0.2)
    assert log.durable_index == waiting
    assert rig.crash().groups[1].last_index == waiting


def test_a_partial_write_on_a_full_disk_is_undone(rig: Rig) -> None:
    log = rig.log()
    for _ in range(12):
        rig.fill(log, 5)
    rig.disk.capacity = rig.disk.used()
    for _ in range(40):
        rig.fill(log, 5)
    durable = log.durable_index
    assert rig.journal.full
    assert durable < log.last_index
    again = rig.crash()
    assert rig.found.damage == []
    assert again.groups[1].last_index == durable


def test_the_reserve_counts_as_full() -> None:
    rig = Rig(reserve_bytes=10_000)
    rig.disk.reported_free = 14_000
    rig.housekeep()
    assert rig.journal.full
    rig.disk.reported_free = 15_000
    rig.housekeep()
    assert rig.journal.full, "no more than the journal may have given up itself"
    assert not rig.journal.scarce
    rig.disk.reported_free = 31_000
    rig.housekeep()
    assert not rig.journal.full
    rig.disk.reported_free = 9_000
    rig.housekeep()
    assert rig.journal.scarce
    assert not rig.journal.stuck


def test_any_other_write_error_is_fatal_and_vouches_for_nothing(rig: Rig) -> None:
    log = rig.log()
    with faults.armed("journal.write", faults.fail(errno.EIO)):
        rig.fill(log, 5, seconds=1.0)
    assert [getattr(e, "errno", None) for e in rig.fatal] == [errno.EIO]
    rig.fill(log, 5, seconds=1.0)
    assert log.durable_index == 0


def test_a_failed_sync_is_fatal_although_the_data_was_written(rig: Rig) -> None:
    log = rig.log()
    with faults.armed("journal.synced", faults.fail(errno.EIO)):
        rig.fill(log, 5, seconds=1.0)
    assert len(rig.fatal) == 1
    assert log.durable_index == 0


def test_a_relaxed_sync_vouches_at_once_but_not_for_votes() -> None:
    rig = Rig(sync_interval=0.5)
    log = rig.log()
    rig.settle()
    rig.fill(log, 5)
    assert log.durable_index == 5
    assert rig.crash().groups[1].last_index < 5, "that is what relaxed means"
    log = rig.log()
    log.set_term(9, "C")
    rig.settle()
    assert rig.crash().groups[1].term == 9
    log = rig.log()
    start = log.last_index
    rig.fill(log, 5, seconds=0.6)
    assert rig.crash().groups[1].last_index == start + 5
    assert rig.found.damage == []


def test_entries_of_memory_streams_count_when_written_not_when_synced(rig: Rig) -> None:
    log, other = rig.log(1, durable=False), rig.log(2)
    rig.settle()
    fill(log, 5)
    assert log.durable_index == 0, "a killed process would lose them"
    rig.settle()
    assert log.durable_index == 5
    assert rig.disk.unsynced
    assert rig.journal.synced == rig.journal.seq - 2, "no later batch says that it was durable"
    fill(log, 5)
    rig.fill(other, 1)
    assert not rig.disk.unsynced, "what is durable has no hole before it"
    rig.fill(log, 5)
    rig.disk.lose_unsynced()  # the power fails
    assert rig.crash().groups[1].last_index == 10
    assert rig.found.damage == []
    assert not rig.journal.groups[1].damaged


def test_a_new_segment_syncs_what_was_only_written_to_the_old_one(rig: Rig) -> None:
    log = rig.log(1, durable=False)
    while rig.journal.segment == 1 or rig.journal.fresh_segment:
        rig.fill(log, 5)
    assert 1 not in rig.disk.unsynced
    rig.disk.lose_unsynced()
    rig.crash()
    assert rig.found.damage == []


def test_a_full_disk_retains_nothing_for_slow_followers() -> None:
    rig = Rig(retain_bytes=1 << 20, retain_entries=10_000, node_retain_bytes=1 << 20)
    log = rig.log()
    for _ in range(60):
        rig.fill(log, 5, size=50)
    log.compactable, log.pin = 290, 100
    rig.housekeep()
    segments = len(rig.disk.segments())
    assert log.base_index == 0
    assert not rig.journal.retention.wants_compaction
    rig.disk.reported_free = 1_000
    rig.housekeep()
    rig.housekeep()
    assert log.base_index == 290
    rig.housekeep()
    assert len(rig.disk.segments()) < segments // 2
    assert rig.crash().groups[1].last_index == 300


def test_where_no_whole_segment_fits_a_small_batch_still_does(rig: Rig) -> None:
    log = rig.log()
    for _ in range(20):
        rig.fill(log, 5, size=50)
    rig.disk.capacity = rig.disk.used() + 3_000
    segment = rig.journal.segment
    while rig.journal.segment == segment:
        rig.fill(log, 5, size=50)
    rig.fill(log, 1)
    assert not rig.journal.stuck
    assert log.durable_index == log.last_index
    assert rig.crash().groups[1].last_index == log.last_index


def test_what_is_to_be_forgotten_leaves_the_disk_and_what_is_live_stays(rig: Rig) -> None:
    erased, live = rig.log(1), rig.log(2)
    erased.append(REGULAR, 1, b"THE-SECRET")
    fill(erased, 3)
    rig.fill(live, 3)
    before = content(live)
    erased.compactable = 2
    rig.journal.retention.trim(erased)  # retention for slow followers keeps it
    assert erased.base_index == 0
    rig.journal.forget_old()
    for _ in range(5):
        rig.settle(1.0)
        rig.journal.housekeep()
    assert rig.disk.segments() == [2]
    assert not any(b"THE-SECRET" in rig.disk.load(number) for number in rig.disk.segments())
    assert erased.base_index == 2
    kept = content(erased)
    rig.settle(5.0)
    rig.journal.housekeep()
    assert rig.disk.segments() == [2]  # once
    rig.crash()
    assert (content(rig.log(2)), content(rig.log(1))) == (before, kept)
    assert [index for index, _, _ in kept] == [3, 4]


@pytest.mark.parametrize("how", ["it ends", "its group is removed", "the disk is full"])
def test_what_a_pin_holds_is_forgotten_when_the_pin_ends(rig: Rig, how: str) -> None:
    """Until then it is carried to the new segment, and stays there whatever else goes."""
    erased, live = rig.log(1), rig.log(2)
    erased.append(REGULAR, 1, b"THE-SECRET")
    rig.fill(erased, 3)
    rig.fill(live, 3)
    erased.compactable, erased.pin = 4, 0

    def holds() -> bool:
        for _ in range(5):
            rig.settle(1.0)
            rig.journal.housekeep()
        return any(b"THE-SECRET" in rig.disk.load(number) for number in rig.disk.segments())

    assert not rig.journal.retention.forgets
    rig.journal.forget_old()
    assert holds() and rig.disk.segments() == [2] and rig.journal.retention.forgets
    erased.pin = 2
    erased.compact(2)
    assert holds() and rig.journal.retention.forgets, "it goes with the last of those that were carried"
    if how == "its group is removed":
        rig.journal.remove(1)
    elif how == "it ends":
        erased.pin = NO_PIN
    else:
        erased.compact(4)
    assert not holds() and not rig.journal.retention.forgets
    segments = rig.disk.segments()
    assert not holds() and rig.disk.segments() == segments, "once"


@pytest.mark.parametrize("under_way", [False, True])
def test_a_deleted_journal_vouches_for_nothing_any_more(rig: Rig, under_way: bool) -> None:
    log = rig.log()
    rig.fill(log, 3)
    rig.housekeep()
    assert log.durable_index == 3 and not rig.journal.missing and rig.journal.disk_size > 0
    rig.disk.vanish()
    if under_way:
        rig.writer.hold()
        rig.fill(log, 1)
    rig.journal.housekeep()
    rig.settle()
    if under_way:
        rig.writer.release()
        rig.settle()
    found = rig.journal
    assert found.missing == "/wal: deleted, or another one is in its place"
    assert found.full and found.stuck and not found.in_flight and rig.fatal == []
    before = log.durable_index
    rig.fill(log, 3)
    waited: list[bool] = []
    found.barrier(lambda: waited.append(True))
    rig.housekeep(5.0)
    assert log.durable_index == before and log.last_index > before
    assert waited == [True], "who flushes or stops does not wait for it"
    found.close()


def test_a_disk_that_hangs_is_asked_once_and_holds_nobody(rig: Rig) -> None:
    rig.fill(rig.log(), 3)
    rig.writer.hold()
    asked = rig.writer.submitted
    for _ in range(5):
        rig.housekeep(1.0)
    assert rig.writer.submitted <= asked + 2, "the space, and the mark"
    rig.writer.release()
    rig.housekeep()
    assert not rig.journal.missing and rig.journal.free > 0


def test_what_a_disk_answers_after_the_journal_is_closed_counts_for_nothing(rig: Rig) -> None:
    """The stores are closed by then, whose reserves would be asked for."""
    rig.fill(rig.log(), 3)
    rig.writer.hold()
    rig.housekeep()
    asked: list[bool] = []
    rig.journal.also_reserved = lambda: asked.append(True) or 0
    rig.journal.close()
    rig.writer.release()
    rig.settle()
    assert asked == []
