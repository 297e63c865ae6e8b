"""Tombstones of deleted streams, and data that belongs to nobody (cluster/orphans.py)."""

from __future__ import annotations

from jetcluster.cluster.orphans import Orphans
from jetcluster.store import keys
from testkit.twins.log import ListLog
from testkit.twins.mem_kv import CrashKv


class Raft:
    """The journal's list of groups."""

    def __init__(self, *gids: int) -> None:
        self.gids = set(gids)

    def orphans(self) -> list[int]:
        return sorted(self.gids)

    def remove_group(self, gid: int) -> None:
        self.gids.discard(gid)


def leftovers(kv: CrashKv, raft: Raft) -> Orphans:
    return Orphans(kv, raft, ListLog())  # type: ignore[arg-type]


def records(kv: CrashKv, gid: int) -> int:
    kinds = (keys.BLOCK, keys.INFO, keys.STATE)
    return sum(len(list(kv.scan(keys.stream_prefix(k, gid), keys.stream_end(k, gid)))) for k in kinds)


def store(kv: CrashKv, gid: int) -> None:
    kv.put(keys.block(gid, 1), b"block")
    kv.put(keys.info(gid, 1), b"info")
    kv.put(keys.stream_prefix(keys.STATE, gid), b"state")


def test_the_three_steps_of_a_deletion() -> None:
    kv, raft = CrashKv(), Raft(5)
    store(kv, 5)
    store(kv, 6)
    left = leftovers(kv, raft)
    left.delete(5)
    assert records(kv, 5) == 0 and records(kv, 6) == 3 and left.is_deleted(5) and raft.gids == {5}
    flushed = left.settle(lambda gid: False)
    assert raft.gids == {5}  # not before the flush
    kv.flush_now()
    flushed()
    assert raft.gids == set() and left.is_deleted(5)
    left.settle(lambda gid: True)  # the meta state on disk still assigns it
    assert left.is_deleted(5)
    left.settle(lambda gid: False)
    kv.flush_now()
    assert not left.is_deleted(5) and not leftovers(kv.crashed(), raft).is_deleted(5)


def test_a_tombstone_knows_where_in_the_meta_log_it_comes_from() -> None:
    """A stream may be placed here again, under its old id: that assignment is a newer one."""
    kv, raft = CrashKv(), Raft(5)
    left = leftovers(kv, raft)
    left.delete(5, 17)
    assert left.revision(5) == 17
    kv.flush_now()
    assert leftovers(kv.crashed(), raft).revision(5) == 17
    assert left.revision(6) > 1 << 60


def test_a_flush_that_failed_does_not_move_the_journal() -> None:
    kv, raft = CrashKv(), Raft(5)
    left = leftovers(kv, raft)
    left.delete(5)
    left.settle(lambda gid: False)  # what it returns is not called: the flush raised
    left.settle(lambda gid: False)
    assert raft.gids == {5} and left.is_deleted(5)


def test_a_restart_finds_the_tombstone_or_the_whole_stream() -> None:
    kv, raft = CrashKv(), Raft(5)
    store(kv, 5)
    kv.flush_now()
    leftovers(kv, raft).delete(5)
    lost = kv.crashed()  # the deletion had not reached the disk
    assert records(lost, 5) == 3 and not leftovers(lost, raft).is_deleted(5)
    kv.flush_now()
    kept = kv.crashed()
    left = leftovers(kept, raft)
    assert left.is_deleted(5) and records(kept, 5) == 0 and left.unassigned(()) == []
    left.settle(lambda gid: False)()
    assert raft.gids == set()


def test_what_nobody_assigned_is_named_and_left_alone() -> None:
    kv, raft = CrashKv(), Raft(1, 9)
    for gid in (2, 3, 0xFFFF_FFFF):
        store(kv, gid)
    kv.put(keys.stream_prefix(keys.INSTALLING, 4), b"")
    left = leftovers(kv, raft)
    assert left.unassigned({3}) == [2, 4, 9, 0xFFFF_FFFF]
    assert records(kv, 2) == 3 and raft.gids == {1, 9}
