"""Direct Gets on a cluster that runs somewhere: each server alone, then all at once, from client processes here."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from bench.loads import SIGN
from bench.reads import publish_many
from bench.window import Window, cycle, pump
from bench.wire import STALL, Wire
from testkit.client import Client, ClientError, create_stream, render_publish
from testkit.harness import eventually

STREAM = "BENCH_SCALING"
KEYS = 1000
SAMPLE = 200
"""Requests to each server that ask who answers."""
STARTED_WITHIN = 60.0
BUSY = 0.9
"""The share of a core from which on a client process is the limit, or near it."""


class Part(NamedTuple):
    """The work of one client process."""

    counts: list[int]
    """Answers of each server."""
    seconds: float
    busy: float
    """The share of a core that it took."""
    error: str = ""


@dataclass(slots=True)
class Phase:
    """One load: rates by URL, and the busiest client."""

    rates: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.rates.values())


@dataclass(slots=True)
class Found:
    """All of a run, in messages per second."""

    alone: dict[str, Phase] = field(default_factory=dict)
    together: Phase = field(default_factory=Phase)
    answered: dict[str, Counter[str]] = field(default_factory=dict)
    """By URL: name and role of who answered, of SAMPLE requests."""

    @property
    def ratio(self) -> float:
        """All at once against the mean of one alone."""
        return self.together.total / (sum(phase.total for phase in self.alone.values()) / len(self.alone))

    def table(self) -> str:
        lines = ["| server | alone, reads/s | with the others, reads/s | who answered |", "|---|---:|---:|---|"]
        for number, (url, phase) in enumerate(self.alone.items(), 1):
            who = ", ".join(f"{name} {count / SAMPLE:.0%}" for name, count in self.answered[url].most_common())
            server = f"{number}: {url.rpartition('@')[2].removeprefix('nats://')}"
            lines.append(f"| {server} | {phase.total:,.0f} | {self.together.rates[url]:,.0f} | {who} |")
        lines += ["", f"All at once {self.together.total:,.0f} reads/s, {self.ratio:.2f} times a server alone."]
        busiest = max(phase.busy for phase in (*self.alone.values(), self.together))
        if busiest >= BUSY:
            lines.append(f"The clients are the limit: one took {busiest:.0%} of a core. Use more (`--clients`).")
        return "\n".join(lines)


def _client(
    urls: list[str], number: int, window: int, seconds: float, start: Barrier, done: Queue[Part]
) -> None:  # fmt: skip
    """A process: one connection to each server, `window` requests in flight on each."""
    wires: list[Wire] = []
    try:
        wires = [Wire(url) for url in urls]
        windows = []
        for wire in wires:
            bodies = (b'{"last_by_subj":"%b"}' % subject((number + n) * 7919 % KEYS) for n in range(KEYS))
            frames = [render_publish(f"$JS.API.DIRECT.GET.{STREAM}", body, wire.inbox + b".a") for body in bodies]
            windows.append(Window(wire, window, SIGN, cycle(frames)))
        start.wait(STARTED_WITHIN)
        used = time.thread_time()
        spent = pump(windows, seconds)
        part = Part([one.answered for one in windows], spent, (time.thread_time() - used) / spent)
    except (ClientError, OSError, RuntimeError) as error:  # BrokenBarrierError is one: another client has failed
        start.abort()
        part = Part([], 0.0, 0.0, f"{type(error).__name__}: {error}")
    finally:
        for wire in wires:
            wire.close()
    done.put(part)


def subject(number: int) -> bytes:
    return b"%b.%d" % (STREAM.lower().encode(), number)


def load(urls: Sequence[str], clients: int, window: int, seconds: float) -> Phase:
    """One load by `clients` processes. Raises ClientError."""
    context = multiprocessing.get_context("spawn")  # a fork would have this process's loop and threads
    start: Barrier = context.Barrier(clients)
    done: Queue[Part] = context.Queue()
    processes = [
        context.Process(target=_client, args=(list(urls), number, window, seconds, start, done), daemon=True)
        for number in range(clients)
    ]
    for process in processes:
        process.start()
    try:
        parts = [done.get(timeout=STARTED_WITHIN + seconds + STALL) for _ in processes]
    except queue.Empty:
        for process in processes:
            process.kill()
        raise ClientError("a client process says nothing") from None
    for process in processes:
        process.join()
    if errors := sorted(part.error for part in parts if part.error):
        raise ClientError(next((one for one in errors if not one.startswith("BrokenBarrier")), errors[0]))
    rates = {url: sum(part.counts[at] / part.seconds for part in parts) for at, url in enumerate(urls)}
    return Phase(rates, max(part.busy for part in parts))


async def who_answers(url: str, body: bytes) -> Counter[str]:
    """Names and roles of those that answered SAMPLE requests. Raises ClientError, OSError."""
    found: Counter[str] = Counter()
    async with await Client.connect(url) as client:
        for _ in range(SAMPLE):
            answer = await client.request(f"$JS.API.DIRECT.GET.{STREAM}", body)
            if answer.get("Nats-Answered-By") is None:
                raise ClientError(f"{url} does not say who answers: {answer.header[:200]!r}")
            found[f"{answer.get('Nats-Answered-By')} ({answer.get('Nats-Answered-As')})"] += 1
    return found


async def run(urls: Sequence[str], *, clients: int, replicas: int, messages: int, window: int, seconds: float) -> Found:
    """Makes a stream, measures, and removes it. Raises ClientError, OSError, HarnessError."""
    found = Found()
    async with await Client.connect(urls[0]) as client:
        await create_stream(client, STREAM, [f"{STREAM.lower()}.*"], replicas)
        try:
            await publish_many(urls[0], lambda n: subject(n % KEYS), messages)
            await _followed(client, replicas)
            for url in urls:
                found.answered[url] = await who_answers(url, b'{"last_by_subj":"%b","read_info":true}' % subject(0))
            for url in urls:
                found.alone[url] = await asyncio.to_thread(load, [url], clients, window, seconds)
            found.together = await asyncio.to_thread(load, urls, clients, window, seconds)
        finally:
            await client.api(f"STREAM.DELETE.{STREAM}")
    return found


async def _followed(client: Client, replicas: int) -> None:
    """Until all replicas have all messages."""

    async def current() -> bool:
        peers = (await client.api(f"STREAM.INFO.{STREAM}"))["cluster"].get("replicas") or []
        return len(peers) == replicas - 1 and all(peer["current"] and not peer.get("lag") for peer in peers)

    await eventually(current, STARTED_WITHIN, f"not all replicas of {STREAM} follow", every=0.2)
