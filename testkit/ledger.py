"""Exact accounting over the lean client: what was acked, with which sequence, and what each node's reads return."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from testkit.client import Client, ClientError, Msg, stored_messages
from testkit.harness import ProcessCluster, eventually

_ACK = re.compile(rb'^\{"stream": ?"[^"]+", ?(?:"domain": ?"[^"]+", ?)?"seq": ?(\d+)')


@dataclass
class Ledger:
    """Knowledge of a publisher: payload -> acked sequence; and when acks came in."""

    acked: dict[bytes, int] = field(default_factory=dict)
    duplicates: int = 0
    refused: list[str] = field(default_factory=list)
    unknown: int = 0
    """Sent, never answered: may or may not be in the stream."""
    ack_times: list[float] = field(default_factory=list)

    def take(self, payload: bytes, msg: Msg) -> bool:
        """Books one answer; True for an ack."""
        match = _ACK.match(msg.data)
        if match is None:
            self.refused.append(f"{msg.status or ''} {msg.data.decode(errors='replace')}".strip())
            return False
        seq = int(match[1])
        previous = self.acked.setdefault(payload, seq)
        assert previous == seq, f"{payload!r} acked as {previous} and as {seq}"
        self.duplicates += b'"duplicate"' in msg.data
        self.ack_times.append(time.monotonic())
        return True

    def longest_gap(self) -> float:
        """Seconds between two acks: the outage a publisher saw."""
        return max((b - a for a, b in zip(self.ack_times, self.ack_times[1:], strict=False)), default=0.0)


async def publish_all(
    client: Client, subject: str, payloads: Sequence[bytes], *, window: int = 500, within: float = 60.0,
    dedupe: bool = False,
) -> Ledger:  # fmt: skip
    """Publishes every payload once, `window` outstanding; all must be answered. Raises TimeoutError, ClientError."""
    ledger = Ledger()
    slots = asyncio.Semaphore(window)
    loop = asyncio.get_running_loop()
    left = loop.create_future()
    open_ = len(payloads)

    def done(payload: bytes, future: asyncio.Future[Msg]) -> None:
        nonlocal open_
        slots.release()
        open_ -= 1
        if future.exception() is None:
            ledger.take(payload, future.result())
        else:
            ledger.unknown += 1
        if open_ == 0 and not left.done():
            left.set_result(None)

    async with asyncio.timeout(within):
        for payload in payloads:
            await slots.acquire()
            headers = {"Nats-Msg-Id": payload.decode()} if dedupe else None
            future = client.request_soon(subject, payload, headers)
            future.add_done_callback(functools.partial(done, payload))
        if payloads:
            await left
    return ledger


async def steady_publisher(
    urls: Sequence[str], subject: str, ledger: Ledger, stop: asyncio.Event, *, prefix: str = "m", window: int = 100,
    patience: float = 0.3, pause: float = 0.0, max_refusals: int | None = None,
) -> int:  # fmt: skip
    """Publishes batches of unique payloads with a Nats-Msg-Id until `stop`; returns how many.

    What is not acked is sent again, to the next node if need be, so that every message ends up acked exactly once.

    `max_refusals`: give up re-sending after so many error answers (a full disk), leaving them unacked.
    """
    count = 0
    node = 0
    client: Client | None = None
    pending: list[bytes] = []
    try:
        while not stop.is_set() or pending:
            if not pending:
                pending = [b"%s-%d" % (prefix.encode(), n) for n in range(count, count + window)]
                count += window
            try:
                if client is None or client.closed.is_set():
                    client = await Client.connect(urls[node % len(urls)], within=1.0)
                futures = [client.request_soon(subject, p, {"Nats-Msg-Id": p.decode()}) for p in pending]
                await asyncio.wait(futures, timeout=patience)
            except (ClientError, OSError, TimeoutError):
                node += 1
                client = None
                await asyncio.sleep(0.02)
                continue
            missing = []
            for payload, future in zip(pending, futures, strict=True):
                answered = future.done() and future.exception() is None
                if not answered or not ledger.take(payload, future.result()):
                    missing.append(payload)
            if missing:
                if max_refusals is not None and len(ledger.refused) >= max_refusals:
                    ledger.unknown += len(missing)
                    break
                if len(missing) == len(pending) and not any(f.done() for f in futures):
                    client.close()  # nothing came back: the node hangs, or its stream lost the leader
                    client = None
                    node += 1
                await asyncio.sleep(0.02)
            pending = missing
            if pause:
                await asyncio.sleep(pause)
    finally:
        if client is not None:
            client.close()
    return count


@contextlib.asynccontextmanager
async def load(cluster: ProcessCluster, subject: str = "s", pause: float = 0.0) -> AsyncIterator[Ledger]:
    """A publisher that runs meanwhile; at the end all it sent is acked. `pause`: seconds between its batches."""
    ledger, stop = Ledger(), asyncio.Event()
    task = asyncio.create_task(steady_publisher(cluster.urls, subject, ledger, stop, pause=pause))
    try:
        await until_acked(ledger, 1000)
        yield ledger
    finally:
        stop.set()
        async with asyncio.timeout(40):
            sent = await task
    assert len(ledger.acked) == sent


async def until_acked(ledger: Ledger, more: int, within: float = 30.0) -> float:
    """Seconds until `more` further messages are acked."""
    goal = len(ledger.acked) + more
    return await eventually(lambda: len(ledger.acked) >= goal, within, f"{more} more acks")


async def read_all(
    client: Client, stream: str, *, last: int | None = None, batch: int = 1000, within: float = 60.0
) -> dict[int, bytes]:
    """All messages by batched Direct Get: sequence -> payload. Raises ClientError, TimeoutError."""
    found: dict[int, bytes] = {}
    async with asyncio.timeout(within):
        for msg in await stored_messages(client, stream, last, batch):
            number = int(msg.get("Nats-Sequence") or 0)
            assert number not in found, f"sequence {number} twice"
            found[number] = msg.data
    return found


def check_exactly_once(ledger: Ledger, stored: dict[int, bytes]) -> None:
    """Every acked payload is stored once, under the acked sequence; nothing is stored twice."""
    assert ledger.acked, "nothing was acked: this check would be empty"
    lost = [(p, s) for p, s in ledger.acked.items() if stored.get(s) != p]
    assert not lost, f"{len(lost)} of {len(ledger.acked)} acked messages lost or moved, first: {lost[:3]}"
    payloads = list(stored.values())
    assert len(set(payloads)) == len(payloads), f"{len(payloads) - len(set(payloads))} payloads are stored twice"


async def wait_direct(client: Client, stream: str, last: int, within: float = 20.0) -> None:
    """Waits until this connection's Direct Gets see sequence `last` (a member that is back joins once it is
    current)."""
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(ClientError, TimeoutError):
            msg = await client.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % last, within=2.0)
            if not msg.status:
                return
        assert time.monotonic() < deadline, f"{stream} {last} is not readable after {within:.0f} s"
        await asyncio.sleep(0.05)


async def wait_newest(client: Client, stream: str, within: float = 20.0) -> None:
    """Waits until this connection's Direct Gets see the last message that the leader has now: followers apply a little
    later, and an ack promises nothing about what they answer. At once for a stream that is empty, or gone."""
    try:
        newest = (await client.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": ">"}, within=5.0))["message"]
    except ClientError:
        return
    await wait_direct(client, stream, newest["seq"], within)
