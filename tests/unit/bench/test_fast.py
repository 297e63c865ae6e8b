"""The load `js-fast` against a small in-process server that acks every `per_ack` messages of a batch."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from bench.fast import fast_publish
from testkit.client import ClientError

PUB = re.compile(rb"PUB (\S+) (\S+) (\d+)\r\n")


class FakeStream:
    def __init__(self) -> None:
        self.per_ack = 7
        self.stored = 0
        self.most_ahead = 0
        self.refuse_at = 0
        self.lose = 0
        """Messages that the final answer lacks."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true}\r\n')
        buffer = b""
        while data := await reader.read(1 << 20):
            writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
            buffer += data
            told = 0
            while found := PUB.search(buffer):
                end = found.end() + int(found[3]) + 2
                if len(buffer) < end:
                    break
                buffer = buffer[end:]
                seq, operation = map(int, found[2].split(b".")[-3:-1])
                told += operation < 3
                for body in self.take(seq, operation):
                    writer.write(b"MSG %b 2 %d\r\n%b\r\n" % (found[2], len(body), body))
            self.most_ahead = max(self.most_ahead, told)
        writer.close()

    def take(self, seq: int, operation: int) -> list[bytes]:
        if operation == 3:
            return [b'{"stream":"S","seq":%d,"batch":"b","count":%d}' % (self.stored, self.stored - self.lose)]
        assert seq == self.stored + 1
        self.stored = seq
        if seq == self.refuse_at:
            return [b'{"type":"err","seq":%d,"error":{"code":400}}' % seq]
        if seq == 1:
            return [b'{"type":"ack","seq":0,"msgs":%d}' % self.per_ack]
        return [] if seq % self.per_ack else [b'{"type":"ack","seq":%d,"msgs":%d}' % (seq, self.per_ack)]


@pytest.fixture
async def fake() -> AsyncIterator[FakeStream]:
    stream = FakeStream()
    server = await asyncio.start_server(stream.serve, "127.0.0.1", 0)
    stream.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield stream
    server.close()


async def test_every_message_is_counted_and_no_more_are_ahead_than_allowed(fake: FakeStream) -> None:
    result = await fast_publish(fake.url, "s", count=1000)
    assert result.messages == fake.stored == 1000
    assert fake.most_ahead <= 2 * fake.per_ack
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
