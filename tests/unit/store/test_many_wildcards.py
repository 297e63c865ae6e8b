"""Hundreds of wildcards over thousands of subjects cost one walk, not one each."""

from __future__ import annotations

import time
from collections.abc import Generator

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from testkit.twins.mem_kv import MemKv


def result(steps: Generator[None, None, object]) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def test_hundreds_of_wildcards_over_many_subjects_are_quick() -> None:
    store = BlockStore(MemKv(), 1, memory=False)
    for start in range(0, 20_000, 500):
        subjects = [b"m.b%d.c" % i for i in range(start, start + 500)]
        store.append(Batch.of(subjects, [], [b""] * 500), store.last_seq + 1, store.last_ts + 1)
    asked = [b"m.*.x%d" % i for i in range(4096)]
    begun = time.process_time()
    assert result(store.lasts(asked[:500], None, 1024)) == []
    assert result(store.lasts(asked[:500], 10_000, 1024)) == []
    assert result(store.lasts([*asked[:500], b"m.*.c"], None, 1024)) is None
    store.find_lasts(asked[:400])
    assert [store.last_seq_matching(one) for one in asked[:400]] == [0] * 400
    assert store.queries.count_any(asked, 5) == store.queries.last_of_any(asked) == 0
    assert store.next_seqs(asked, 1, 10) == store.last_seqs_any(asked) == []
    assert time.process_time() - begun < 2.5  # one by one: more than 30 s
