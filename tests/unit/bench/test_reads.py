"""The loads of long replies against a small in-process server: what came is counted, too little of it is an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench import reads
from bench.loads import MARK
from testkit.client import ClientError
from tests.unit.bench.fake_server import FakeServer, msg


class FakeDirectGet(FakeServer):
    """Answers with as many messages as were asked for (multi_last: 5), less `missing`, in odd splits."""

    piece_bytes = 777

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []
        self.subjects: list[bytes] = []
        self.missing = 0

    def answer(self, subject: bytes, reply: bytes, payload: bytes) -> bytes:
        if not subject.startswith(b"$JS.API.DIRECT.GET."):
            self.subjects.append(subject)
            return msg(reply, b'{"stream":"S","seq":%d}' % len(self.subjects))
        request = json.loads(payload)
        self.asked.append(request)
        one = msg(reply, b"payload" + MARK, b"NATS/1.0\r\nNats-Num-Pending: 1\r\n\r\n")
        end = msg(reply, b"", reads.EOB + b"\r\nNats-Num-Pending: 0\r\n\r\n")
        return one * (int(request.get("batch", 5)) - self.missing) + end


class Pieces:
    """A connection whose reads are given."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def read(self) -> bytes:
        return self._pieces.pop(0)


@pytest.fixture
async def fake() -> AsyncIterator[FakeDirectGet]:
    one = FakeDirectGet()
    async with one.serving():
        yield one


async def test_batches_walk_through_the_stream_and_are_shared_by_the_connections(fake: FakeDirectGet) -> None:
    result = await reads.batched_gets([fake.url] * 3, "S", 45, batch=10, seconds=0.1)
    assert result.messages == 10 * len(fake.asked) > 0 and result.latencies_ms
    starts = [request["seq"] for request in fake.asked]
    assert set(starts) == {1, 11, 21, 31}
    assert abs(starts.count(1) - starts.count(31)) <= 6, "all connections take from one sequence of pages"


async def test_wildcard_batches_begin_all_over_the_stream(fake: FakeDirectGet) -> None:
    result = await reads.wildcard_batches([fake.url], "S", "b.*.3", 1000, batch=7, seconds=0.05)
    assert result.messages == 7 * len(fake.asked) > 0
    assert {request["next_by_subj"] for request in fake.asked} == {"b.*.3"}
    starts = {request["seq"] for request in fake.asked}
    assert len(starts) > 5 and starts <= set(range(1, 1001))


async def test_multi_last_asks_for_another_filter_each_time(fake: FakeDirectGet) -> None:
    result = await reads.multi_last([fake.url], "S", lambda n: b"s.*.%d" % n, 5, seconds=0.05)
    assert result.messages == 5 * len(fake.asked) > 0
    assert [request["multi_last"] for request in fake.asked] == [[f"s.*.{n}"] for n in range(len(fake.asked))]


async def test_a_reply_that_is_cut_short_is_an_error(fake: FakeDirectGet) -> None:
    fake.missing = 1
    with pytest.raises(ClientError, match="were expected"):
        await reads.batched_gets([fake.url], "S", 45, batch=10, seconds=0.05)


async def test_publish_many_takes_the_subjects_given(fake: FakeDirectGet) -> None:
    result = await reads.publish_many(fake.url, lambda n: b"s.%d" % (n % 7), 100, window=9)
    assert result.messages == 100
    assert fake.subjects == [b"s.%d" % (n % 7) for n in range(100)]


@pytest.mark.parametrize("cut", range(1, 90))
def test_messages_and_ends_are_counted_wherever_a_read_is_cut(cut: int) -> None:
    one = msg(b"r", b"payload" + MARK, b"NATS/1.0\r\nNats-Num-Pending: 1\r\n\r\n")
    data = one + msg(b"r", b"", reads.EOB + b"\r\n\r\n")
    wire = Pieces([data[:cut], data[cut:]])
    window = reads.Replies(wire, 1, reads.EOB, lambda _lo, _hi: b"")  # type: ignore[arg-type]
    window.take(0.0)
    window.take(0.0)
    assert (window.messages, window.answered) == (1, 1)
