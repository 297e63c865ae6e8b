"""A stream whose subjects change while somebody searches among them."""

from __future__ import annotations

import random
from collections.abc import Generator

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from testkit.twins.mem_kv import MemKv

ASKED = [b"s.*.x", b"s.a.*", b"s.*.*", b"*.b.>", b"s.>", b"t.*.*", b"s.c.y", b"t.a.x", b"none.*", b"*.*.z", b">"]


def subject(rng: random.Random) -> bytes:
    return b".".join([rng.choice([b"s", b"t"]), rng.choice([b"a", b"b", b"c"]), rng.choice([b"x", b"y", b"z", b"w"])])


def change(store: BlockStore, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.5:
        subjects = [subject(rng) for _ in range(rng.randint(1, 3))]
        store.append(Batch.of(subjects, [], [b""] * len(subjects)), store.last_seq + 1, store.last_ts + 1)
    elif kind < 0.9:
        store.delete(rng.randint(1, store.last_seq))
    elif kind < 0.95:
        store.purge(rng.choice(ASKED[:6]))
    else:
        store.compact(store.first_seq + rng.randint(1, 4))


def filled(rng: random.Random, count: int = 40) -> BlockStore:
    store = BlockStore(MemKv(), 1, memory=False)
    for _ in range(count):
        subjects = [subject(rng) for _ in range(rng.randint(1, 3))]
        store.append(Batch.of(subjects, [], [b""] * len(subjects)), store.last_seq + 1, store.last_ts + 1)
    return store


def run(steps: Generator[None, None, object], store: BlockStore, rng: random.Random, changes: float) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        if rng.random() < changes:
            change(store, rng)
