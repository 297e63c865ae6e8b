"""A server as small as it can be, for loads: what is published to it is answered by the test's own rule."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PUB = re.compile(rb"PUB (\S+) (\S+) (\d+)\r\n")


class FakeServer:
    """Answers come in pieces of `piece_bytes`, or in two."""

    piece_bytes = 0

    def __init__(self) -> None:
        self.url = ""
        self.outstanding = 0
        """Messages that came with the last read."""
        self.most_outstanding = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true}\r\n')
        buffer = b""
        try:
            while data := await reader.read(1 << 20):
                writer.write(b"PONG\r\n" * data.count(b"PING\r\n"))
                buffer += data
                out, at, self.outstanding = b"", 0, 0
                while (match := PUB.search(buffer, at)) and (end := match.end() + int(match[3]) + 2) <= len(buffer):
                    at = end
                    self.outstanding += 1
                    out += self.answer(match[1], match[2], buffer[match.end() : end - 2])
                buffer = buffer[at:]
                self.most_outstanding = max(self.most_outstanding, self.outstanding)
                piece = self.piece_bytes or len(out) // 2 + 1
                for at in range(0, len(out), piece):
                    writer.write(out[at : at + piece])
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def answer(self, subject: bytes, reply: bytes, payload: bytes) -> bytes:
        raise NotImplementedError

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield


def msg(reply: bytes, body: bytes, head: bytes = b"", sid: int = 1) -> bytes:
    if head:
        return b"HMSG %b %d %d %d\r\n%b%b\r\n" % (reply, sid, len(head), len(head) + len(body), head, body)
    return b"MSG %b %d %d\r\n%b\r\n" % (reply, sid, len(body), body)
