"""The groups' states in each segment: a roll is spread over the batches that follow, and a crash at any point of it
loses nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from jetcluster.raft.journal import records, retention
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.retention import RESTATED_PER_BATCH
from testkit.twins.journal import JournalDisk, MemoryMark
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import ABC, Rig, content, fill, forget

pytestmark = pytest.mark.thorough


def contents(disk: JournalDisk) -> list[tuple[int, list[records.Record]]]:
    """(segment, records) of every batch."""
    found = []
    for number in disk.segments():
        data = disk.load(number)
        head = records.read_segment_head(data, number)
        assert head is not None
        at = records.SEGMENT_HEAD_BYTES
        while (batch := records.read_batch(data, at, records.salt(number, head.nonce))) is not None:
            assert batch.records is not None
            found.append((number, batch.records))
            at = batch.end
    return found


def test_a_roll_with_many_groups_holds_no_turn_for_long() -> None:
    rig = Rig(segment_bytes=4 << 20, node_retain_bytes=64 << 20)
    for gid in range(1, 5_001):
        rig.journal.create(gid, ABC, True)
    rig.settle()
    rig.crash()
    assert len(contents(rig.disk)[-1][1]) == 5_000, "at the start everything is stated at once"
    busy = rig.journal.groups[17]
    before = rig.journal.segment
    while rig.journal.segment == before:
        rig.fill(busy, 10, size=10_000)
    fill(busy, 1)
    assert not rig.journal.restatement.left
    after = [found for number, found in contents(rig.disk) if number > before]
    stated = [[r.gid for r in found if r.kind == records.STATE] for found in after]
    assert max(map(len, stated)) <= RESTATED_PER_BATCH + 1
    assert sorted(gid for gids in stated for gid in gids) == list(range(1, 5_001)), "each of them once"


def test_the_first_record_of_a_group_in_a_segment_is_its_state() -> None:
    rig = Rig(node_retain_bytes=1 << 20)
    logs = [rig.log(gid) for gid in range(1, 30)]
    for step in range(120):
        log = logs[step * 7 % 29]
        log.set_term(step + 1, "A") if step % 5 == 0 else fill(log, 3, term=step + 1)
        if step % 11 == 0 and log.last_index > log.base_index + 1:
            log.compactable = log.last_index - 1
            forget(log, log.last_index - 1)
        if step % 13 == 0 and log.last_index > log.base_index:
            log.truncate(log.last_index)
        rig.settle()
    seen: set[tuple[int, int]] = set()
    for number, found in contents(rig.disk):
        for record in found:
            if (number, record.gid) not in seen:
                seen.add((number, record.gid))
                assert record.kind == records.STATE
    assert rig.journal.segment > 3


def test_older_segments_stay_until_every_group_is_stated_again() -> None:
    rig = Rig(segment_bytes=1 << 20, node_retain_bytes=1 << 20)
    logs = [rig.log(gid) for gid in range(1, 2_000)]
    for log in logs:
        log.set_term(3, "B")
    rig.settle()
    journal = rig.journal
    before = journal.segment
    assert not journal.restatement.left
    fill(logs[0], 1, size=1 << 20)
    journal._kick()  # the disk has it; the loop has not heard of that
    assert journal.segment == before + 1
    assert journal.restatement.left
    logs[0].written_index = logs[0].compactable = logs[0].last_index
    forget(logs[0], logs[0].last_index)
    journal.retention.collect()
    assert journal.retention.oldest <= before, "what tells of the quiet groups goes only when they are stated again"
    rig.settle()
    assert not journal.restatement.left
    journal.housekeep()
    rig.settle()
    assert min(rig.disk.segments()) > before
    found = rig.crash().groups
    assert len(found) == 1_999
    assert {(log.term, log.voted_for, log.damaged) for log in found.values()} == {(3, "B", False)}


class Moments:
    """The disk and the mark at every moment at which the power could go, and what was vouched for by then."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.kept: list[tuple[JournalDisk, MemoryMark, dict[int, Any]]] = []
        for method in ("create", "write", "sync", "delete"):
            monkeypatch.setattr(rig.disk, method, self._around(method, getattr(rig.disk, method)))

    def _around(self, name: str, method: Any) -> Any:
        def call(*args: Any) -> Any:
            if name == "sync":
                self.keep()  # a write that is not durable: any part of it may be there
            result = method(*args)
            if name != "sync":
                self.keep()
                self.rig.time.call_soon(self.rig.journal.retention.collect)
            return result

        return call

    def keep(self) -> None:
        self.kept.append((self.rig.disk.copy(), copy.copy(self.rig.mark), vouched(self.rig.journal)))


def vouched(journal: Journal) -> dict[int, Any]:
    """The entries that count as stored, and the term and the vote if nothing of them is on its way, by group."""
    return {
        log.gid: (
            [(i, log.term_at(i)) for i in range(log.base_index + 1, log.durable_index + 1)],
            (log.term, log.voted_for) if log.durable_gseq >= log.term_gseq else None,
        )
        for log in journal.groups.values()
        if log.durable_gseq
    }


@pytest.mark.parametrize("relaxed", [None, 3600.0])
def test_the_power_may_go_at_any_point_of_a_roll(monkeypatch: pytest.MonkeyPatch, relaxed: float | None) -> None:
    monkeypatch.setattr(retention, "RESTATED_PER_BATCH", 3)
    monkeypatch.setattr(retention.Restatement.step, "__defaults__", (3,))
    rig = Rig(node_retain_bytes=8_192, retain_entries=4, retain_bytes=200, sync_interval=relaxed)
    quiet = [rig.log(gid) for gid in range(1, 31)]
    for log in quiet:
        log.set_term(2, "C")
        fill(log, log.gid % 3, term=2)
    busy = [rig.log(gid) for gid in range(31, 34)]
    rig.settle()
    moments = Moments(rig, monkeypatch)
    for step in range(60):
        log = busy[step % 3]
        if step % 9 == 0:
            log.set_term(log.term + 1, "B")
        fill(log, 4, term=log.term, size=60)
        if step % 17 == 16:
            log.truncate(log.last_index - 1)
        rig.settle()
        log.compactable = log.durable_index - 2
        if step % 20 == 19:
            rig.journal.forget_old()
        rig.housekeep()
    assert rig.journal.counters.deleted_segments > 5
    assert len(moments.kept) > 200
    for number, (disk, mark, truth) in enumerate(moments.kept):
        again = copy.copy(rig)
        again.disk, again.mark = disk, mark
        disk.crash(SeededRng(number))
        if relaxed is not None:
            mark.batch = 0  # what was only written may be gone
        again.open()
        assert again.found.damage == [], number
        assert set(again.journal.groups) >= set(truth)
        for gid, (entries, voted) in truth.items():
            log = again.journal.groups[gid]
            assert not log.damaged, (number, gid)
            held = [(i, term) for i, term, _ in content(log)]
            if relaxed is None:
                assert [e for e in entries if e[0] > log.base_index and e not in held] == [], (number, gid)
            assert voted is None or (log.term, log.voted_for) >= voted, (number, gid)


def test_what_is_to_leave_the_disk_leaves_it_although_a_pass_was_under_way() -> None:
    rig = Rig(segment_bytes=1 << 16)
    logs = [rig.log(gid) for gid in range(1, 2_000)]
    rig.settle()
    journal = rig.journal
    fill(logs[5], 1, size=1 << 16)
    journal._flying = journal._seal()
    assert journal.restatement.left
    journal.forget_old()
    forgotten = journal.segment
    journal._flying = None
    journal._kick()
    rig.settle()
    for log in logs:
        log.compactable = log.durable_index
    for _ in range(3):
        journal.housekeep()
        rig.settle()
    assert min(rig.disk.segments()) > forgotten
