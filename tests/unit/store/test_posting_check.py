"""A scrub compares the postings with the subject table, while the stream changes too."""

from __future__ import annotations

import pytest

from jetcluster.store import block_store, keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.search import posting_check
from jetcluster.store.transfer import Scrub
from testkit.twins.mem_kv import MemKv
from tests.unit.store.test_scrub import STREAM, filled, opened, whole_pass


def first_postings(kv: MemKv, subject: bytes) -> list[bytes]:
    prefix = keys.posting_prefix(STREAM, subject)
    return [key for key, _ in kv.scan(prefix, prefix + b"\xff" * 8)]


@pytest.mark.parametrize("step", [1, 500, 1 << 20])
@pytest.mark.parametrize("lost", [1, 20])
def test_lost_postings_are_found_while_the_stream_grows(step: int, lost: int) -> None:
    kv = filled()
    store = opened(kv)
    whole_pass(kv, step, store)
    for key in first_postings(kv, b"s.1")[:lost]:
        kv.delete(key)
    scrub = Scrub(kv, STREAM, store.begin_check)
    with pytest.raises(DamagedError):
        for _ in range(20):
            store.append(Batch.of([b"s.1", b"new"], [], [b"", b""]), store.last_seq + 1, store.last_ts + 1)
            scrub.step(step)
        while not scrub.done:
            scrub.step(step)


def test_a_growing_stream_is_whole() -> None:
    kv = filled()
    store = opened(kv)
    store.compact(14)
    store.delete_all([17, 25, 26])
    scrub = Scrub(kv, STREAM, store.begin_check)
    for _ in range(200):
        store.append(Batch.of([b"a", b"s.1", b"z"], [], [b""] * 3), store.last_seq + 1, store.last_ts + 1)
        scrub.step(500)
    assert scrub.done


@pytest.mark.parametrize("subject", [b"s.0", b"s.1", b"s.2"])
@pytest.mark.parametrize("lost", [0, 1, 20])
@pytest.mark.parametrize("pieces", [3, 256])
def test_each_subject_is_compared_where_messages_go_meanwhile(
    subject: bytes, lost: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not compared at the start: the subject table was taken from its record."""
    monkeypatch.setattr(posting_check, "PIECE_POSTINGS", pieces)
    monkeypatch.setattr(block_store, "MIN_MESSAGES", 5)
    kv = filled()
    assert opened(kv).save_table(1 << 20, last=True)
    doomed = first_postings(kv, subject)[20 - lost :]
    for key in doomed:
        kv.delete(key)
    store = opened(kv)
    scrub = Scrub(kv, STREAM, store.begin_check)
    try:
        seq = steps = 0
        while not scrub.done:
            if seq < 18:
                seq += 2
                assert store.delete_all([200 - seq if not lost else seq])
            scrub.step(2000)
            steps += 1
        found = False
    except DamagedError:
        found = True
    assert found == bool(lost)


def test_what_goes_amid_a_long_subject_leaves_it_to_a_later_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_check, "PIECE_POSTINGS", 3)
    monkeypatch.setattr(block_store, "MIN_MESSAGES", 5)
    kv = filled()
    assert opened(kv).save_table(1 << 20, last=True)
    kv.delete(first_postings(kv, b"s.1")[-1])
    store = opened(kv)
    scrub = Scrub(kv, STREAM, store.begin_check)
    seq = 1
    while not scrub.done:
        store.compact(seq := seq + 1)
        scrub.step(1)
    with pytest.raises(DamagedError):
        whole_pass(kv, 1000, store)
