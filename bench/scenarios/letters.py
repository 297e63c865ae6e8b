"""The search of an owner for dead letters that may be stored already, in a stream with very many messages
(docs/consumers.md).

    python -m bench letters [--messages 1000000] [--letters 1] [--one-by-one] [--replicas 3] [--folder /var/tmp]

Three nodes. `--letters` messages are given up while no stream takes their letters; then a stream gets `--messages`
messages of the letters' own subject and size, and the consumer's letters go there: each one has to be looked at. The
last line is JSON: `seconds` of the search, `per_second`, messages looked at; `cpu`, seconds of processor time of the
nodes; `acks_ms`, median and worst of a client of the owner that publishes to another stream, one message at a time,
before the search and during it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bench.result import CpuWatch
from bench.window import Window, open_wires, run_windows
from testkit.client import Client, create_stream, render_publish
from testkit.harness import ProcessCluster, eventually

LIMIT = 3600.0
WINDOW_NS = 20_000_000_000
"""Long enough for an answer to be final; the stream keeps the ids that came meanwhile."""
SUBJECT = "dead.x"
PART = 50_000
WISH = {"on_term": True}


class Beside:
    """A client that publishes to another stream, one message at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.taken: list[float] = []

    async def run(self) -> None:
        while True:
            begun = time.perf_counter()
            await self._client.request("beside", b"x")
            self.taken.append(1000 * (time.perf_counter() - begun))
            await asyncio.sleep(0.002)

    def take(self) -> list[float]:
        taken, self.taken = self.taken, []
        return [round(statistics.median(taken), 1), round(max(taken), 1)]


def frames(reply: bytes, number: int) -> Iterator[bytes]:
    """Publishes that look like letters of another consumer, counted from `number`."""
    fields = {"Stream": "WORK", "Consumer": "other", "Sequence": "1", "Time": "2026-11-29T12:00:00.123456789Z"}
    fields |= {"Reason": "max_deliver", "Deliveries": "5", "Hops": "1", "Subject": "work.x"}
    headers = {f"Nats-Dead-Letter-{name}": value for name, value in fields.items()}
    while True:
        number += 1
        one = {"Nats-Msg-Id": f"dl:WORK:other:1790000000000000000:{number}:1790000000000000000"}
        yield render_publish(SUBJECT, b"x" * 128, reply, one | headers)


async def info(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.api("CONSUMER.INFO.WORK.C", within=30.0))["dead_letters"]
    return found


async def given_up(client: Client, count: int) -> dict[str, Any]:
    """A consumer whose letters no stream takes."""
    await create_stream(client, "WORK", ["work.x"], 3)
    config = {"durable_name": "C", "ack_policy": "explicit", "max_deliver": 5}
    config |= {"max_ack_pending": count, "dead_letter": {"subject": "nowhere.x", **WISH}}
    await client.api("CONSUMER.CREATE.WORK.C", {"stream_name": "WORK", "config": config})
    for _ in range(count):
        await client.request("work.x", b"x" * 128)
    client.subscribe("taken", lambda msg: client.publish(msg.reply.decode(), b"+TERM"))
    client.publish("$JS.API.CONSUMER.MSG.NEXT.WORK.C", json.dumps({"batch": count}).encode(), b"taken")

    async def waits() -> bool:
        return bool((await info(client))["waiting"] == count)

    await eventually(waits, 60.0, "they are not given up")
    return config


async def fill(url: str, messages: int) -> None:
    """In parts: a connection that answers no PING is closed after a while."""
    for start in range(0, messages, PART):
        (wire,) = await open_wires([url])
        render = partial(_some, frames(wire.inbox + b".a", start))
        window = Window(wire, 500, b'"seq":', render, min(PART, messages - start))
        await run_windows("fill", [window], seconds=None)


def _some(made: Iterator[bytes], start: int, end: int) -> bytes:
    return b"".join(islice(made, end - start))


async def measured(nodes: ProcessCluster, args: argparse.Namespace) -> dict[str, Any]:
    async with await nodes[0].connect() as client:
        config = await given_up(client, args.letters)
        full: dict[str, Any] = {
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": args.messages,
        }
        more: dict[str, Any] = {"allow_direct": not args.one_by_one, "duplicate_window": WINDOW_NS}
        await create_stream(client, "DEAD", [SUBJECT], args.replicas, **full, **more)
        begun = time.monotonic()
        await fill((await nodes.stream_leader("DEAD")).url, args.messages)
        print(f"filled in {time.monotonic() - begun:.0f} s", flush=True)
        await create_stream(client, "BESIDE", ["beside"], 1)
        owner = (await client.api("CONSUMER.INFO.WORK.C"))["cluster"]["leader"]
        async with await nodes.node(owner).connect() as near:
            beside = Beside(near)
            task = asyncio.create_task(beside.run())
            await asyncio.sleep(5.0)
            before = beside.take()
            cpu = CpuWatch({node.name: node.pid for node in nodes.nodes})
            begun = time.monotonic()
            config["dead_letter"] = {"subject": SUBJECT, **WISH}
            await client.api("CONSUMER.CREATE.WORK.C", {"stream_name": "WORK", "config": config})

            async def refused() -> bool:
                return "exceeded" in str((await info(client)).get("last_error"))

            await eventually(refused, LIMIT, "the search did not end", every=0.05)
            seconds = time.monotonic() - begun
            spent, during = cpu.read(), beside.take()
            task.cancel()
    return {
        "messages": args.messages, "letters": args.letters, "direct": not args.one_by_one,
        "seconds": round(seconds, 2), "per_second": round(args.messages / seconds),
        "cpu": {name: round(one, 1) for name, one in spent.items()},
        "acks_ms": {"before": before, "during": during},
    }  # fmt: skip


async def run(args: argparse.Namespace) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="jetcluster-letters-", dir=args.folder))
    try:
        async with ProcessCluster(3, root=root) as nodes:
            return await measured(nodes, args)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the stream that is looked through")
    parser.add_argument("--letters", type=int, default=1, help="that are looked for")
    parser.add_argument("--one-by-one", action="store_true", help="the stream has no allow_direct")
    parser.add_argument("--replicas", type=int, default=3, help="of that stream")
    parser.add_argument("--folder", help="where the stores lie meanwhile; a disk, not memory")


def main(arguments: argparse.Namespace) -> None:
    print(json.dumps(asyncio.run(run(arguments))))
