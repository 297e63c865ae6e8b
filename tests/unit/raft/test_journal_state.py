"""Which batch and segment hold what was appended so far.

The groups that a journal remembers to have left.
"""

from __future__ import annotations

import pytest

from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal import records
from jetcluster.raft.journal.journal_state import MAX_REMOVED_GROUPS, JournalState, RemovedGroups, decode_removed
from jetcluster.raft.journal.records import NODE_GID, REMOVE
from jetcluster.raft.journal.recovery import scan
from tests.unit.raft.journal_rig import Rig, batches, fill, wipe


def journal() -> JournalState:
    state = JournalState(JournalOptions(), lambda: 0)
    state.seq, state.segment = 7, 3
    return state


def test_the_open_batch_counts_once_it_holds_something() -> None:
    state = journal()
    assert (state.open_seq, state.newest_segment) == (6, 3)
    state.batch.count = 1
    assert (state.open_seq, state.newest_segment) == (7, 3)


def test_a_segment_counts_once_something_was_appended_to_it() -> None:
    state = journal()
    state.fresh_segment = True
    assert (state.open_seq, state.newest_segment) == (6, 2)
    state.batch.count = 1
    assert (state.open_seq, state.newest_segment) == (7, 3)


def test_ids_come_back_as_they_were_given() -> None:
    for gids in ([], [7], [2, 3, 4, 9, 11, 12, 4_294_967_295]):
        found = decode_removed(RemovedGroups(gids, 5).encode())
        assert [gid for gid in [*range(20), 4_294_967_295] if gid in found] == gids
        assert found.floor == 5
        assert found.may_have_been(5) and found.may_have_been(7) == (7 in gids) and not found.may_have_been(6)
    assert len(RemovedGroups(range(1000, 2000)).encode()) == len(RemovedGroups([7]).encode())


def test_what_is_no_record_of_removed_groups_is_refused() -> None:
    good = RemovedGroups([3, 4]).encode()
    for body in (b"", good[:-1], b"\x02" + good[1:], good[:-4] + b"\xff" * 4):
        with pytest.raises(ValueError, match="removed groups"):
            decode_removed(body)


def test_the_oldest_ids_become_a_range_of_which_nothing_is_certain() -> None:
    removed = RemovedGroups()
    for gid in range(10, 10 + 2 * (MAX_REMOVED_GROUPS + 1), 2):
        removed.add(gid)
    last = 10 + 2 * MAX_REMOVED_GROUPS
    assert all(removed.may_have_been(gid) for gid in range(10, last + 1, 2))
    assert last in removed and 10 not in removed
    assert removed.may_have_been(11) and not removed.may_have_been(last - 1)
    assert len(removed.encode()) <= 8 * (MAX_REMOVED_GROUPS + 1)


def test_a_journal_remembers_groups_that_left_when_their_records_are_gone(rig: Rig) -> None:
    for gid in (2, 3, 4):
        fill(rig.log(gid), 3)
    rig.settle(1.0)
    for gid in (2, 4):
        rig.journal.remove(gid)
    rig.settle(1.0)
    first = rig.journal.segment
    for _ in range(40):
        log = rig.log(3)
        rig.fill(log, 20, seconds=1.0)
        log.compactable = log.last_index
        log.compact(log.last_index)
        rig.housekeep(1.0)
    assert min(rig.disk.segments()) > first, "nothing of them is left but the memory"
    for _ in range(3):
        rig.crash()
        assert rig.found.damage == []
        assert [gid for gid in (2, 3, 4, 5) if rig.journal.has_left(gid)] == [2, 4]
        assert [gid for gid in (2, 3, 4, 5) if rig.journal.never_had(gid)] == [5]
    assert rig.log(4).damaged, "it may have voted"
    assert not rig.log(5).damaged
    rig.settle(1.0)
    rig.crash()
    assert not rig.journal.has_left(4) and 4 in rig.journal.groups
    assert not rig.journal.groups[5].damaged


def test_a_removal_whose_record_is_lost_is_known_from_the_next_segment(rig: Rig) -> None:
    for gid in (2, 3):
        fill(rig.log(gid), 3)
    rig.settle(1.0)
    rig.journal.remove(2)
    rig.settle(1.0)
    rig.kill()
    number, start, end = batches(rig.disk)[-1]
    rig.open()
    rig.settle(1.0)
    rig.kill()
    rig.disk.corrupt(number, start + records.BATCH_HEAD_BYTES, b"\xee" * (end - start - records.BATCH_HEAD_BYTES))
    rig.open()
    assert rig.found.damage and list(rig.journal.groups) == [3]
    assert rig.journal.has_left(2)


def test_who_reads_the_memory_as_versions_before_did_removes_nothing(rig: Rig) -> None:
    fill(rig.log(2), 3)
    rig.fill(rig.log(3), 3, seconds=1.0)
    rig.journal.remove(2)
    rig.settle(1.0)
    rig.crash()
    rig.settle(1.0)
    kinds = []
    for number in rig.disk.segments():
        data = rig.disk.load(number)
        head = records.read_segment_head(data, number)
        assert head is not None
        seed, at = records.salt(number, head.nonce), records.SEGMENT_HEAD_BYTES
        while (batch := records.read_batch(data, at, seed)) is not None:
            kinds += [(record.kind, record.gid) for record in batch.records or ()]
            at = batch.end
    assert kinds.count((REMOVE, NODE_GID)) == 1
    assert NODE_GID not in scan(rig.disk).groups


def test_after_damage_nothing_certain_is_known_of_the_groups_of_before(rig: Rig) -> None:
    """Also at the next start, that finds nothing of the damage any more."""
    rig.fill(rig.log(1), 3)
    rig.fill(rig.log(7), 1)
    rig.fill(rig.log(1), 3)
    rig.kill()
    wipe(rig.disk, -2, b"\xee")
    rig.open()
    assert rig.found.damage
    for _ in range(40):
        rig.fill(rig.log(1), 20, seconds=1.0)
        log = rig.log(1)
        log.heal()
        log.compactable = log.last_index
        log.compact(log.last_index)
        rig.housekeep(1.0)
    rig.crash()
    assert rig.found.damage == []
    assert [gid for gid in (5, 7, 8) if rig.journal.never_had(gid)] == [8]
