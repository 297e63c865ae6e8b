"""Damage: every byte of a journal may rot; what was vouched for is then either still there or known to be missing."""

from __future__ import annotations

import copy
import zlib
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.raft.journal import records
from jetcluster.raft.journal.log import GroupLog
from jetcluster.sealing.ciphers import AES
from testkit.twins.journal import JournalDisk
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import ABC, Rig, batches, content, fill, filled, forget, spoil, wipe


@pytest.fixture(autouse=True, params=["", AES], ids=["plain", AES], scope="module")
def cipher(request: pytest.FixtureRequest) -> Iterator[None]:
    """Damage is found, and the torn tail told from it, with encryption at rest as well."""
    Rig.cipher = request.param
    yield
    Rig.cipher = ""


@pytest.fixture(name="rig")
def history() -> Rig:
    """Several segments, two groups, truncations, votes, a compaction."""
    rig = Rig(node_retain_bytes=1 << 20)
    one, two = rig.log(1), rig.log(2)
    two.set_term(1, None)
    for round_ in range(25):
        if round_ % 5 == 0:
            one.set_term(round_ // 5 + 1, None)
        fill(one, 3, term=round_ // 5 + 1, size=40)
        if round_ % 2:
            fill(two, 1, size=90)
        if round_ % 7 == 6:
            one.truncate(one.last_index - 1)
        if round_ % 6 == 5:
            one.set_term(one.term, "B")
        rig.settle()
    one.compactable = 20
    forget(one, 20)
    rig.settle()
    for log in (one, two):
        log.set_commit_hint(log.last_index - 4)
    rig.settle()
    return rig


def reopened(rig: Rig, disk: JournalDisk) -> Rig:
    again = copy.copy(rig)
    again.disk = disk
    again.open()
    return again


def test_rot_anywhere_is_noticed_or_harmless(rig: Rig) -> None:
    truth = {gid: content(log) for gid, log in rig.journal.groups.items()}
    terms = {gid: (log.term, log.voted_for) for gid, log in rig.journal.groups.items()}
    rig.kill()
    rng = SeededRng(11)
    last_number, last_start, _ = batches(rig.disk)[-1]
    places = [
        (number, at)
        for number in rig.disk.segments()
        for at in range(0, len(rig.disk.load(number).rstrip(b"\0")), 29)
        if (number, at) < (last_number, last_start)
    ]
    assert len(places) > 200
    damaged = 0
    for number, at in places:
        disk = copy.deepcopy(rig.disk)
        old = disk.load(number)[at]
        disk.corrupt(number, at, bytes([old ^ (1 + rng.randrange(255))]))
        again = reopened(rig, disk)
        for gid in truth:
            log = again.journal.groups.get(gid)
            if log is None or log.damaged:
                damaged += 1
                assert again.journal.damage, "a damaged group without a report"
                if log is not None:
                    held = content(log)
                    assert held == [e for e in truth[gid] if e in held], "a damaged log invents nothing"
                continue
            assert content(log) == truth[gid], f"silent loss from {number}/{at}"
            assert (log.term, log.voted_for) == terms[gid]
    assert damaged > 50


def test_a_vote_of_before_counts_for_nothing_in_a_term_whose_record_is_lost() -> None:
    """Only the entries tell of that term. Whom this replica voted for in it is lost with the record."""
    rig = Rig()
    log = rig.log()
    log.set_term(2, "C")
    rig.fill(log, 2, term=2, seconds=0.1)
    log.set_term(3, "B")
    rig.settle(0.1)
    rig.fill(log, 2, term=3, seconds=0.1)
    rig.kill()
    found = rig.scan().groups[log.gid]
    assert (found.term, found.voted_for) == (3, "B")
    spoil(rig.disk, -2, b"rot", 40)
    scanned = rig.scan()
    found = scanned.groups[log.gid]
    assert (found.term, found.voted_for) == (3, None), scanned.damage


def test_the_mark_outlives_the_damaged_segment(rig: Rig) -> None:
    rig.kill()
    spoil(rig.disk, -4, b"rot", 40)
    rig.open()
    assert any(log.damaged for log in rig.journal.groups.values())
    marked = sorted(gid for gid, log in rig.journal.groups.items() if log.damaged)
    rig.settle()
    again = rig.crash()
    assert sorted(gid for gid, log in again.groups.items() if log.damaged) == marked
    for gid in marked:
        again.groups[gid].heal()
    rig.settle()
    assert not any(log.damaged for log in rig.crash().groups.values())


def test_a_damaged_log_is_cut_to_what_was_committed() -> None:
    rig, log = filled(10)
    log.set_commit_hint(6)
    rig.settle()
    log.truncate(9)
    rig.settle()
    rig.fill(log, 3, term=2)
    rig.kill()
    spoil(rig.disk, -2, b"\xff\xff", records.BATCH_HEAD_BYTES + 8)
    rig.open()
    log = rig.journal.groups[1]
    assert log.damaged
    assert log.last_index == 6, "9 and 10 may be of either term"
    assert log.commit_hint <= 6


@pytest.mark.parametrize("cut", [1, 20, 40, 70, 100])
def test_a_torn_tail_is_cut_and_is_no_damage(cut: int) -> None:
    rig, log = filled(5)
    rig.fill(log, 5)
    rig.kill()
    number, _, end = batches(rig.disk)[-1]
    rig.disk.corrupt(number, end - cut, b"\xee" * cut)
    rig.open()
    assert rig.found.damage == []
    assert rig.found.cut_bytes > 0
    assert rig.journal.groups[1].last_index == 5
    assert not rig.journal.groups[1].damaged
    rig.fill(rig.log(), 3)
    assert rig.crash().groups[1].last_index == 8
    assert rig.found.damage == []


def test_cutting_a_torn_tail_does_not_hide_the_damage_before_it() -> None:
    rig = Rig()
    log = rig.log()
    for _ in range(4):
        rig.fill(log, 3)
    rig.kill()
    (_, before, _), (number, _, end) = batches(rig.disk)[-2:]
    rig.disk.corrupt(number, before + 40, b"rot")
    rig.disk.corrupt(number, end - 5, b"torn!")
    for _ in range(3):  # it crashes again before anything is written
        rig.open()
        assert rig.found.damage
        assert rig.journal.groups[1].damaged
        rig.kill()
    rig.open()
    rig.settle()
    again = rig.crash()
    assert again.groups[1].damaged


def test_a_missing_segment_is_damage(rig: Rig) -> None:
    rig.kill()
    middle = rig.disk.segments()[1]
    rig.disk.delete(middle)
    rig.open()
    assert "missing" in rig.journal.damage[0].why
    assert any(log.damaged for log in rig.journal.groups.values())


def test_a_segment_without_a_readable_header_is_damage_unless_it_was_being_born(rig: Rig) -> None:
    rig.kill()
    first = rig.disk.segments()[0]
    rig.disk.corrupt(first, 0, b"\xff" * records.SEGMENT_HEAD_BYTES)
    assert "header" in rig.scan().damage[0].why
    fresh = Rig()
    fill(fresh.log(), 3)
    fresh.settle()
    fresh.kill()
    fresh.disk.create(fresh.disk.segments()[-1] + 1, 4_096)
    fresh.open()
    assert fresh.found.damage == []
    assert fresh.journal.groups[1].last_index == 3


def test_one_copy_of_the_header_is_enough(rig: Rig) -> None:
    truth = content(rig.journal.groups[1])
    rig.kill()
    for number in rig.disk.segments():
        rig.disk.corrupt(number, 0, b"\xff" * 40)
    rig.open()
    assert rig.found.damage == []
    assert content(rig.journal.groups[1]) == truth


def ended(*groups: int) -> Rig:
    """A journal whose end, with all of `groups` but the first, was cut off."""
    rig = Rig()
    rig.fill(rig.log(groups[0]), 3)
    _, start, _ = batches(rig.disk)[-1]
    for gid in groups[1:]:
        fill(rig.log(gid), 3)
    rig.settle()
    rig.kill()
    number, at, end = batches(rig.disk)[-1]
    assert at > start
    rig.disk.corrupt(number, at, b"\xee" * (end - at))
    rig.mark.write(rig.journal.seq)
    rig.open()
    assert rig.found.damage and set(rig.journal.groups) == {groups[0]}
    return rig


def test_which_groups_a_journal_without_its_end_may_have_had_the_cluster_knows() -> None:
    rig = ended(1, 9)
    assert [gid for gid in (2, 9, 10, 500) if rig.journal.never_had(gid)] == []
    rig.journal.learn_top(11)
    assert [gid for gid in (2, 9, 11, 12, 500) if rig.journal.never_had(gid)] == [12, 500]
    assert rig.log(9).damaged and not rig.log(12).damaged
    rig.settle()
    again = rig.crash()
    assert [gid for gid in (2, 11, 13, 500) if again.never_had(gid)] == [13, 500]
    again.learn_top(300)
    assert again.never_had(13), "it knows"


def test_a_journal_that_has_not_learnt_it_yet_does_not_take_itself_for_whole_at_the_next_start() -> None:
    rig = ended(1, 9)
    rig.fill(rig.log(1), 3)
    again = rig.crash()
    assert not again.never_had(9)
    again.learn_top(11)
    assert not again.never_had(9) and again.never_had(12)


def test_only_groups_that_may_have_had_an_earlier_life_are_born_damaged() -> None:
    rig = Rig()
    rig.fill(rig.log(1), 3)
    rig.fill(rig.log(7), 1)
    rig.fill(rig.log(1), 3)
    rig.kill()
    wipe(rig.disk, -2, b"\xee")
    rig.open()
    assert 7 not in rig.journal.groups
    assert [gid for gid in (1, 5, 7, 8) if rig.journal.never_had(gid)] == [8]
    assert rig.log(7).damaged, "all its records may have been lost"
    assert rig.log(5).damaged
    assert not rig.log(8).damaged, "the batch after the damage says that there was none above 7"
    rig.settle()
    assert not rig.crash().groups[8].damaged


def test_where_nothing_tells_of_earlier_groups_all_are_distrusted(rig: Rig) -> None:
    rig.kill()
    rig.disk.corrupt(rig.disk.segments()[-1], 0, b"\xff" * records.SEGMENT_HEAD_BYTES)
    rig.open()
    assert rig.found.damage
    assert rig.log(77).damaged


def test_a_message_that_looks_like_a_batch_is_not_believed() -> None:
    rig, log = filled(3)
    forged = records.batch_head(99, 98, 0, 0, records.salt(1, 0)) * 3
    log.append(0, 1, forged)
    rig.settle()
    rig.kill()
    spoil(rig.disk, -1, b"\0\0", 4)
    rig.open()
    assert rig.found.damage == []
    assert rig.journal.groups[1].last_index == 3


def test_groups_that_lost_nothing_are_not_suspect_even_if_nothing_of_them_follows() -> None:
    rig = Rig()
    for gid in (1, 2, 3):
        fill(rig.log(gid), 3)
    rig.settle()
    for _ in range(5):
        rig.fill(rig.log(3), 1)
    rig.kill()
    spoil(rig.disk, -3, b"\xee", -3)
    rig.open()
    assert rig.found.damage
    damaged = {gid for gid, log in rig.journal.groups.items() if log.damaged}
    assert damaged == {3}, "one record is missing, and group 3 misses one"
    rig.fill(rig.log(3), 1)


def test_groups_stay_suspect_when_a_lost_record_is_missed_by_nobody() -> None:
    rig = Rig()
    for gid in (1, 2, 3):
        fill(rig.log(gid), 3)
    rig.settle()
    rig.fill(rig.log(2), 1)
    rig.fill(rig.log(3), 1)
    rig.kill()
    spoil(rig.disk, -2, b"\xee", -3)
    rig.open()
    damaged = {gid for gid, log in rig.journal.groups.items() if log.damaged}
    assert damaged == {1, 2}, "it was of one of them"


def test_a_segment_that_was_cut_is_no_torn_tail(rig: Rig) -> None:
    """At whatever length: what was vouched for is there, or the group says that it may be missing something."""
    truth = {gid: content(log) for gid, log in rig.journal.groups.items()}
    rig.kill()
    number, start, end = batches(rig.disk)[-1]
    made = len(rig.disk.load(number))
    for size in (*range(1, end, 37), start, end - 1, made - 1):
        disk = copy.deepcopy(rig.disk)
        disk.cut(number, size)
        again = reopened(rig, disk)
        if size >= records.SEGMENT_HEAD_BYTES:
            assert "was cut short" in str(again.found.damage)
        for gid, known in truth.items():
            log = again.journal.groups[gid]
            assert log.damaged or content(log) == known, (size, gid)
        if records.SEGMENT_HEAD_BYTES < size < start:
            assert all(log.damaged for log in again.journal.groups.values()), "nobody knows whose it was"


def test_zeros_where_the_mark_knows_of_batches_are_damage(rig: Rig) -> None:
    """A disk that lied about a sync, or a file system that gave zeros back."""
    assert rig.mark.batch == 0
    rig.housekeep()
    rig.kill()
    assert rig.mark.batch == rig.journal.seq - 1
    number, start, _ = batches(rig.disk)[-2]
    rig.disk.wipe(number, start)
    again = reopened(rig, rig.disk)
    assert "had been durable and are gone" in str(again.found.damage)
    assert all(log.damaged for log in again.journal.groups.values())
    assert again.journal.seq > rig.mark.batch, "numbers that the mark knows are not used again"
    fill(again.journal.groups[1], 1, term=9)
    again.settle()
    again.kill()
    third = reopened(again, again.disk)
    assert all(log.damaged for log in third.journal.groups.values())


def test_a_segment_of_which_nothing_is_left(rig: Rig) -> None:
    rig.housekeep()
    rig.kill()
    rig.disk.cut(rig.disk.segments()[-1], 0)
    again = reopened(rig, rig.disk)
    assert "had been durable and are gone" in str(again.found.damage)
    assert all(log.damaged for log in again.journal.groups.values())


def test_what_the_mark_does_not_know_of_is_a_torn_tail(rig: Rig) -> None:
    rig.housekeep()
    rig.fill(rig.journal.groups[1], 1, term=9)
    rig.kill()
    number, start, _ = batches(rig.disk)[-1]
    size = len(rig.disk.load(number))
    rig.disk.corrupt(number, start + records.BATCH_HEAD_BYTES, b"\xff")
    again = reopened(rig, rig.disk)
    assert again.found.damage == []
    assert not any(log.damaged for log in again.journal.groups.values())
    assert len(rig.disk.load(number)) == size, "cutting it off would look like somebody else's cut"
    assert records.is_zero(rig.disk.load(number), start)


def test_a_segment_made_on_a_nearly_full_disk_is_not_taken_for_a_cut_one() -> None:
    rig = Rig(segment_bytes=4_096)
    log = rig.log()
    while rig.journal.segment < 3:
        rig.fill(log, 10, size=60)
    rig.disk.capacity = rig.disk.used() + 3_000
    rig.fill(log, 60, size=60)
    rig.disk.capacity = 1 << 40
    rig.settle(1.0)
    assert not rig.journal.stuck
    before = content(log)
    sizes = [len(rig.disk.load(number)) for number in rig.disk.segments()]
    assert min(sizes) < 4_096 or Rig.cipher, "the longer records of a sealed one fill it"
    again = rig.crash()
    assert rig.found.damage == []
    assert content(again.groups[1]) == before


def told(log: GroupLog) -> tuple[Any, ...]:
    return content(log), log.damaged, log.joining


def test_a_repair_counts_where_older_entries_were_carried_behind_it() -> None:
    """A replica was added, caught up and went on, say: its log begins with a state of before that, and its first
    entries lie behind the one that says that it is whole."""
    rig = Rig(segment_bytes=2_000, node_retain_bytes=8_000)
    quiet, busy = rig.log(1), rig.log(2)
    fill(quiet, 3)
    carried = False
    for step in range(60):
        if step == 8:
            quiet.mark_joining()
        elif step == 15:
            quiet.heal()
        fill(busy, 2, size=50)
        busy.compactable = max(busy.base_index, busy.last_index - 50)
        busy.compact(busy.compactable)
        rig.settle()
        rig.housekeep()
        found = rig.scan().groups[1]
        assert (found.damaged, found.joining) == (quiet.damaged, quiet.joining), f"step {step}"
        carried = carried or found.entries[1].segment > rig.disk.segments()[0] > 1
    assert carried, "there was such a moment"


@given(st.lists(st.tuples(st.sampled_from("aaaatcrikjh"), st.integers(0, 30)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_whatever_was_done_to_a_log_is_found_again_and_proven_whole(steps: list[tuple[str, int]]) -> None:
    """Each segment begins with the checksum of all terms of the log, made and verified piece by piece."""
    rig = Rig(segment_bytes=1_500, node_retain_bytes=3_000)
    log, quiet = rig.log(1), rig.log(2)
    fill(quiet, 3)
    term = 1
    for step, number in steps:
        if step == "a":
            rig.fill(log, number, term=term)
        elif step == "t" and log.last_index > log.base_index:
            log.truncate(max(log.base_index + 1, log.last_index - number))
            term += 1
        elif step == "c":
            log.compactable = min(log.last_index, log.base_index + number)
            log.compact(log.compactable)
        elif step == "r":
            rig.settle(1.0)
            rig.housekeep()
        elif step == "j":
            (log, quiet)[number % 2].mark_joining()
        elif step == "h":
            (log, quiet)[number % 2].heal()
        elif step == "i":
            log.install(log.last_index + number + 1, term, ABC)
        elif step == "k":
            rig.settle()
            before = told(log), told(quiet)
            rig.crash()
            assert rig.found.damage == []
            log, quiet = rig.log(1), rig.log(2)
            assert (told(log), told(quiet)) == before
    rig.settle()
    before = told(log), told(quiet)
    rig.crash()
    assert (told(rig.log(1)), told(rig.log(2))) == before
    terms = array("Q", [rig.log(1).term_at(i) or 0 for i in range(rig.log(1).base_index + 1, log.last_index + 1)])
    assert rig.log(1).log_crc() == zlib.crc32(terms.tobytes())
