from __future__ import annotations

from array import array

import pytest

from jetcluster.raft.codec import CONFIG, NOOP, REGULAR
from jetcluster.raft.journal.log import JournalDamageError
from jetcluster.raft.membership import Config, encode_config
from tests.unit.raft.journal_rig import ABC, Rig, content, fill, filled, forget


def test_terms_and_ends() -> None:
    log = Rig().log()
    fill(log, 2, term=1)
    log.append(NOOP, 3, b"")
    assert [log.term_at(i) for i in range(6)] == [0, 1, 1, 3, None, None]
    assert (log.last_index, log.last_term, log.kind_at(3)) == (3, 3, NOOP)
    forget(log, 2)
    assert [log.term_at(i) for i in range(1, 5)] == [None, 1, 3, None]
    log.truncate(3)
    assert (log.last_index, log.last_term) == (2, 1)


def test_the_configuration_follows_the_log() -> None:
    log = Rig().log()
    fill(log, 1)
    two = Config(("A", "B"))
    log.append(CONFIG, 1, encode_config(two))
    fill(log, 3)
    assert (log.config, log.config_index) == (two, 2)
    assert log.config_at(1) == ABC
    forget(log, 4)
    assert (log.config, log.config_at(4)) == (two, two)
    log.append(CONFIG, 1, encode_config(ABC))
    log.truncate(6)
    assert log.config == two


def test_slices_are_bounded_by_bytes_and_count() -> None:
    log = Rig().log()
    fill(log, 10, size=94)
    assert len(log.slice(1, 250, 100)) == 2
    assert len(log.slice(1, 10, 100)) == 1, "at least one"
    assert len(log.slice(9, 10_000, 100)) == 2
    assert len(log.slice(1, 10_000, 3)) == 3


def test_the_first_index_of_a_term() -> None:
    log = Rig().log()
    for term in (1, 2, 2, 2, 5):
        fill(log, 1, term=term)
    assert log.first_index_of_term(4) == 2
    assert log.first_index_of_term(5) == 5
    forget(log, 2)
    assert log.first_index_of_term(4) == 3


def test_a_state_of_a_later_term_leaves_no_vote_of_before() -> None:
    """The base takes the term of the log's end for its own when it starts, and the vote with it."""
    rig = Rig()
    log = rig.log()
    log.set_term(2, "C")
    log.install(5, 2, ABC)
    assert (log.term, log.voted_for) == (2, "C")
    log.install(9, 3, ABC)
    assert (log.term, log.voted_for) == (3, None)
    rig.settle(1.0)
    assert log.term_gseq <= log.durable_gseq
    again = rig.scan().groups[log.gid]
    assert (again.term, again.voted_for) == (3, None)


def test_bytes_are_counted() -> None:
    log = Rig().log()
    fill(log, 10, size=94)
    assert (log.bytes, log.bytes_after(7)) == (1_000, 300)
    forget(log, 3)
    log.truncate(9)
    assert log.bytes == 500
    log.install(50, 2, ABC)
    assert log.bytes == 0


def test_a_sync_under_way_does_not_vouch_for_what_replaced_its_entries(rig: Rig) -> None:
    log = rig.log()
    fill(log, 10)
    rig.journal._kick()
    log.truncate(6)
    fill(log, 5, term=2)
    told: list[int] = []
    rig.journal.serve(lambda logs: told.append(log.durable_index))
    rig.settle()
    assert told == [5, 10]


def test_commands_leave_memory_only_when_they_are_written() -> None:
    rig = Rig(cache_bytes=500)
    log = rig.log()
    fill(log, 50)
    assert len(log._cache) == 50
    rig.settle()
    fill(log, 1)
    assert len(log._cache) < 21
    assert len(content(log)) == 51


def test_an_entry_that_rotted_is_not_returned() -> None:
    rig, log = filled(3, cache_bytes=0)
    log.shrink(0)
    segment, offset = log._runs.segment_of(2), log._offsets[1]
    rig.disk.corrupt(segment, offset, b"X")
    assert log.command(1).startswith(b"000001")
    with pytest.raises(JournalDamageError):
        log.command(2)
    rig.disk.delete(segment)
    with pytest.raises(JournalDamageError):
        log.command(1)


def test_truncation_stays_above_the_base() -> None:
    log = Rig().log()
    fill(log, 5)
    forget(log, 3)
    with pytest.raises(AssertionError):
        log.truncate(3)
    with pytest.raises(AssertionError):
        forget(log, 9)
    log.append(REGULAR, 1, b"x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_index", -1),
        ("base_index", 4),
        ("last_index", 9),
        ("base_term", 3),
        ("compactable", 2),
        ("written_index", 11),
        ("_cache_first", 12),
        ("bytes", -1),
        ("_cache_bytes", -1),
        ("configs", [(4, ABC)]),
        ("configs", [(3, ABC), (11, ABC)]),
        ("durable_gseq", 99),
        ("entry_gseq", 99),
        ("term_gseq", -1),
        ("_crc_count", 8),
        ("_kinds", array("B")),
        ("_offsets", array("I")),
        ("_lengths", array("I")),
    ],
)
def test_a_field_that_cannot_be_is_noticed(field: str, value: object) -> None:
    log = Rig().log()
    fill(log, 10, term=2)
    forget(log, 3)
    log.check()
    setattr(log, field, value)
    with pytest.raises(AssertionError):
        log.check()


def test_nothing_is_forgotten_that_the_state_machine_does_not_hold() -> None:
    log = Rig().log()
    fill(log, 10)
    log.compactable = 4
    with pytest.raises(AssertionError):
        log.compact(5)
