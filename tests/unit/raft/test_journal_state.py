"""Which batch and segment hold what was appended so far."""

from __future__ import annotations

from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal_state import JournalState


def journal() -> JournalState:
    state = JournalState(JournalOptions())
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
