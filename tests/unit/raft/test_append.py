from __future__ import annotations

from jetcluster.raft.append import Diverged, Held, New, Rejected, plan
from jetcluster.raft.codec import REGULAR, Append, Entry
from jetcluster.raft.grouplog import GroupLog
from jetcluster.raft.journal import Journal
from jetcluster.raft.membership import Config
from testkit.twins.journal import InlineWriter
from testkit.twins.memory_disk import MemoryDisk
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.raft.loopback import SMALL


def log_with(*terms: int, base: int = 0, base_term: int = 0) -> GroupLog:
    time = ManualTime()
    journal = Journal(MemoryDisk(), InlineWriter(time), time, SeededRng(1), SMALL)
    journal.open()
    log = journal.create(1, Config(("A", "B")), True)
    if base:
        log.install(base, base_term, Config(("A", "B")))
    for term in terms:
        log.append(REGULAR, term, b"c")
    return log


def message(prev: int, prev_term: int, *terms: int, term: int = 9) -> Append:
    entries: list[Entry] = [(b"c", prev + 1 + i, t, REGULAR) for i, t in enumerate(terms)]
    return Append(term, prev, prev_term, 100, 0, entries)


def test_new_entries_at_the_end() -> None:
    assert plan(log_with(1, 1), 0, message(2, 1, 2, 2), True) == New(
        2, 1, [(b"c", 3, 2, REGULAR), (b"c", 4, 2, REGULAR)]
    )


def test_what_is_held_is_stripped() -> None:
    assert plan(log_with(1, 1, 2), 0, message(1, 1, 1, 2, 2), True) == New(3, 2, [(b"c", 4, 2, REGULAR)])


def test_a_held_batch_truncates_nothing_behind_it() -> None:
    assert plan(log_with(1, 1, 1, 1), 0, message(1, 1, 1), True) == Held(2)
    assert plan(log_with(1, 1, 1, 1), 0, message(2, 1), True) == Held(2)


def test_a_conflict_replaces_from_there() -> None:
    assert plan(log_with(1, 1, 1), 1, message(1, 1, 2), True) == New(1, 1, [(b"c", 2, 2, REGULAR)])


def test_a_conflict_with_a_committed_entry_is_no_truncation() -> None:
    assert plan(log_with(1, 1, 1), 2, message(1, 1, 2), True) == Diverged(2)
    assert plan(log_with(1, 1, 1), 2, message(2, 2, 2), True) == Diverged(2)


def test_beyond_the_end_the_hint_is_the_end() -> None:
    assert plan(log_with(1, 1), 0, message(7, 1, 2), True) == Rejected(3)


def test_another_term_gives_the_first_index_of_that_term() -> None:
    log = log_with(1, 2, 2, 2, 2)
    assert plan(log, 1, message(5, 4, 4), True) == Rejected(2)
    assert plan(log, 3, message(5, 4, 4), True) == Rejected(4), "never below what is committed"


def test_below_the_base_only_a_matched_leader_is_believed() -> None:
    log = log_with(3, 3, base=10, base_term=2)
    assert plan(log, 10, message(5, 1, 1, 1), False) == Rejected(11)
    assert plan(log, 10, message(5, 1, 1, 1), True) == Held(7)
    assert plan(log, 10, message(8, 1, 2, 2, 3, 3, 4), True) == New(12, 3, [(b"c", 13, 4, REGULAR)])


def test_a_leader_that_contradicts_the_base() -> None:
    assert plan(log_with(base=10, base_term=2), 10, message(10, 5), False) == Diverged(10)
