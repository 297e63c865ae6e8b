"""The load `js-fast` against a small in-process server that acks every `per_ack` messages of a batch."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bench.fast import fast_publish
from testkit.client import ClientError
from tests.unit.bench.fake_server import FakeServer, msg


class FakeStream(FakeServer):
    def __init__(self) -> None:
        super().__init__()
        self.per_ack = 7
        self.stored = 0
        self.refuse_at = 0
        self.lose = 0
        """Messages that the final answer lacks."""

    def answer(self, subject: bytes, reply: bytes, payload: bytes) -> bytes:
        body = self.take(*map(int, reply.split(b".")[-3:-1]))
        return msg(reply, body, sid=2) if body else b""

    def take(self, seq: int, operation: int) -> bytes:
        if operation == 3:
            self.outstanding -= 1
            return b'{"stream":"S","seq":%d,"batch":"b","count":%d}' % (self.stored, self.stored - self.lose)
        assert seq == self.stored + 1
        self.stored = seq
        if seq == self.refuse_at:
            return b'{"type":"err","seq":%d,"error":{"code":400}}' % seq
        if seq == 1:
            return b'{"type":"ack","seq":0,"msgs":%d}' % self.per_ack
        return b"" if seq % self.per_ack else b'{"type":"ack","seq":%d,"msgs":%d}' % (seq, self.per_ack)


@pytest.fixture
async def fake() -> AsyncIterator[FakeStream]:
    stream = FakeStream()
    async with stream.serving():
        yield stream


async def test_every_message_is_counted_and_no_more_are_ahead_than_allowed(fake: FakeStream) -> None:
    result = await fast_publish(fake.url, "s", count=1000)
    assert result.messages == fake.stored == 1000
    assert fake.most_outstanding <= 2 * fake.per_ack
    assert result.latencies_ms


async def test_for_a_time(fake: FakeStream) -> None:
    result = await fast_publish(fake.url, "s", seconds=0.1)
    assert result.messages == fake.stored > 1


async def test_a_refusal_and_a_loss_end_the_load(fake: FakeStream) -> None:
    fake.refuse_at = 50
    with pytest.raises(ClientError, match="err"):
        await fast_publish(fake.url, "s", count=1000)
    fake.refuse_at, fake.stored, fake.lose = 0, 0, 1
    with pytest.raises(ClientError, match="99 of 100"):
        await fast_publish(fake.url, "s", count=100)
