"""The loads against a small in-process server: every answer is counted once, and errors end the run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bench import loads, wire
from testkit.client import ClientError
from tests.unit.bench.fake_server import FakeServer, msg


class FakeJetStream(FakeServer):
    """Acks publishes and answers Direct Gets; `fail_at` answers that publish with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = 0
        self.fail_at = -1
        self.silent = False

    def answer(self, subject: bytes, reply: bytes, payload: bytes) -> bytes:
        if self.silent:
            return b""
        if subject.startswith(b"$JS.API.DIRECT.GET."):
            return msg(reply, b"payload" + loads.MARK, b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n")
        self.seq += 1
        if self.seq == self.fail_at:
            error = b'{"error":{"code":503,"err_code":10008,"description":"no leader"},"stream":"S","seq":0}'
            return msg(reply, error)
        return msg(reply, b'{"stream":"S","seq":%d}' % self.seq)


@pytest.fixture
async def fake() -> AsyncIterator[FakeJetStream]:
    one = FakeJetStream()
    async with one.serving():
        yield one


@pytest.mark.parametrize("window", [1, 7, 500])
async def test_publish_counts_every_ack_and_keeps_the_window(fake: FakeJetStream, window: int) -> None:
    result = await loads.js_publish(fake.url, "s", window=window, count=2000)
    assert result.messages == fake.seq == 2000
    assert fake.most_outstanding <= window
    assert result.latencies_ms
    assert min(result.latencies_ms) >= 0
    assert "client" in result.cpu


async def test_publish_for_a_time_waits_for_the_last_acks(fake: FakeJetStream) -> None:
    result = await loads.js_publish(fake.url, "s", window=50, seconds=0.1)
    assert result.messages == fake.seq > 50
    assert 0.1 <= result.seconds < 2


async def test_an_error_answer_ends_the_load(fake: FakeJetStream) -> None:
    fake.fail_at = 30
    with pytest.raises(ClientError, match="no leader"):
        await loads.js_publish(fake.url, "s", window=10, count=1000)


async def test_silence_ends_the_load(fake: FakeJetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "STALL", 0.05)
    fake.silent = True
    with pytest.raises(ClientError, match="no answer"):
        await loads.js_publish(fake.url, "s", window=10, count=1000)


@pytest.mark.parametrize("window", [1, 2, 256])
async def test_direct_get_spreads_over_the_urls(fake: FakeJetStream, window: int) -> None:
    result = await loads.direct_get([fake.url] * 3, "S", 1, 100, window=window, seconds=0.05)
    assert result.messages >= window
    assert result.summary()["p50_ms"] is not None


@pytest.mark.parametrize("size", [8, 128, 4096])
def test_payloads_have_the_size_and_the_mark(size: int) -> None:
    body = loads.payload_of(size)
    assert len(body) == size
    assert body.endswith(loads.MARK)
    assert b"\r\n" not in body
