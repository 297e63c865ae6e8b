"""`Window`: requests in flight on one connection, as many as allowed at any time. All loads with answers are made of
it."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Sequence

from bench.result import CpuWatch, LoadResult
from bench.wire import Wire
from testkit.client import ClientError

Render = Callable[[int, int], bytes]
"""The requests of numbers first..last-1."""
_TROUBLE = (b'"error"', b"\r\nNATS/1.0 4", b"\r\nNATS/1.0 5", b"-ERR")
_LOOKED_AT = 1 << 16
"""Bytes of a read in which errors are looked for: answers of publishes are never longer, and among payloads an error
that is not seen leaves the load without an answer, which ends it as well."""


def cycle(frames: Sequence[bytes]) -> Render:
    """Requests that were rendered before, over and over."""
    count = len(frames)

    def render(first: int, last: int) -> bytes:
        if count == 1:
            return frames[0] * (last - first)
        at, length = first % count, last - first
        if at + length <= count:
            return b"".join(frames[at : at + length])
        return b"".join([frames[(at + n) % count] for n in range(length)])

    return render


class Window:
    """Keeps `window` requests in flight until `limit` of them are sent or the time is over; counts answers in bulk by
    their `mark`."""

    def __init__(self, wire: Wire, window: int, mark: bytes, render: Render, limit: int | None = None) -> None:
        self.wire = wire
        self.window = window
        self.sent = 0
        self.answered = 0
        self.latencies_ms: list[float] = []
        """Milliseconds from a write to the answer of its last request: a sample never flatters."""
        self._limit = 1 << 62 if limit is None else limit
        self._mark = mark
        self._render = render
        self._refill = max(1, window // 5)
        self._tail = b""
        self._writes: list[tuple[int, float]] = []
        self._at = 0

    @property
    def done(self) -> bool:
        return self.answered >= self.sent

    def fill(self) -> None:
        """Sends what there is room for, in portions."""
        room = min(self.window - (self.sent - self.answered), self._limit - self.sent)
        if room < self._refill and self.sent + room < self._limit:
            return
        if room > 0:
            data = self._render(self.sent, self.sent + room)
            self._writes.append((self.sent + room, time.perf_counter()))
            self.sent += room
            self.wire.send(data)

    def take(self, stop_at: float) -> None:
        """Reads once, and sends more unless the time is over. Raises ClientError for an error answer."""
        data = self.wire.read()
        self.count(self._tail + data if self._tail else data)
        now = time.perf_counter()
        writes = self._writes
        while self._at < len(writes) and writes[self._at][0] <= self.answered:
            self.latencies_ms.append((now - writes[self._at][1]) * 1e3)
            self._at += 1
        if now < stop_at:
            self.fill()

    def count(self, data: bytes) -> None:
        """Counts the answers in `data`, which begins with the bytes behind the last one that was counted."""
        head = data if len(data) <= _LOOKED_AT else data[:_LOOKED_AT]
        for sign in _TROUBLE:
            if (found := head.find(sign)) >= 0:
                if b"\r\n" not in data[found:]:  # the rest of its text is still to come
                    data += self.wire.read()
                raise ClientError(f"error answer: {data[max(0, found - 80) : found + 220]!r}")
        self.answered += data.count(self._mark)
        self._tail = self._rest(data, self._mark)

    @staticmethod
    def _rest(data: bytes, mark: bytes) -> bytes:
        """The end of `data` that may be the beginning of a mark."""
        for length in range(min(len(mark) - 1, len(data)), 0, -1):
            if data.endswith(mark[:length]):
                return mark[:length]
        return b""


def pump(windows: Sequence[Window], seconds: float | None) -> float:
    """Runs all at once; returns the seconds until the last answer. Raises ClientError when one fails or stalls."""
    start = time.perf_counter()
    stop_at = float("inf") if seconds is None else start + seconds
    for window in windows:
        window.fill()
    if len(windows) == 1:
        one = windows[0]
        while not one.done:
            one.take(stop_at)
        return time.perf_counter() - start
    waiting = {window.wire.socket.fileno(): window for window in windows if not window.done}
    with select.epoll() as poll:
        for number in waiting:
            poll.register(number, select.EPOLLIN)
        while waiting:
            if not (found := poll.poll(windows[0].wire.stall)):
                raise ClientError("no answer, the load stalls")
            for number, _ in found:
                waiting[number].take(stop_at)
                if waiting[number].done:
                    poll.unregister(number)
                    del waiting[number]
    return time.perf_counter() - start


async def run_windows(
    name: str, windows: Sequence[Window], *, seconds: float | None, pids: dict[str, int] | None = None, each: int = 1
) -> LoadResult:
    """The same in a thread, as a result that counts `each` messages per answer; closes the connections."""

    def work() -> LoadResult:
        cpu = CpuWatch(pids or {})
        spent = pump(windows, seconds)
        used = cpu.read()
        latencies = [ms for window in windows for ms in window.latencies_ms]
        return LoadResult(name, each * sum(window.answered for window in windows), spent, latencies, used)

    try:
        return await asyncio.to_thread(work)
    finally:
        for window in windows:
            window.wire.close()


async def open_wires(urls: Sequence[str]) -> list[Wire]:
    """One connection to each. Raises ClientError, OSError."""
    return await asyncio.to_thread(lambda: [Wire(url) for url in urls])
