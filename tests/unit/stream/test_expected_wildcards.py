"""Wildcards in Nats-Expected-Last-Subject-Sequence-Subject: one walk for all of a command, and the same verdicts."""

from __future__ import annotations

import random
import time

import pytest

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.search import kept_filters
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.ports import PublishResult
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import NaiveStore

T0 = 1_795_167_385_000_000_000
WILD = [b"k.*.x", b"k.a.*", b"*.*.y", b"k.*.*", b"k.>", b"*.b.>", b"k.c.x", b"none.*", b">"]


def expecting(key: bytes, seq: int) -> bytes:
    fields = b"Nats-Expected-Last-Subject-Sequence: %d\r\nNats-Expected-Last-Subject-Sequence-Subject: %b" % (seq, key)
    return b"NATS/1.0\r\n%b\r\n\r\n" % fields


def subject(rng: random.Random) -> bytes:
    return b"k.%b.%b" % (rng.choice([b"a", b"b", b"c", b"d"]), rng.choice([b"x", b"y", b"z"]))


@pytest.mark.parametrize("config", [{}, {"max_msgs_per_subject": 1}, {"max_msgs": 6}])
@pytest.mark.parametrize("seed", range(15))
def test_verdicts_are_those_of_a_store_that_looks_at_every_message(
    seed: int, config: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_filters, "MIN_KEPT_WIDTH", 0)
    rng = random.Random(seed)
    stores = BlockStore(MemKv(), 1, memory=False), NaiveStore()
    machines = [StreamMachine("S", StreamRules.from_config({"name": "S", **config}), store) for store in stores]  # type: ignore[arg-type]
    stored = 0
    for index in range(1, 25):
        count = rng.randint(1, 8)
        last = stores[1].last_seq
        keys = [rng.choice(WILD) for _ in range(count)]
        headers = [
            expecting(key, rng.randint(max(0, last - 3), last + 2)) if rng.random() < 0.7 else b"" for key in keys
        ]
        batch = Batch.encode([subject(rng) for _ in range(count)], headers, [b"x"] * count)
        command = commands.encode_publish(T0 + index * 10**9, batch)
        results = [machine.apply(index, 1, command) for machine in machines]
        assert isinstance(results[0], PublishResult) and isinstance(results[1], PublishResult)
        assert repr(results[0].verdicts) == repr(results[1].verdicts)
        stored = stores[0].last_seq
        assert stored == stores[1].last_seq
    assert stored > 10


def test_hundreds_of_them_in_one_command_cost_one_walk() -> None:
    store = BlockStore(MemKv(), 1, memory=False)
    machine = StreamMachine("S", StreamRules.from_config({"name": "S"}), store)
    for index in range(1, 41):
        subjects = [b"k.b%d.c" % i for i in range(index * 500, index * 500 + 500)]
        machine.apply(index, 1, commands.encode_publish(T0 + index * 10**9, Batch.encode(subjects, [], [b""] * 500)))
    batch = Batch.encode([b"k.z"] * 400, [expecting(b"k.*.x%d" % i, 5) for i in range(400)], [b""] * 400)
    begun = time.process_time()
    result = machine.apply(41, 1, commands.encode_publish(T0 + 41 * 10**9, batch))
    assert time.process_time() - begun < 0.5  # each by itself: 1.5 s
    assert isinstance(result, PublishResult) and result.verdicts is not None
    assert {getattr(verdict, "err_code", 0) for verdict in result.verdicts} == {10071}
