"""A flood: connections that publish without waiting, in a process of their own; and a publisher that waits."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import socket
import sys
import time

from testkit.client import Client, ClientError
from testkit.harness import TOP, Node

PAUSE = 0.05
PATIENCE = 60.0


def flood(ports: list[int], connections: int, seconds: float, size: int, replies: bool, send_buffer: int) -> int:
    """Sends as fast as the servers read; returns the bytes sent. All connections are closed in the end."""
    selector = selectors.DefaultSelector()
    for number in range(connections):
        one = socket.socket()
        if send_buffer:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        one.connect(("127.0.0.1", ports[number % len(ports)]))
        one.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\n')
        one.setblocking(False)
        reply = b"_INBOX.flood.%d " % number if replies else b""
        message = b"PUB flood.%d %s%d\r\n%s\r\n" % (number, reply, size, b"x" * size)
        block = message * max(1, 65536 // len(message))
        selector.register(one, selectors.EVENT_WRITE, [block, 0])
    sent = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            block, at = key.data
            try:
                done = key.fileobj.send(memoryview(block)[at:])  # type: ignore[union-attr]
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(key.fileobj)
                continue
            sent += done
            key.data[1] = (at + done) % len(block)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return sent


async def run_flood(
    nodes: list[Node], connections: int, seconds: float, size: int = 512, replies: bool = False, send_buffer: int = 0
) -> int:
    """Floods `flood.*` of all nodes; returns the bytes sent."""
    ports = ",".join(str(node.port) for node in nodes)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "testkit.flood", ports, str(connections), str(seconds), str(size),
        str(int(replies)), str(send_buffer), stdout=asyncio.subprocess.PIPE, cwd=TOP,
    )  # fmt: skip
    return int((await process.communicate())[0])


class Probe:
    """One publisher that waits, at one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.waits: list[tuple[float, float]] = []
        """(when it was sent, seconds to its ack)."""
        self.acked: dict[int, bytes] = {}
        self.refused: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        async with await Client.connect(self.node.url, name="probe") as client:
            while not stop.is_set():
                payload = b"%s-%d" % (self.node.name.encode(), number)
                number += 1
                start = time.monotonic()
                try:
                    answer = (await client.request(f"flood.probe.{self.node.name}", payload, within=PATIENCE)).json()
                    if "error" in answer:
                        self.refused.append(str(answer["error"])[:100])
                    else:
                        self.acked[int(answer["seq"])] = payload
                except (KeyError, ValueError, ClientError, TimeoutError) as error:
                    self.refused.append(repr(error)[:100])
                self.waits.append((start, time.monotonic() - start))
                await asyncio.sleep(PAUSE)


def _main() -> None:
    os.nice(10)  # a flood comes from elsewhere: it does not take the servers' processors
    ports = [int(port) for port in sys.argv[1].split(",")]
    random.shuffle(ports)
    connections, seconds, size, replies, send_buffer = (float(text) for text in sys.argv[2:])
    print(flood(ports, int(connections), seconds, int(size), bool(replies), int(send_buffer)))


if __name__ == "__main__":
    _main()
