"""Which messages have an id that begins so, and up to where was looked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.read import id_search, msg_get
from jetcluster.stream.read.direct_get import BAD_REQUEST, DirectGet
from jetcluster.stream.read.get_request import GetRequest, SetBackError
from jetcluster.stream.read.id_search import common_beginning
from tests.unit.stream.fake_store import block

T0 = 1_795_167_385_500_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """Messages 1 to 100, of s.0 to s.2 in turns, whose ids are id:1 to id:100; every tenth has none."""
    kv = RocksKv(tmp_path / "kv")
    found = BlockStore(kv, 1, memory=False)
    for first in range(1, 101, 20):
        seqs = range(first, first + 20)
        headers = [block(f"Nats-Msg-Id: id:{seq}", "A: id:7") if seq % 10 else b"" for seq in seqs]
        found.append(Batch.of([b"s.%d" % (seq % 3) for seq in seqs], headers, [b"x" * 50] * 20), first, T0 + first)
        kv.commit()
    yield found
    kv.close()


def steps(store: BlockStore, **fields: Any) -> Iterator[None]:
    wish = {"seq": 1, "next_by_subj": "s.*", **fields}
    return msg_get.search(store, msg_get.decode(json.dumps(wish).encode()))


def searched(store: BlockStore, *prefixes: str, **fields: Any) -> tuple[int, list[str]]:
    answer = json.loads(at_once(steps(store, msg_id_prefixes=prefixes, **fields)))
    assert list(answer) == ["type", "msg_ids"] and list(answer["msg_ids"]) == ["searched", "found"]
    return answer["msg_ids"]["searched"], answer["msg_ids"]["found"]


def test_ids_that_begin_so_are_found_in_one_subject_or_in_all(store: BlockStore) -> None:
    assert searched(store, "id:7") == (100, ["id:7", *[f"id:{seq}" for seq in range(71, 80)]])
    assert searched(store, "id:7", next_by_subj="s.1") == (100, ["id:7", "id:73", "id:76", "id:79"])
    assert searched(store, "id:11", "id:97", "no", next_by_subj=">") == (100, ["id:11", "id:97"])
    assert searched(store, "d:7") == (100, []), "it begins so"
    assert searched(store, "id:10", next_by_subj="t") == (100, [])


def test_it_begins_where_it_is_told(store: BlockStore) -> None:
    assert searched(store, "id:7", seq=75) == (100, ["id:75", "id:76", "id:77", "id:78", "id:79"])
    start = "2026-11-20T09:36:25.500000081Z"
    assert searched(store, "id:", seq=0, start_time=start)[1][0] == "id:81"
    assert searched(store, "id:7", seq=101) == (100, [])
    assert searched(store, "id:7", seq=500) == (499, [])
    store.delete(75)
    assert searched(store, "id:7", seq=74) == (100, ["id:74", "id:76", "id:77", "id:78", "id:79"])


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_LOOKED_AT", 7), ("MAX_LOOKED_AT_BYTES", 1), ("MAX_FOUND", 1), ("MAX_FOUND_BYTES", 9), ("STEP_MESSAGES", 3)],
)
def test_each_answer_is_of_a_bounded_part_and_the_next_goes_on(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(id_search, "STEP_MESSAGES", 5)
    monkeypatch.setattr(id_search, limit, value)
    found, at, answers = list[str](), 0, 0
    while at < 100:
        at, some = searched(store, "id:1", "id:2", seq=at + 1)
        found += some
        answers += 1
    assert sorted(found) == sorted(f"id:{seq}" for seq in [1, 2, *range(11, 20), *range(21, 30)])
    assert (answers > 1) is (limit != "STEP_MESSAGES")


def test_others_are_served_between_its_steps(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_search, "STEP_MESSAGES", 10)
    assert sum(1 for _ in steps(store, msg_id_prefixes=["id:"])) == 9
    monkeypatch.setattr(id_search, "STEP_BYTES", 1)
    assert sum(1 for _ in steps(store, msg_id_prefixes=["id:"])) == 99


def test_what_is_stored_or_removed_meanwhile_stops_nothing(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_search, "STEP_MESSAGES", 10)
    running = steps(store, msg_id_prefixes=["id:9"])
    next(running)
    store.delete(95)
    store.append(Batch.of([b"s.1"], [block("Nats-Msg-Id: id:9new")], [b""]), 101, T0 + 101)
    answer = json.loads(at_once(running))["msg_ids"]  # type: ignore[arg-type]
    assert answer["searched"] >= 100
    assert [one for one in answer["found"] if one != "id:9new"] == [
        "id:9",
        *[f"id:{n}" for n in (*range(91, 95), *range(96, 100))],
    ]


def test_ids_that_are_long_come_in_answers_of_their_own(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_search, "MAX_FOUND_BYTES", 8)
    assert searched(store, "id:7") == (70, ["id:7"]), "the next one has no room"
    assert searched(store, "id:7", seq=71) == (71, ["id:71"])
    monkeypatch.setattr(id_search, "MAX_FOUND_BYTES", 1)
    assert searched(store, "id:7") == (20, ["id:7"]), "no other in the step"
    assert searched(store, "id:7", seq=8)[1] == ["id:71"], "one always comes"


def test_prefixes_are_bounded(store: BlockStore) -> None:
    for prefixes, sound in ((["a" * 4096], True), (["a" * 4097], False), ([""], False), (["a"] * 513, False)):
        request = GetRequest(next_by_subj=b">", msg_id_prefixes=[one.encode() for one in prefixes])
        assert id_search.is_sound(request) is sound


def test_a_stream_that_is_set_back_during_a_search_is_no_answer(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "STEP_MESSAGES", 10)
    running = steps(store, msg_id_prefixes=["id:9"])
    next(running)
    monkeypatch.setattr(store, "last_seq", 99)
    with pytest.raises(SetBackError):
        at_once(running)  # type: ignore[arg-type]


def test_direct_get_has_no_such_search(store: BlockStore) -> None:
    assert DirectGet("S", store).answer(b'{"seq":1,"next_by_subj":"s.*","msg_id_prefixes":["a"]}') == BAD_REQUEST


def test_what_texts_begin_with() -> None:
    assert common_beginning([b"abc", b"abd", b"ab"]) == b"ab"
    assert common_beginning([b"abc"]) == b"abc" and common_beginning([b"a", b"b"]) == b""
