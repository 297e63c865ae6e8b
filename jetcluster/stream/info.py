"""The `state` object of STREAM.INFO (shared/reference/streams.md 5.4)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jetcluster.stream import times
from jetcluster.stream.ports import ReadStore

SUBJECTS_PAGE: Final = 100_000
"""Most subjects in one answer; the rest is asked for with `offset`."""


class SubjectsPage(NamedTuple):
    """What `subjects_filter` adds beside the state: pagination of the whole answer."""

    total: int
    offset: int
    limit: int


def state_object(
    store: ReadStore, *, consumers: int = 0, deleted_details: bool = False, subjects: dict[str, int] | None = None
) -> dict[str, Any]:
    """Keys in wire order; the ones that nats-server leaves out when zero are left out here too."""
    state = store.state
    found: dict[str, Any] = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq if state.last_seq or state.first_seq > 1 else 0,  # a new stream shows 0
        "first_ts": times.render(state.first_ts if state.messages else 0).decode(),
        "last_seq": state.last_seq,
        "last_ts": times.render(state.last_ts).decode(),
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


def subjects_page(store: ReadStore, filter: bytes, offset: int = 0) -> tuple[dict[str, int], SubjectsPage]:
    """Message counts of the subjects matching `filter` and where the page lies; sorted as soon as there is more than
    one page."""
    counts = dict(store.subject_counts(filter))
    total = len(counts)
    offset = max(offset, 0)  # one behind the end is echoed as it is
    names = list(counts) if total <= SUBJECTS_PAGE and not offset else sorted(counts)
    page = names[offset : offset + SUBJECTS_PAGE]
    subjects = {name.decode(errors="replace"): counts[name] for name in page}
    return subjects, SubjectsPage(total, offset, SUBJECTS_PAGE)
