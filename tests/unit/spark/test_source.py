"""The plan of micro-batches against a scripted server (spark/source.py)."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'jetcluster[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from jetcluster.arrow import planner
from jetcluster.arrow.planner import DataLossError
from jetcluster.spark.options import OptionError
from jetcluster.spark.source import StreamReader
from tests.unit.arrow.fake_server import CREATED, T0, StreamPeer, numbered, options_for, store_of


def reader_of(peer: StreamPeer, **given: object) -> StreamReader:
    return StreamReader(options_for(peer, **given), ["seq"], None)


def at(seq: int, **others: int) -> dict[str, Any]:
    return {name: {"seq": n, "created": CREATED} for name, n in {"S": seq, **others}.items()}


def end_of(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Returns the end of a micro-batch without its parts."""
    found = reader.latestOffset(start, ReadAllAvailable())
    return {name: {key: value for key, value in one.items() if key != "parts"} for name, one in found.items()}


def test_few_messages_wait_for_more_or_for_the_delay() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        reader = reader_of(peer, minOffsetsPerTrigger=10, maxTriggerDelay="400ms")
        assert end_of(reader, at(18)) == at(21), "the first micro-batch comes at once"
        peer.leader = store_of(numbered(25))
        begun = time.monotonic()
        while end_of(reader, at(21)) == at(21):
            time.sleep(0.02)
        assert time.monotonic() - begun > 0.2, "five are too few"
        peer.leader = store_of(numbered(40))
        assert end_of(reader, at(26)) == at(41), "15 are enough"
        assert end_of(reader, at(41)) == at(41)


def test_a_run_to_what_is_there_waits_for_nothing() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        reader = reader_of(peer, minOffsetsPerTrigger=10)
        reader.prepareForTriggerAvailableNow()
        peer.leader = store_of(numbered(25))
        for start in (1, 15, 20):
            assert end_of(reader, at(start)) == at(21)


def test_a_run_ends_at_the_cut_whatever_a_deposed_leader_says() -> None:
    with StreamPeer(store_of(numbered(20)), replicas=[store_of(numbered(30))]) as peer:
        reader = reader_of(peer, consistent="true")
        reader.prepareForTriggerAvailableNow()
        assert end_of(reader, at(1)) == at(31)


def test_a_deposed_leader_that_knows_less_than_was_read_ends_no_query() -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        peer.deposed = store_of(numbered(20))
        reader = reader_of(peer)
        assert end_of(reader, at(26)) == at(31)
        (task,) = [one.task for one in reader.partitions(at(26), at(31))]
        assert (task.low, task.high) == (26, 31)
        with pytest.raises(DataLossError, match="ends at 30, before the place 40"):
            reader.latestOffset(at(40), ReadAllAvailable())


def test_a_stream_that_is_gone() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        start = at(3, GONE=7)
        with pytest.raises(DataLossError, match="GONE was read, and is no stream any more"):
            reader_of(peer, stream="", subscribePattern=".*S").latestOffset(start, ReadAllAvailable())
        lenient = reader_of(peer, stream="", subscribePattern=".*S", failOnDataLoss="false")
        assert end_of(lenient, start) == at(21)


def test_options_of_batch_queries_are_refused_when_spark_asks() -> None:
    """The constructor must not fail: Spark's code would hide its error behind another one."""
    with StreamPeer(store_of(numbered(20))) as peer:
        for ask in (
            lambda reader: reader.initialOffset(),
            lambda reader: reader.latestOffset(at(1), ReadAllAvailable()),
            lambda reader: reader.prepareForTriggerAvailableNow(),
        ):
            with pytest.raises(OptionError, match="batch queries"):
                ask(reader_of(peer, endingOffsets=5))


def test_the_end_of_a_micro_batch_has_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a second try has those, on a machine with other cores, with other settings; one without them is planned."""
    monkeypatch.setattr(planner, "SMALL_TASK_SEQUENCES", 5)
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    def cuts(reader: StreamReader, end: dict[str, Any]) -> list[tuple[int, int]]:
        tasks = [partition.task for partition in reader.partitions(at(1), end)]
        assert [task.index for task in tasks] == list(range(len(tasks)))
        return [(task.low, task.high) for task in tasks]

    with StreamPeer(store_of(numbered(40))) as peer:
        end = reader_of(peer).latestOffset(at(1), ReadAllAvailable())
        assert end == {"S": {"seq": 41, "created": CREATED, "parts": [1, 2]}}
        assert reader_of(peer).latestOffset(end, ReadAllAvailable()) == end, "there is nothing new"
        monkeypatch.setattr("os.cpu_count", lambda: 8)
        for reader in (reader_of(peer), reader_of(peer, minPartitions=3), reader_of(peer, maxRecordsPerPartition=4)):
            assert cuts(reader, end) == [(1, 21), (21, 41)]
        assert len(cuts(reader_of(peer), at(41))) == 8
        peer.leader.delete_all(list(range(1, 31)))
        lenient = reader_of(peer, failOnDataLoss="false")
        assert cuts(lenient, end) == [(21, 21), (31, 41)], "rows that are there are where they were"
        peer.created = "2026-12-01T00:00:00Z"
        assert cuts(lenient, end) == [(21, 21), (41, 41)]


def test_the_progress_says_how_far_behind_the_plan_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 of 40 are planned; the age is of the first that is not, 31."""
    monkeypatch.setattr("time.time", lambda: T0 / 10**9 + 60)
    with StreamPeer(store_of(numbered(40))) as peer:
        reader = reader_of(peer, maxOffsetsPerTrigger=30)
        assert reader.latestOffset(at(1), reader.getDefaultReadLimit())["S"]["seq"] == 31
        report = {"seq": 41, "created": CREATED, "behind_messages": 10, "behind_seconds": 60.0}
        assert reader.reportLatestOffset() == {"S": report}
        reader.latestOffset(at(31), reader.getDefaultReadLimit())
        assert reader.reportLatestOffset() == {"S": report | {"behind_messages": 0, "behind_seconds": 0.0}}
    with StreamPeer(store_of(numbered(40))) as peer:
        reader = reader_of(peer, maxOffsetsPerTrigger=30)
        reader.latestOffset(at(1), reader.getDefaultReadLimit())
        peer.leader.delete_all(list(range(1, 36)))
        assert reader.reportLatestOffset() == {"S": report | {"behind_messages": 5}}, "the first ones are gone"
