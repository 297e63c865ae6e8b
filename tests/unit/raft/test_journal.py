from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.clock import SystemRng
from jetcluster.raft.codec import CONFIG, REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.journal import file_journal
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config, encode_config
from tests.unit.raft.journal_rig import ABC, Bench, content, fill, filled, forget


def test_one_write_carries_the_entries_of_all_groups() -> None:
    bench = Bench(segment_bytes=1 << 16)
    for gid in range(1, 21):
        fill(bench.log(gid), 5)
    bench.settle()
    assert bench.journal.counters.batches == 1
    assert all(log.durable_index == 5 for log in bench.journal.groups.values())


def test_the_next_batch_collects_while_one_is_written(bench: Bench) -> None:
    told: list[int] = []
    bench.journal.on_durable = lambda logs: told.append(logs[0].durable_index)
    log = bench.log()
    fill(log, 1)
    bench.journal._kick()
    fill(log, 3)
    assert log.durable_index == 0
    bench.settle()
    assert told == [1, 4]
    assert bench.journal.counters.batches == 2


def test_everything_comes_back_after_a_crash(bench: Bench) -> None:
    log = bench.log()
    fill(log, 10)
    log.set_term(4, "B")
    log.truncate(8)
    fill(log, 2, term=4)
    log.append(CONFIG, 4, encode_config(Config(("A", "B", "C", "D"))))
    log.set_commit_hint(7)
    other = bench.log(2, durable=False)
    fill(other, 3)
    other.install(50, 3, Config(("A",)))
    bench.fill(other, 2, term=3)
    before = content(log)
    again = bench.crash()
    assert bench.found.damage == []
    one, two = again.groups[1], again.groups[2]
    assert content(one) == before
    assert (one.term, one.voted_for, one.commit_hint, one.durable) == (4, "B", 7, True)
    assert one.config == Config(("A", "B", "C", "D"))
    assert one.config_at(9) == ABC
    assert (two.base_index, two.base_term, two.last_index, two.durable) == (50, 3, 52, False)
    assert two.config == Config(("A",))


def test_what_was_not_synced_is_gone_and_nothing_else() -> None:
    bench, log = filled(5)
    fill(log, 5)
    again = bench.crash()
    assert again.groups[1].last_index == 5
    assert not again.groups[1].damaged


def test_a_removed_group_is_forgotten(bench: Bench) -> None:
    fill(bench.log(1), 3)
    bench.fill(bench.log(2), 3)
    bench.journal.remove(1)
    bench.settle()
    assert list(bench.crash().groups) == [2]


def test_segments_roll_and_older_entries_are_read_back() -> None:
    bench = Bench(cache_bytes=200)
    log = bench.log()
    for _ in range(60):
        bench.fill(log, 5, size=50)
    assert len(bench.disk.segments()) > 3
    assert sum(map(len, log._cache.values())) < 400
    assert content(log) == [(i, 1, b"%06d" % i + b"." * 50) for i in range(1, 301)]
    again = bench.crash().groups[1]
    assert len(content(again)) == 300


def test_an_entry_larger_than_a_segment(bench: Bench) -> None:
    log = bench.log()
    log.append(REGULAR, 1, b"x" * 20_000)
    bench.fill(log, 3)
    bench.fill(log, 3)
    assert [len(c) for _, _, c in content(bench.crash().groups[1])] == [20_000, 26, 26, 26, 26, 26, 26]


def compact(log: GroupLog, index: int) -> None:
    log.compactable = index
    forget(log, index)


def test_compacted_segments_are_deleted(bench: Bench) -> None:
    log = bench.log()
    for _ in range(60):
        bench.fill(log, 5, size=50)
    compact(log, 290)
    bench.housekeep()
    assert len(bench.disk.segments()) <= 2
    again = bench.crash().groups[1]
    assert (again.base_index, again.base_term, again.last_index) == (290, 1, 300)


def test_an_idle_group_does_not_hold_back_segments_and_loses_nothing(bench: Bench) -> None:
    quiet, busy = bench.log(1), bench.log(2)
    fill(quiet, 7)
    quiet.set_term(3, "C")
    for _ in range(200):
        bench.fill(busy, 5, size=50)
        compact(busy, busy.last_index - 5)
        bench.housekeep()
    assert len(bench.disk.segments()) <= 6
    assert min(bench.disk.segments()) > 5
    assert bench.journal.counters.carried_entries >= 7
    assert len(content(quiet)) == 7
    for _ in range(3):
        again = bench.crash()
        assert bench.found.damage == []
        one = again.groups[1]
        assert content(one) == [(i, 1, b"%06d" % i + b"." * 20) for i in range(1, 8)]
        assert (one.term, one.voted_for, one.damaged) == (3, "C", False)


def test_retention_keeps_a_tail_for_slow_followers() -> None:
    bench = Bench(retain_entries=40, retain_bytes=1 << 20)
    log = bench.log()
    fill(log, 200)
    log.compactable = 190
    bench.journal.retention.trim(log)
    assert log.last_index - log.base_index == 40
    log.pin = 165
    log.compactable = 200
    fill(log, 100)
    bench.journal.retention.trim(log)
    assert log.base_index == 165


def test_a_full_disk_is_a_state_that_ends() -> None:
    bench, log = filled(5)
    with faults.armed("journal.write", faults.fail(errno.ENOSPC)):
        bench.fill(log, 5, seconds=0.5)
        assert bench.journal.full
        assert log.durable_index == 5
        assert bench.fatal == []
    bench.settle(0.2)
    assert not bench.journal.full
    assert log.durable_index == 10
    assert bench.journal.counters.full_episodes == 1
    assert len(content(bench.crash().groups[1])) == 10


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_of_descriptors_is_waited_out(error: int) -> None:
    bench, log = filled(5)
    with faults.armed("journal.create", faults.fail(error)):
        for _ in range(20):
            bench.fill(log, 5)
        bench.settle(1.0)
        waiting = log.last_index
        assert log.durable_index < waiting, "a segment was needed"
        assert bench.fatal == []
        assert not bench.journal.in_flight, "nothing hangs"
        assert not bench.journal.full, "nor is the disk full"
        assert bench.journal.counters.shortages > 2
    bench.settle(0.2)
    assert log.durable_index == waiting
    assert bench.crash().groups[1].last_index == waiting


def test_a_partial_write_on_a_full_disk_is_undone(bench: Bench) -> None:
    log = bench.log()
    for _ in range(12):
        bench.fill(log, 5)
    bench.disk.capacity = bench.disk.used()
    for _ in range(40):
        bench.fill(log, 5)
    durable = log.durable_index
    assert bench.journal.full
    assert durable < log.last_index
    again = bench.crash()
    assert bench.found.damage == []
    assert again.groups[1].last_index == durable


def test_the_reserve_counts_as_full() -> None:
    bench = Bench(reserve_bytes=10_000)
    bench.disk.reported_free = 14_000
    bench.journal.housekeep()
    assert bench.journal.full
    bench.disk.reported_free = 15_000
    bench.journal.housekeep()
    assert bench.journal.full, "no more than the journal may have given up itself"
    assert not bench.journal.scarce
    bench.disk.reported_free = 31_000
    bench.journal.housekeep()
    assert not bench.journal.full
    bench.disk.reported_free = 9_000
    bench.journal.housekeep()
    assert bench.journal.scarce
    assert not bench.journal.stuck


def test_any_other_write_error_is_fatal_and_vouches_for_nothing(bench: Bench) -> None:
    log = bench.log()
    with faults.armed("journal.write", faults.fail(errno.EIO)):
        bench.fill(log, 5, seconds=1.0)
    assert [getattr(e, "errno", None) for e in bench.fatal] == [errno.EIO]
    bench.fill(log, 5, seconds=1.0)
    assert log.durable_index == 0


def test_a_failed_sync_is_fatal_although_the_data_was_written(bench: Bench) -> None:
    log = bench.log()
    with faults.armed("journal.synced", faults.fail(errno.EIO)):
        bench.fill(log, 5, seconds=1.0)
    assert len(bench.fatal) == 1
    assert log.durable_index == 0


def test_a_relaxed_sync_vouches_at_once_but_not_for_votes() -> None:
    bench = Bench(sync_interval=0.5)
    log = bench.log()
    bench.settle()
    bench.fill(log, 5)
    assert log.durable_index == 5
    assert bench.crash().groups[1].last_index < 5, "that is what relaxed means"
    log = bench.log()
    log.set_term(9, "C")
    bench.settle()
    assert bench.crash().groups[1].term == 9
    log = bench.log()
    start = log.last_index
    bench.fill(log, 5, seconds=0.6)
    assert bench.crash().groups[1].last_index == start + 5
    assert bench.found.damage == []


def test_entries_of_memory_streams_count_when_written_not_when_synced(bench: Bench) -> None:
    log, other = bench.log(1, durable=False), bench.log(2)
    bench.settle()
    fill(log, 5)
    assert log.durable_index == 0, "a killed process would lose them"
    bench.settle()
    assert log.durable_index == 5
    assert bench.disk.unsynced
    assert bench.journal.synced == bench.journal.seq - 2, "no later batch says that it was durable"
    fill(log, 5)
    bench.fill(other, 1)
    assert not bench.disk.unsynced, "what is durable has no hole before it"
    bench.fill(log, 5)
    bench.disk.lose_unsynced()  # the power fails
    assert bench.crash().groups[1].last_index == 10
    assert bench.found.damage == []
    assert not bench.journal.groups[1].damaged


def test_a_new_segment_syncs_what_was_only_written_to_the_old_one(bench: Bench) -> None:
    log = bench.log(1, durable=False)
    while bench.journal.segment == 1 or bench.journal.fresh_segment:
        bench.fill(log, 5)
    assert 1 not in bench.disk.unsynced
    bench.disk.lose_unsynced()
    bench.crash()
    assert bench.found.damage == []


async def test_files_and_the_writer_thread(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=1 << 16, reserve_bytes=0)
    journal = file_journal(tmp_path / "wal", loop, SystemRng(), options)
    journal.open()
    durable = asyncio.Event()
    journal.on_durable = lambda logs: durable.set() if log.durable_index == 2_000 else None
    log = journal.create(1, ABC, True)
    fill(log, 2_000, size=60)
    async with asyncio.timeout(10):
        await durable.wait()
    fill(log, 10)
    journal.close()
    again = file_journal(tmp_path / "wal", loop, SystemRng(), options)
    assert again.open().damage == []
    assert again.groups[1].last_index == 2_010
    assert again.groups[1].command(7) == b"000007" + b"." * 60
    again.close()


@pytest.mark.parametrize("relaxed", [None, 0.01])
async def test_a_journal_of_files_survives_reopening_many_times(tmp_path: Path, relaxed: float | None) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=1 << 14, reserve_bytes=0, sync_interval=relaxed)
    for life in range(5):
        journal = file_journal(tmp_path, loop, SystemRng(), options)
        assert journal.open().damage == []
        log = journal.groups.get(1) or journal.create(1, ABC, True)
        assert log.last_index == life * 300
        fill(log, 300, size=60)
        await asyncio.sleep(0.02)
        journal.close()


def test_a_full_disk_retains_nothing_for_slow_followers() -> None:
    bench = Bench(retain_bytes=1 << 20, retain_entries=10_000, node_retain_bytes=1 << 20)
    log = bench.log()
    for _ in range(60):
        bench.fill(log, 5, size=50)
    log.compactable, log.pin = 290, 100
    bench.housekeep()
    segments = len(bench.disk.segments())
    assert log.base_index == 0
    assert not bench.journal.retention.wants_compaction
    bench.disk.reported_free = 1_000
    bench.journal.housekeep()
    assert log.base_index == 290
    bench.settle()
    bench.housekeep()
    assert len(bench.disk.segments()) < segments // 2
    assert bench.crash().groups[1].last_index == 300


def test_where_no_whole_segment_fits_a_small_batch_still_does(bench: Bench) -> None:
    log = bench.log()
    for _ in range(20):
        bench.fill(log, 5, size=50)
    bench.disk.capacity = bench.disk.used() + 3_000
    segment = bench.journal.segment
    while bench.journal.segment == segment:
        bench.fill(log, 5, size=50)
    bench.fill(log, 1)
    assert not bench.journal.stuck
    assert log.durable_index == log.last_index
    assert bench.crash().groups[1].last_index == log.last_index


def test_what_is_to_be_forgotten_leaves_the_disk_and_what_is_live_stays(bench: Bench) -> None:
    erased, live = bench.log(1), bench.log(2)
    erased.append(REGULAR, 1, b"THE-SECRET")
    fill(erased, 3)
    bench.fill(live, 3)
    before = content(live)
    erased.compactable = 2
    bench.journal.retention.trim(erased)  # retention for slow followers keeps it
    assert erased.base_index == 0
    bench.journal.forget_old()
    for _ in range(5):
        bench.settle(1.0)
        bench.journal.housekeep()
    assert bench.disk.segments() == [2]
    assert not any(b"THE-SECRET" in bench.disk.load(number) for number in bench.disk.segments())
    assert erased.base_index == 2
    kept = content(erased)
    bench.settle(5.0)
    bench.journal.housekeep()
    assert bench.disk.segments() == [2]  # once
    bench.crash()
    assert (content(bench.log(2)), content(bench.log(1))) == (before, kept)
    assert [index for index, _, _ in kept] == [3, 4]
