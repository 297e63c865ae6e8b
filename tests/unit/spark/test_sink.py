"""A task of the sink and its batches, without Spark, against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from jetcluster.protocol import headers as header_block
from jetcluster.spark import sink_options
from jetcluster.spark.sink import Sink
from tests.unit.client.fake_server import Peer
from tests.unit.spark.test_publish import Server, numbers


def make_sink(url: str) -> Sink:
    """A sink such as the driver sends to a task."""
    sink = Sink.__new__(Sink)
    sink.options = sink_options.parse({"servers": url, "stream": "S", "subject": "s"})
    sink.patterns, sink.window, sink.default_job, sink.start_after, sink.atomic = [b">"], 120.0, "j", None, False
    return sink


def test_a_batch_is_acked_before_the_next_one_is_waited_for() -> None:
    """The next rows may be long in coming; by then ids of messages without an ack would be forgotten."""
    server = Server()
    there: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in (0, 10, 20):
            there.append(len(server.stored))
            yield pa.record_batch({"data": [b"%d" % n for n in range(first, first + 10)]})
        there.append(len(server.stored))

    with Peer(server) as peer:
        written = make_sink(peer.url).write(batches())
        ids = [header_block.get(block, b"Nats-Msg-Id") for _, _, block, _ in peer.published]
    assert there == [0, 10, 20, 30]
    assert server.stored == numbers(30)
    assert ids == [b"j:0:0:%d" % n for n in range(30)]
    assert (written.rows, written.duplicates, written.last_seq) == (30, 0, 30)
