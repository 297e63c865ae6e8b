"""The loads of long replies against a small in-process server: what came is counted, too little of it is an error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest

from bench import reads
from bench.loads import MARK
from testkit.client import ClientError

PUB = re.compile(rb"PUB (\S+) (\S+) (\d+)\r\n")


class FakeDirectGet:
    """Answers with as many messages as were asked for (multi_last: 5), less `missing`, in odd splits."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.subjects: list[bytes] = []
        self.missing = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true}\r\n')
        buffer = b""
        try:
            while data := await reader.read(1 << 20):
                writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
                buffer += data
                out, buffer = self.answer(buffer)
                for at in range(0, len(out), 777):
                    writer.write(out[at : at + 777])
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def answer(self, buffer: bytes) -> tuple[bytes, bytes]:
        out, at = b"", 0
        while match := PUB.search(buffer, at):
            end = match.end() + int(match[3]) + 2
            if end > len(buffer):
                break
            at = end
            if not match[1].startswith(b"$JS.API.DIRECT.GET."):
                self.subjects.append(match[1])
                ack = b'{"stream":"S","seq":%d}' % len(self.subjects)
                out += b"MSG %b 1 %d\r\n%b\r\n" % (match[2], len(ack), ack)
                continue
            request = json.loads(buffer[match.end() : end - 2])
            self.asked.append(request)
            head, body = b"NATS/1.0\r\nNats-Num-Pending: 1\r\n\r\n", b"payload" + MARK
            one = b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (match[2], len(head), len(head) + len(body), head, body)
            eob = reads.EOB + b"\r\nNats-Num-Pending: 0\r\n\r\n"
            out += one * (int(request.get("batch", 5)) - self.missing)
            out += b"HMSG %b 1 %d %d\r\n%b\r\n" % (match[2], len(eob), len(eob), eob)
        return out, buffer[at:]


@pytest.fixture
async def fake() -> AsyncIterator[FakeDirectGet]:
    one = FakeDirectGet()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
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
