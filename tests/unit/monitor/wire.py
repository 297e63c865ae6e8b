"""A client on a socket, for the pages about connections."""

from __future__ import annotations

import asyncio
import re

from jetcluster.server.server import Server

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


class Wire:
    """A client by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server, name: str, *lines: bytes) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        await wire.send(
            b'CONNECT {"verbose":false,"name":"%b","lang":"test","version":"1","user":"%b"}' % ((name.encode(),) * 2),
            *lines,
        )
        return wire

    async def send(self, *lines: bytes) -> None:
        self.writer.write(b"".join(line + b"\r\n" for line in (*lines, b"PING")))
        while (await self.reader.readline()) != b"PONG\r\n":
            pass

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
