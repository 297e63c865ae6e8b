"""A cluster of three servers grows to six and shrinks to three again, while all of its streams are written to.

    python -m bench balance [--streams 200] [--pause 1.0] [--folder /var/tmp]

Each stream has three replicas and one publisher, which sends a message, waits for its ack (and sends it again with the
same id after 0.4 s without), and rests for `--pause` seconds. Three servers are added, and get their share of replicas
and leaders by themselves; then they are decommissioned. The last line is JSON, for each part:

`seconds` it took; `acked` messages; `longest`, the longest time from a message's first sending to its ack, with the
stream; `over_1s`, how many took longer than a second, and `over_100ms`; `unacked`, messages that have waited for longer
than that and still do at its end; `moves` for balance, by kind; `leaders` and `replicas` per server at its end.

The exit code is 0 where no message has waited for longer than a second, 1 where one has, and 2 where it did not come to
its end, such as when the servers do not carry alike within an hour: `failed` says why, beside the parts before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually, find_server, free_ports

CONFIG = """accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  $SYS { users: [{user: s, password: s}] }
}
no_auth_user: a
"""
AGAIN_SECONDS = 0.4
LIMIT = 3600.0
KINDS = ("leader", "consumer", "replica")


@dataclass
class Part:
    """Figures of the time between two changes of the cluster."""

    began: float = field(default_factory=time.monotonic)
    acked: int = 0
    longest: float = 0.0
    of: str = ""
    waits: list[float] = field(default_factory=list)
    """Those over 100 ms."""

    def note(self, stream: str, seconds: float) -> None:
        self.acked += 1
        if seconds > self.longest:
            self.longest, self.of = seconds, stream
        if seconds > 0.1:
            self.waits.append(seconds)


class Publishers:
    """One for each stream, over one connection."""

    def __init__(self, client: Client, streams: int, pause: float) -> None:
        self.part = Part()
        self._client = client
        self._pause = pause
        self._waiting: dict[str, float] = {}
        """By stream, when the message that is not acked yet was first sent."""
        self._tasks = [asyncio.create_task(self._publish(f"S{number}")) for number in range(streams)]

    async def _publish(self, stream: str) -> None:
        number = 0
        await asyncio.sleep(self._pause * hash(stream) % 97 / 97)
        while True:
            number += 1
            self._waiting[stream] = began = time.monotonic()
            while not await self._acked(stream, number):
                pass
            del self._waiting[stream]
            self.part.note(stream, time.monotonic() - began)
            await asyncio.sleep(self._pause)

    async def _acked(self, stream: str, number: int) -> bool:
        try:
            answer = await self._client.request(
                stream.lower(), b"x" * 100, AGAIN_SECONDS, {"Nats-Msg-Id": f"{stream}-{number}"}
            )
        except TimeoutError:
            return False
        if answer.status or "seq" not in answer.json():
            await asyncio.sleep(0.01)
            return False
        return True

    def unacked(self) -> int:
        """Messages that have waited for longer than a second. Raises what has ended a publisher."""
        for task in self._tasks:
            if task.done():
                task.result()
        return sum(time.monotonic() - began > 1 for began in self._waiting.values())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def added(cluster: ProcessCluster, number: int) -> Node:
    """A server that knows the first three."""
    port, route, http = free_ports(3)
    folder = cluster.root / f"n{number}"
    command = find_server("jetcluster")
    assert command is not None
    node = Node(f"n{number}", command, folder, port, [])
    routes = ",".join(f"nats://127.0.0.1:{one.cluster_port}" for one in cluster.nodes[:3])
    (folder / "server.conf").write_text(CONFIG)
    node.cluster_port, node.http_port = route, http
    node.args = ["-a", "127.0.0.1", "-p", str(port), "-n", node.name, "-js", "-sd", str(node.store), "-m", str(http),
                 "--cluster", f"nats://127.0.0.1:{route}", "--cluster_name", "C", "--routes", routes,
                 "-c", str(folder / "server.conf")]  # fmt: skip
    return node


async def carried(nodes: list[Node]) -> dict[str, tuple[int, int]]:
    """(leaders, replicas) of each server."""
    found = {}
    for node in nodes:
        text = await metrics(node)
        found[node.name] = int(text["jetcluster_streams_led"]), replicas_of(text)
    return found


async def metrics(node: Node) -> dict[str, float]:
    """Values by series; empty while the server does not answer."""

    def read() -> dict[str, float]:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics?consumers=0", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    return await asyncio.to_thread(read)


def replicas_of(text: dict[str, float]) -> int:
    return sum(name.startswith("jetcluster_replica_unapplied_entries{") for name in text)


def moves(nodes: list[Node]) -> Counter[str]:
    """Lines of their logs about moves for balance, by kind."""
    logs = [node.log() for node in nodes]
    return Counter({kind: sum(log.count(f"for balance a {kind} goes") for log in logs) for kind in KINDS})


async def until_even(nodes: list[Node], streams: int, what: str) -> None:
    """Until all carry about the same, and nothing has moved for 20 s."""
    share, led = 3 * streams / len(nodes), streams / len(nodes)
    quiet = time.monotonic()
    before = moves(nodes)

    async def even() -> bool:
        nonlocal quiet, before
        now = moves(nodes)
        if now != before:
            before, quiet = now, time.monotonic()
        with contextlib.suppress(OSError, KeyError):
            found = (await carried(nodes)).values()
            print(what, dict(now), list(found), flush=True)
            near = all(
                abs(replicas - share) <= max(min(share / 2, 2), 1) and abs(leaders - led) <= max(led / 2, 1)
                for leaders, replicas in found
            )
            return near and time.monotonic() - quiet > 20
        return False

    await eventually(even, LIMIT, what, every=5.0)


async def decommission(name: str, stay: list[Node]) -> None:
    servers = ",".join(f"nats://s:s@127.0.0.1:{node.port}" for node in stay)
    words = [sys.executable, "-m", "jetcluster", "decommission", name, "--within", "1200", "--server", servers]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"decommission {name}: {output.decode()}")


async def run(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Adds to `result` part by part."""
    root = Path(tempfile.mkdtemp(prefix="jetcluster-balance-", dir=args.folder))
    extra: list[Node] = []
    try:
        async with ProcessCluster(3, root=root, config=CONFIG, monitor=True) as cluster:
            first = cluster.nodes
            async with await first[0].connect() as client:
                for number in range(args.streams):
                    await create_stream(client, f"S{number}", [f"s{number}"], 3)
                load = Publishers(client, args.streams, args.pause)

                async def part(name: str, work: Callable[[], Awaitable[list[Node]]]) -> None:
                    before = moves([*first, *extra])
                    load.part = noted = Part()
                    held = await carried(await work())
                    result[name] = {
                        "seconds": round(time.monotonic() - noted.began), "acked": noted.acked,
                        "longest": [round(noted.longest, 3), noted.of],
                        "over_1s": sum(wait > 1 for wait in noted.waits), "over_100ms": len(noted.waits),
                        "unacked": load.unacked(),
                        "moves": dict(moves([*first, *extra]) - before),
                        "leaders": [one[0] for one in held.values()], "replicas": [one[1] for one in held.values()],
                    }  # fmt: skip
                    print(json.dumps({name: result[name]}), flush=True)

                async def begin() -> list[Node]:
                    await until_even(first, args.streams, "three")
                    return first

                async def grow() -> list[Node]:
                    extra.extend(added(cluster, number) for number in (4, 5, 6))
                    for node in extra:
                        await node.start()
                    await until_even([*first, *extra], args.streams, "six")
                    return [*first, *extra]

                async def shrink() -> list[Node]:
                    for node in extra:
                        await decommission(node.name, first)
                    await until_even(first, args.streams, "three again")
                    return first

                try:
                    await part("three", begin)
                    await part("to_six", grow)
                    await part("to_three", shrink)
                finally:
                    await load.stop()
                    for node in extra:
                        node.kill9()
    finally:
        if not args.keep:
            shutil.rmtree(root, ignore_errors=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two messages of a stream")
    parser.add_argument("--folder", help="where the stores lie meanwhile; a disk, not memory")
    parser.add_argument("--keep", action="store_true", help="leave stores and logs there")


def exit_code(result: dict[str, Any]) -> int:
    if "failed" in result:
        return 2
    return int(any(isinstance(one, dict) and bool(one["over_1s"] or one["unacked"]) for one in result.values()))


def main(arguments: argparse.Namespace) -> int:
    result: dict[str, Any] = {"streams": arguments.streams, "pause": arguments.pause}
    try:
        asyncio.run(run(arguments, result))
    except Exception as error:  # noqa: BLE001 - whatever ends it, what was measured is told
        result["failed"] = str(error) or repr(error)
    print(json.dumps(result))
    return exit_code(result)
