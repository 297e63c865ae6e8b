"""Questions to leaders, plans and tasks against a scripted server (arrow/resolve.py, stream_state.py, read_task.py,
last.py, link.py)."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.arrow import listing, planner, resolve
from jetcluster.arrow.fetch import ReplicaLagError
from jetcluster.arrow.offsets import Offset
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import DataLossError, LastTask, RangeTask, Target, narrower_limits
from jetcluster.arrow.read_task import read_task
from jetcluster.client.stream_state import StreamError
from jetcluster.model.times import rfc3339
from jetcluster.store.batch import Batch
from tests.unit.arrow.fake_server import CREATED, T0, StreamPeer, numbered, options_for, store_of

TARGET = Target("S", "S", CREATED, "n1", ("n1",))


def rows_of(options: SourceOptions, tasks: list[Any]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in read_task(task, options, options.names) for row in batch.to_pylist()]


def scan(options: SourceOptions) -> list[int]:
    extents = resolve.batch_extents(options)
    resolve.check_loss(extents)
    return [row["seq"] for row in rows_of(options, resolve.tasks_of(extents, options))]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, range(5, 31)),
        ({"startingOffsets": 10, "endingOffsets": 13}, range(10, 13)),
        ({"startingTimestamp": rfc3339(T0 + 10_000), "asOfSeq": 20}, range(11, 21)),
        ({"asOfTime": rfc3339(T0 + 10_000)}, range(5, 12)),
        ({"endingTimestamp": rfc3339(T0 + 10_000)}, range(5, 11)),
        ({"startingOffsetsByTimestamp": json.dumps({"S": T0 // 10**6 - 1})}, range(5, 31)),
        ({"endingOffsetsByTimestamp": json.dumps({"S": {"0": T0 // 10**6}})}, []),
        ({"stream": "", "subscribePattern": "S|T", "endingOffsets": '{"S": 8}'}, range(5, 8)),
        ({"startingTimestamp": rfc3339(T0 + 10**12)}, []),
        ({"subjects": "b.>", "minPartitions": 3}, range(6, 31, 3)),
        ({"startingOffsets": 1, "failOnDataLoss": "false"}, range(5, 31)),
    ],
)
def test_what_a_batch_query_reads(given: dict[str, object], wanted: range) -> None:
    with StreamPeer(store_of(numbered(30), gaps=range(1, 5))) as peer:
        assert scan(options_for(peer, **given)) == list(wanted)


def test_what_is_not_there_is_an_error_when_it_is_read() -> None:
    with StreamPeer(store_of(numbered(30), gaps=range(1, 5))) as peer:
        options = options_for(peer, startingOffsets=2)
        (extent,) = resolve.batch_extents(options)
        assert (extent.low, extent.high) == (5, 31) and "messages 2 to 4 are gone" in extent.loss
        with pytest.raises(DataLossError):
            scan(options)


def test_messages_that_go_while_a_task_runs_are_missed_aloud() -> None:
    store = store_of(numbered(30))
    with StreamPeer(store) as peer:
        options = options_for(peer, fetchBatch=10, prefetch="false", arrowBatchRows=10)
        batches = read_task(RangeTask(TARGET, 1, 31, 0), options, ["seq"])
        assert next(batches).num_rows == 10
        store.delete_all(list(range(1, 26)))
        with pytest.raises(DataLossError, match="up to 25 while 1 to 30 were read"):
            list(batches)
        peer.created = "2026-12-01T00:00:00Z"
        with pytest.raises(DataLossError, match="created anew"):
            rows_of(options, [RangeTask(TARGET, 26, 31, 0)])
        lenient = options_for(peer, failOnDataLoss="false")
        assert len(rows_of(lenient, [RangeTask(TARGET, 1, 31, 0)])) == 5


def test_last_messages_as_of_a_sequence_and_never_of_a_replica_that_is_behind() -> None:
    rows = [(f"k.{n % 4}", b"", b"%d" % n) for n in range(40)]
    with StreamPeer(store_of(rows), [store_of(rows[:10]), store_of(rows)]) as peer:
        options = options_for(peer, mode="last", asOfSeq=30, fetchMaxBytes=10)
        (task,) = resolve.tasks_of(resolve.batch_extents(options), options)
        assert isinstance(task, LastTask) and task.subjects == ("k.0", "k.1", "k.2", "k.3")
        assert sorted(row["seq"] for row in rows_of(options, [task])) == [27, 28, 29, 30]
        assert peer.gets > 2, "page by page, and once in vain"
    with StreamPeer(store_of(rows), [store_of(rows[:10])]) as peer:
        late = options_for(peer, mode="last", replicaWait="100ms")
        with pytest.raises(ReplicaLagError, match="n1 has applied 10 of 30"):
            rows_of(late, [LastTask(TARGET, ("k.0",), 30, 0)])


def test_last_messages_of_a_stream_that_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.arrow.read_task.LOOK_SECONDS", 0.1)
    with StreamPeer(store_of(numbered(5))) as peer:
        options = options_for(peer, mode="last", retryTimeout="20s")
        (task,) = resolve.tasks_of(resolve.batch_extents(options), options)
        peer.deleted = True
        with pytest.raises(StreamError, match="there is no stream S"):
            rows_of(options, [task])


def test_a_micro_batch_checks_what_it_begins_with() -> None:
    with StreamPeer(store_of(numbered(30), gaps=range(1, 5))) as peer:
        options = options_for(peer)
        end = {"S": Offset(31, CREATED)}
        (task,) = resolve.range_between(options, {"S": Offset(7, CREATED)}, end)
        assert isinstance(task, RangeTask) and (task.low, task.high) == (7, 31)
        for start in (Offset(2, CREATED), Offset(9, "before")):
            with pytest.raises(DataLossError):
                resolve.range_between(options, {"S": start}, end)
        lenient = options_for(peer, failOnDataLoss="false")
        (task,) = resolve.range_between(lenient, {"S": Offset(9, "before")}, end)
        assert isinstance(task, RangeTask) and (task.low, task.high) == (5, 31)
        assert resolve.range_between(lenient, {"S": Offset(5, CREATED)}, {"S": Offset(31, "before")}) == []


def test_what_cannot_be_read_is_said() -> None:
    with StreamPeer(store_of(numbered(3))) as peer:
        with pytest.raises(StreamError, match="has replicas on n1"):
            resolve.batch_extents(options_for(peer, readPreference="peer:n7"))
        with pytest.raises(StreamError, match="S is no mirror of S"):
            resolve.batch_extents(options_for(peer, readPreference="mirror:S"))
        info = peer.info
        peer.info = lambda request: info(request) | {"config": {"allow_direct": False}}  # type: ignore[method-assign]
        with pytest.raises(StreamError, match="--allow-direct"):
            resolve.batch_extents(options_for(peer))


def test_limits_of_mirrors() -> None:
    assert narrower_limits({"max_msgs": -1, "max_age": 0}, {"max_msgs": -1, "max_age": 0}) == ""
    assert narrower_limits({"max_msgs": 10}, {"max_msgs": 10}) == narrower_limits({"max_msgs": 10}, {}) == ""
    assert "max_age is 5 there and unlimited here" in narrower_limits({}, {"max_age": 5})
    assert "max_msgs is 5 there and 10 here" in narrower_limits({"max_msgs": 10}, {"max_msgs": 5})


def test_without_a_leader_what_is_complete_is_enough() -> None:
    with StreamPeer(store_of(numbered(30), gaps=[7])) as peer:
        peer.silent_info = True
        options = options_for(peer)
        assert len(rows_of(options, [RangeTask(TARGET, 8, 31, 0)])) == 23


def test_a_pattern_matches_whole_names() -> None:
    peer = StreamPeer(store_of(numbered(3)))
    with peer, pytest.raises(StreamError, match="subscribePattern=THER matches none of 2 streams"):
        resolve.batch_extents(options_for(peer, stream="", subscribePattern="THER"))


def test_tasks_of_a_filter_are_as_many_as_its_messages_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as many as the sequences among which they are: a task costs more to start than they do to read."""
    monkeypatch.setattr(planner, "SMALL_TASK_SEQUENCES", 500)
    with StreamPeer(store_of(numbered(3000, tuple(f"s.{n}" for n in range(100))))) as peer:
        options = options_for(peer, subjects="s.7,s.8,s.999", maxRecordsPerPartition=20, startingOffsets=1001)
        tasks = resolve.tasks_of(resolve.batch_extents(options), options)
        assert len(tasks) == 2, "40 of 2000"
        rows = rows_of(options, tasks)
        assert sorted(row["seq"] for row in rows) == [n for n in range(1001, 3001) if n % 100 in (8, 9)]
        end = {"S": Offset(2001, CREATED)}
        assert len(resolve.range_between(options, {"S": Offset(1001, CREATED)}, end)) == 1


def test_last_messages_of_more_subjects_than_a_plan_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task lists its range when it runs: by then some subjects are gone, and others have come."""
    monkeypatch.setattr(listing, "MAX_NAMED", 5)
    monkeypatch.setattr(listing, "LAST_CHUNK_SUBJECTS", 3)
    rows = [(f"k.{n % 20:02}", b"", b"%d" % n) for n in range(40)]
    with StreamPeer(store_of(rows)) as peer:
        options = options_for(peer, mode="last", maxRecordsPerPartition=3, subjects="k.*,*.07,k.1")
        extents = resolve.batch_extents(options)
        assert not extents[0].subjects.names and len(pickle.dumps(extents)) < 2000
        tasks = resolve.tasks_of(extents, options)
        assert len(tasks) == 8 and all(isinstance(one, LastTask) and not one.subjects for one in tasks)
        peer.leader.delete_all([1, 2, 3, 21, 22, 23])  # k.00 to k.02 are gone
        peer.leader.append(Batch.of([b"k.015", b"k.05"], [], [b"new", b"new"]), 41, T0 + 10**6)
        found = rows_of(options, tasks)
        assert sorted(row["subject"] for row in found) == [f"k.{n:02}" for n in range(3, 20)]
        (task,) = (one for one in tasks if isinstance(one, LastTask) and one.within and one.within.low == "k.03")
        newest = [row["data"] for row in rows_of(options, [dataclasses.replace(task, newest=True)])]
        assert sorted(newest) == [b"23", b"24", b"new"]
