"""Publishers that never wait, in a process of their own: `python -m chaos.flooder CONNECTIONS SECONDS SUBJECT URL...`.

Each connection writes whenever the server takes something, and reads nothing but what the protocol asks for. It prints
how many bytes went out."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

PAYLOAD = 512
AT_ONCE = 64
"""Messages per write."""


async def flood(url: str, subject: str) -> int:
    """Until cancelled or cut off."""
    parts = urlsplit(url)
    sent = 0
    with contextlib.suppress(OSError, asyncio.CancelledError):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
        block = b"PUB %b %d\r\n%b\r\n" % (subject.encode(), PAYLOAD, b"f" * PAYLOAD) * AT_ONCE
        answers = asyncio.create_task(_answer(reader, writer))
        try:
            while not writer.is_closing():
                writer.write(block)
                sent += len(block)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            answers.cancel()
            writer.transport.abort()
    return sent


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")


async def main(connections: int, seconds: float, subject: str, urls: Sequence[str]) -> None:
    tasks = [asyncio.create_task(flood(urls[n % len(urls)], subject)) for n in range(connections)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    print(sum(await asyncio.gather(*tasks)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
