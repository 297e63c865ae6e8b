from __future__ import annotations

from jetcluster.raft.persist_before_send import PersistBeforeSend
from tests.unit.raft.journals import Bench, fill


def test_frames_leave_in_order_once_they_are_true() -> None:
    bench = Bench()
    log = bench.log()
    fill(log, 5)
    held = PersistBeforeSend()
    held.add(1, 3, 0, "B", b"three")
    held.add(1, 5, 0, "B", b"five")
    assert list(held.release(log, 1)) == []
    bench.settle()
    fill(log, 1)
    held.add(1, 6, 0, "C", b"six")
    assert list(held.release(log, 1)) == [("B", b"three"), ("B", b"five")]
    assert len(held.frames) == 1


def test_a_frame_may_wait_for_a_record_instead_of_an_entry() -> None:
    bench = Bench()
    log = bench.log()
    log.set_term(2, "B")
    held = PersistBeforeSend()
    held.add(2, 0, log.term_gseq, "B", b"vote")
    assert list(held.release(log, 2)) == []
    bench.settle()
    assert list(held.release(log, 2)) == [("B", b"vote")]


def test_what_was_true_in_another_term_or_for_another_connection_never_leaves() -> None:
    bench = Bench()
    log = bench.log()
    fill(log, 1)
    bench.settle()
    held = PersistBeforeSend()
    held.add(1, 1, 0, "B", b"old term")
    assert list(held.release(log, 2)) == []
    held.add(2, 9, 0, "B", b"x")
    held.add(2, 9, 0, "C", b"y")
    held.drop_peer("B")
    assert len(held.frames) == 1
    held.keep_term(3)
    assert len(held.frames) == 0
    held.add(3, 9, 0, "C", b"z")
    held.clear()
    assert len(held.frames) == 0
