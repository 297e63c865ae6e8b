"""A publisher with a rate."""

from __future__ import annotations

import asyncio
import threading
import time

from bench.loads import ACK, payload_of
from bench.result import CpuWatch, LoadResult
from bench.wire import Wire
from testkit.client import ClientError, render_publish

TICK = 0.01
"""Seconds from one write to the next."""
MOST = 1000
"""Messages of one write: a publisher that was held up does not publish all that it missed at once."""


async def paced(
    url: str, subject: str, rate: float, seconds: float, pids: dict[str, int] | None = None,
    stop: threading.Event | None = None,
) -> LoadResult:  # fmt: skip
    """Publishes `rate` messages of 128 B a second, in writes that are TICK apart; each write waits for the acks of the
    one before. Where the server is slower, the result's rate is lower. Raises ClientError."""
    return await asyncio.to_thread(_paced, url, subject, rate, seconds, pids or {}, stop or threading.Event())


def _paced(
    url: str, subject: str, rate: float, seconds: float, pids: dict[str, int], stop: threading.Event
) -> LoadResult:  # fmt: skip
    with Wire(url) as wire:
        frame = render_publish(subject, payload_of(128), wire.inbox + b".a")
        cpu, start = CpuWatch(pids), time.perf_counter()
        sent, missed = 0, 0
        while not stop.is_set() and (spent := time.perf_counter() - start) < seconds:
            due = int(spent * rate) - sent - missed
            count = min(due, MOST)
            missed += due - count
            if count > 0:
                wire.send(frame * count)
                _acks(wire, count)
                sent += count
            stop.wait(max(0.0, TICK - (time.perf_counter() - start - spent)))
        return LoadResult(f"publish {rate:g}/s", sent, time.perf_counter() - start, [], cpu.read())


def _acks(wire: Wire, count: int) -> None:
    """Takes so many acks. Raises ClientError for another answer."""
    tail = b""
    while count > 0:
        data = tail + wire.read()
        if b'"error"' in data or b"NATS/1.0 503" in data:
            raise ClientError(f"error answer: {data[:300]!r}")
        count -= data.count(ACK)
        tail = data[-len(ACK) + 1 :]
