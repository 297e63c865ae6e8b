"""Calls of the machine to its extension (`stream.ports.Extension`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jetcluster.errors import by_code
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError, Extended
from jetcluster.stream.ports import BatchResult, Counted, Duplicate, JobStep, PublishResult, Result, Sift, digest_bytes
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv

T0 = 1_700_000_000_000_000_000


class Answer:
    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def digest_bytes(self) -> bytes:
        return self.digest


class Notes:
    """An `Extension` that remembers its calls."""

    public_count = 3

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.told: list[tuple[Any, ...]] = []
        self.answer: Result = 0

    def reload(self) -> None:
        self.told.append(("reload",))

    def flush(self) -> None:
        self.told.append(("flush",))
        self.store.side_put(99, b"k", b"%d" % len(self.told))

    def floor_of(self, name: str) -> int | None:
        return None

    def wanted(self, seq: int, subject: bytes) -> bool:
        return True

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift | None = None) -> Result:
        self.told.append(("apply", kind, ts, index, body))
        return self.answer

    def configure(self, rules: StreamRules, sift: Sift | None = None) -> None:
        self.told.append(("configure", rules.retention))

    def purged(self) -> None:
        self.told.append(("purged", self.store.first_seq))

    def trimmed(self) -> None:
        self.told.append(("trimmed", self.store.first_seq))

    def removed(self, seqs: Sequence[int]) -> None:
        self.told.append(("removed", *seqs))

    def stored(self, first_seq: int, last_seq: int) -> None:
        self.told.append(("stored", first_seq, last_seq))

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return told


class Stream:
    def __init__(self, **config: Any) -> None:
        self.kv = MemKv()
        self.store = BlockStore(self.kv, 1, memory=False)
        self.notes = Notes(self.store)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store, self.notes)
        self.index = 0
        self.apply(commands.encode_update_config(0, {"name": "S", **config}))

    def apply(self, command: bytes) -> Result:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def publish(self, count: int) -> None:
        self.apply(commands.encode_publish(T0, Batch.encode([b"a"] * count, [], [b"x"] * count)))


def test_commands_round_trip() -> None:
    assert commands.decode(commands.encode_extended(7, 18, b"body")) == Extended(7, 18, b"body")
    assert commands.decode(commands.encode_extended(7, 31, b"")) == Extended(7, 31, b"")
    with pytest.raises(CommandError):
        commands.decode(commands.HEAD.pack(32, 0, 7))


def test_it_is_configured_after_loading_and_with_every_update() -> None:
    stream = Stream(retention="workqueue")
    assert stream.notes.take() == [("reload",), ("configure", "limits"), ("configure", "workqueue")]
    assert stream.machine.consumer_count == 3
    stream.machine.reload()
    assert stream.notes.take()[-2:] == [("reload",), ("configure", "workqueue")]


def test_its_commands_come_with_a_time_that_never_goes_back() -> None:
    stream = Stream()
    stream.notes.take()
    stream.apply(commands.encode_extended(T0, 20, b"one"))
    stream.apply(commands.encode_extended(T0 - 5, 21, b"two"))
    assert stream.notes.take() == [("apply", 20, T0, 2, b"one"), ("apply", 21, T0, 3, b"two")]
    stream.publish(1)
    message = stream.store.get(1)
    assert message is not None and message.ts == T0 + 1


def test_its_results_go_into_the_hash() -> None:
    hashes = set()
    for answer in (0, 1, Answer(b"x"), Answer(b"y")):
        stream = Stream()
        stream.notes.answer = answer
        assert stream.apply(commands.encode_extended(T0, 20, b"")) is answer
        hashes.add(stream.machine.hash)
    assert len(hashes) == 4
    assert digest_bytes(Answer(b"n1")) != digest_bytes(1)


def test_it_hears_of_new_messages_only_where_retention_is_interest() -> None:
    stream = Stream(retention="interest")
    stream.notes.take()
    stream.publish(2)
    stream.publish(3)
    assert stream.notes.take() == [("stored", 1, 2), ("stored", 3, 5)]
    other = Stream()
    other.notes.take()
    other.publish(2)
    assert other.notes.take() == []


def test_it_hears_of_what_is_removed() -> None:
    stream = Stream(max_msgs=8)
    stream.publish(8)
    stream.notes.take()
    for command, told in (
        (commands.encode_purge(T0, seq=3), [("purged", 3), ("trimmed", 3)]),
        (commands.encode_delete_msg(T0, 5), [("removed", 5)]),
        (commands.encode_delete_msg(T0, 5), []),
        (commands.encode_delete_msg(T0, 3, erase=False), [("removed", 3), ("trimmed", 4)]),
        (commands.encode_purge(T0, filter=b">", keep=2), [("purged", 7), ("trimmed", 7)]),
        (commands.encode_purge(T0, filter=b"a", keep=1), [("removed",), ("trimmed", 8)]),
        (commands.encode_purge(T0, filter=b"b"), [("removed",)]),
        (commands.encode_publish(T0, Batch.encode([b"a"] * 8, [], [b"x"] * 8)), [("trimmed", 9)]),
        (commands.encode_purge(T0), [("purged", 17), ("trimmed", 17)]),
    ):
        stream.apply(command)
        assert stream.notes.take() == told


def test_it_writes_once_per_commit_and_into_the_same_batch() -> None:
    stream = Stream()
    stream.kv.commit()
    stream.notes.take()
    for _ in range(3):
        stream.apply(commands.encode_extended(T0, 20, b""))
    stream.publish(1)
    stream.notes.take()
    stream.kv.commit()
    assert stream.notes.take() == [("flush",)]
    assert stream.store.side_get(99, b"k") == b"1"
    stream.kv.commit()  # nothing has changed
    assert stream.notes.take() == []


# Bytes of results for the rolling hash: different results have different ones.


ERROR = by_code(10077, err="full")
RESULTS = {
    b"s5+3": PublishResult(5, 3, None),
    b"v5,d5,5=9,e10077:full": PublishResult(5, 4, [5, Duplicate(5), Counted(5, b"9"), ERROR]),
    b"v5": PublishResult(5, 1, [5]),
    b"b5+3": BatchResult(5, 3, None),
    b"e10077:full": BatchResult(0, 0, ERROR),
    b"n5": 5,
    b"xj7:3:0": JobStep(7, 3, done=False),
    b"xj7:3:1": JobStep(7, 3, done=True),
}


def test_bytes_of_results() -> None:
    """They are part of a hash that nodes of two versions compare: these bytes stay as they are."""
    assert {digest_bytes(result): result for result in RESULTS.values()} == RESULTS
    assert digest_bytes(ERROR) == b"e10077:full"
