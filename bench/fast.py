"""The load `js-fast`: one fast-ingest batch (ADR-50) that goes as fast as the stream lets it."""

from __future__ import annotations

import asyncio
import itertools
import time

from bench.loads import payload_of
from bench.result import CpuWatch, LoadResult
from bench.wire import STALL
from testkit.client import Client, ClientError, Msg

_ids = itertools.count(1)


class FastPublisher:
    """A batch on one connection, without gaps. `seq` is the last message sent, `acked` the last one acknowledged."""

    def __init__(self, client: Client, subject: str, *, flow: int = 500, acks_ahead: int = 2) -> None:
        self._client = client
        self._subject = subject.encode()
        self._stem = b"%b.fast%d.%d.fail" % (client.inbox, next(_ids), flow)
        self._acks_ahead = acks_ahead
        self._heard = asyncio.Event()
        self._sid = client.subscribe(f"{self._stem.decode()}.>", self._take)
        self._sent: list[tuple[int, float]] = []
        """(last sequence, when) of what was sent together and is not acknowledged."""
        self.latencies_ms: list[float] = []
        """Latencies of the first ack at or behind each of those, in milliseconds."""
        self.per_ack = 0
        self.seq = 0
        self.acked = 0
        self.end: dict[str, object] | None = None
        """The PubAck."""
        self.trouble = ""

    @property
    def room(self) -> int:
        """Messages that may be sent now."""
        return self.acked + self.per_ack * self._acks_ahead - self.seq

    def send(self, bodies: list[bytes]) -> None:
        frames = []
        for body in bodies:
            self.seq += 1
            frames.append(self._frame(self.seq, 0 if self.seq == 1 else 1, body))
        self._client.write(b"".join(frames))
        self._sent.append((self.seq, time.perf_counter()))

    async def heard(self) -> None:
        """Waits for the next answer. Raises ClientError when it is none of success, TimeoutError."""
        async with asyncio.timeout(STALL):
            await self._heard.wait()
        self._heard.clear()
        if self.trouble:
            raise ClientError(f"fast batch: {self.trouble}")

    async def finish(self) -> int:
        """Ends the batch; the number of its messages. Raises ClientError, TimeoutError."""
        self._client.write(self._frame(self.seq + 1, 3, b""))
        while self.end is None:
            await self.heard()
        self._client.unsubscribe(self._sid)
        count = self.end["count"]
        if count != self.seq:
            raise ClientError(f"fast batch: {count} of {self.seq} messages are stored")
        return self.seq

    def _frame(self, seq: int, operation: int, body: bytes) -> bytes:
        return b"PUB %b %b.%d.%d.$FI %d\r\n%b\r\n" % (self._subject, self._stem, seq, operation, len(body), body)

    def _take(self, msg: Msg) -> None:
        answer = {} if msg.status else msg.json()
        if answer.get("type") == "ack":
            self.acked, self.per_ack = answer["seq"], answer["msgs"]
            now = time.perf_counter()
            while self._sent and self._sent[0][0] <= self.acked:
                self.latencies_ms.append((now - self._sent.pop(0)[1]) * 1e3)
        elif "batch" in answer:
            self.end = answer
        else:
            self.trouble = msg.data.decode(errors="replace") or f"status {msg.status}"
        self._heard.set()


async def fast_publish(
    url: str, subject: str, *, size: int = 128, flow: int = 500, seconds: float = 3.0, count: int | None = None,
    pids: dict[str, int] | None = None,
) -> LoadResult:  # fmt: skip
    """One batch of `count` messages (None: for `seconds`), with two acks outstanding. The stream must allow it.
    Raises ClientError, TimeoutError."""
    body = payload_of(size)
    async with await Client.connect(url) as client:
        load = FastPublisher(client, subject, flow=flow)
        cpu = CpuWatch(pids or {})
        start = time.perf_counter()
        load.send([body])
        await load.heard()
        while (count is None and time.perf_counter() < start + seconds) or (count is not None and load.seq < count):
            room = load.room if count is None else min(load.room, count - load.seq)
            if room > 0:
                load.send([body] * room)
            else:
                await load.heard()
        messages = await load.finish()
        spent = time.perf_counter() - start
        return LoadResult(f"js-fast flow={flow}", messages, spent, load.latencies_ms, cpu.read())
