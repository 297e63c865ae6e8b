from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream.read import msg_get
from jetcluster.stream.read.msg_get import SubjectsPage
from tests.unit.stream.fake_store import NaiveStore

T0 = 1_795_167_385_500_000_000
ZERO = "0001-01-01T00:00:00Z"


def filled() -> NaiveStore:
    store = NaiveStore()
    store.append(Batch.of([b"b", b"a", b"b", b"c"], [], [b"x"] * 4), 1, T0)
    return store


def test_empty_new_stream() -> None:
    assert msg_get.state_object(NaiveStore()) == {
        "messages": 0, "bytes": 0, "first_seq": 0, "first_ts": ZERO, "last_seq": 0, "last_ts": ZERO,
        "consumer_count": 0,
    }  # fmt: skip


def test_emptied_stream_keeps_its_last_sequence() -> None:
    store = filled()
    store.purge()
    state = msg_get.state_object(store)
    assert (state["first_seq"], state["last_seq"], state["first_ts"]) == (5, 4, ZERO)
    assert state["last_ts"] == "2026-11-20T09:36:25.500000003Z"


def test_wire_order_and_details() -> None:
    store = filled()
    store.delete(2)
    assert "deleted" not in msg_get.state_object(store)
    state = msg_get.state_object(store, consumers=2, deleted_details=True, subjects={"b": 2})
    assert list(state) == [
        "messages", "bytes", "first_seq", "first_ts", "last_seq", "last_ts", "num_subjects", "subjects", "num_deleted",
        "deleted", "consumer_count",
    ]  # fmt: skip
    assert (state["num_deleted"], state["deleted"], state["num_subjects"], state["consumer_count"]) == (1, [2], 2, 2)
    assert state["bytes"] == 3 * 32


def page(store: NaiveStore, subject_filter: bytes, offset: int = 0) -> tuple[dict[str, int], SubjectsPage]:
    steps = msg_get.subjects_page(store, subject_filter, offset)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[dict[str, int], SubjectsPage] = end.value
            return found


def test_subjects() -> None:
    assert page(filled(), b">") == ({"a": 1, "b": 2, "c": 1}, SubjectsPage(3, 0, 100_000))
    assert page(filled(), b"zz") == ({}, SubjectsPage(0, 0, 100_000))
    assert "subjects" not in msg_get.state_object(filled(), subjects={})


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_subjects_are_paged(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(msg_get, "SUBJECTS_PAGE", 2)
    store = filled()
    store.slices.step = step
    assert page(store, b">") == ({"a": 1, "b": 2}, SubjectsPage(3, 0, 2))
    assert page(store, b">", 1) == ({"b": 2, "c": 1}, SubjectsPage(3, 1, 2))
    assert page(store, b">", 2) == ({"c": 1}, SubjectsPage(3, 2, 2))
    assert page(store, b">", (1 << 63) - 1)[0] == {}
    assert page(store, b">", 9) == ({}, SubjectsPage(3, 9, 2))


def test_subjects_are_counted_in_steps() -> None:
    store = filled()
    store.slices.step = 1
    assert len(list(msg_get.subjects_page(store, b">"))) == 2


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_a_page_of_long_subjects_has_fewer_and_says_so(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    store = NaiveStore()
    names = [b"a" * 40, b"b" * 200, b"c" * 60, b"d" * 10, b'"\xff' * 20]
    store.append(Batch.of(names, [], [b"x"] * 5), 1, T0)
    store.slices.step = step
    monkeypatch.setattr(msg_get, "SUBJECTS_BYTES", 2 * 16 + 2 * 2 + 100)
    found: dict[str, int] = {}
    limits = []
    while len(found) < 5:
        subjects, (total, offset, limit) = page(store, b">", len(found))
        assert (total, offset, min(limit, 5 - offset)) == (5, len(found), len(subjects))
        found |= subjects
        limits.append(len(subjects))
    assert limits == [1, 1, 1, 2] and found == dict.fromkeys([name.decode(errors="replace") for name in names], 1)


def test_a_list_of_deleted_sequences_that_fits_into_no_answer_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = filled()
    store.delete(2)
    monkeypatch.setattr(msg_get, "MAX_DELETED_BYTES", 2)
    msg_get.check_deleted(store)
    store.delete(3)
    with pytest.raises(ApiError) as refused:
        msg_get.check_deleted(store)
    assert refused.value.err_code == 10023
