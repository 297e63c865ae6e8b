"""The plan of micro-batches against a scripted server (spark/source.py)."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'jetcluster[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from jetcluster.arrow.planner import DataLossError
from jetcluster.spark.options import OptionError
from jetcluster.spark.source import StreamReader
from tests.unit.arrow.fake_server import CREATED, StreamPeer, numbered, options_for, store_of


def reader_of(peer: StreamPeer, **given: object) -> StreamReader:
    return StreamReader(options_for(peer, **given), ["seq"], None)


def at(seq: int, **others: int) -> dict[str, Any]:
    return {name: {"seq": n, "created": CREATED} for name, n in {"S": seq, **others}.items()}


def test_few_messages_wait_for_more_or_for_the_delay() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        reader = reader_of(peer, minOffsetsPerTrigger=10, maxTriggerDelay="400ms")
        assert reader.latestOffset(at(18), ReadAllAvailable()) == at(21), "the first micro-batch comes at once"
        peer.leader = store_of(numbered(25))
        begun = time.monotonic()
        while reader.latestOffset(at(21), ReadAllAvailable()) == at(21):
            time.sleep(0.02)
        assert time.monotonic() - begun > 0.2, "five are too few"
        peer.leader = store_of(numbered(40))
        assert reader.latestOffset(at(26), ReadAllAvailable()) == at(41), "15 are enough"
        assert reader.latestOffset(at(41), ReadAllAvailable()) == at(41)


def test_a_run_to_what_is_there_waits_for_nothing() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        reader = reader_of(peer, minOffsetsPerTrigger=10)
        reader.prepareForTriggerAvailableNow()
        peer.leader = store_of(numbered(25))
        for start in (1, 15, 20):
            assert reader.latestOffset(at(start), ReadAllAvailable()) == at(21)


def test_a_run_ends_at_the_cut_whatever_a_deposed_leader_says() -> None:
    with StreamPeer(store_of(numbered(20)), replicas=[store_of(numbered(30))]) as peer:
        reader = reader_of(peer, consistent="true")
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(at(1), ReadAllAvailable()) == at(31)


def test_a_stream_that_is_gone() -> None:
    with StreamPeer(store_of(numbered(20))) as peer:
        start = at(3, GONE=7)
        with pytest.raises(DataLossError, match="GONE was read, and is no stream any more"):
            reader_of(peer, stream="", subscribePattern=".*S").latestOffset(start, ReadAllAvailable())
        lenient = reader_of(peer, stream="", subscribePattern=".*S", failOnDataLoss="false")
        assert lenient.latestOffset(start, ReadAllAvailable()) == at(21)


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
