"""The `state` object of STREAM.INFO."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from jetcluster.model import times
from jetcluster.store.block_store import BlockStore

SUBJECTS_PAGE: Final = 100_000
"""Most subjects in one answer; the rest is asked for with `offset`."""


class SubjectsPage(NamedTuple):
    """The part that `subjects_filter` adds beside the state: pagination of the whole answer."""

    total: int
    offset: int
    limit: int


def state_object(
    store: BlockStore, *, consumers: int = 0, deleted_details: bool = False, subjects: dict[str, int] | None = None
) -> dict[str, Any]:
    """Keys in wire order; the ones that nats-server leaves out when zero are left out here too."""
    state = store.state
    found: dict[str, Any] = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq if state.last_seq or state.first_seq > 1 else 0,  # a new stream shows 0
        "first_ts": times.rfc3339(state.first_ts if state.messages else 0),
        "last_seq": state.last_seq,
        "last_ts": times.rfc3339(state.last_ts),
    }
    if state.num_subjects:
        found["num_subjects"] = state.num_subjects
    if subjects:
        found["subjects"] = subjects
    if state.num_deleted:
        found["num_deleted"] = state.num_deleted
        if deleted_details:
            found["deleted"] = store.deleted(state.num_deleted)
    found["consumer_count"] = consumers
    return found


def subjects_page(
    store: BlockStore, subject_filter: bytes, offset: int = 0
) -> Generator[None, None, tuple[dict[str, int], SubjectsPage]]:
    """Message counts of the subjects matching `subject_filter`, sorted, and where the page lies. Returned after as many
    steps of some milliseconds as it takes; between them the store may change, and each step is of its own moment."""
    found: dict[str, int] = {}
    offset = max(offset, 0)  # one behind the end is echoed as it is
    total = 0
    cursor: bytes | None = b""
    while cursor is not None:
        subjects, cursor = store.slices.survey(subject_filter, cursor)
        first = max(offset - total, 0)
        for name in subjects[first : first + SUBJECTS_PAGE - len(found)]:
            found[name.decode(errors="replace")] = store.count_of(name)
        total += len(subjects)
        if cursor is not None:
            yield
    return found, SubjectsPage(total, offset, SUBJECTS_PAGE)
