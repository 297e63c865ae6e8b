"""A server between Spark and the cluster that costs next to nothing and may be far away: for measuring the source by
itself.

Every question to `$JS.API.DIRECT.` goes to the cluster once; a client that asks it again gets the same bytes from
memory. All else goes through. A `Path` makes it a cluster in another place: answers come later, and no faster than one
connection's TCP window allows.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, Parser

READ_SIZE = 1 << 20
PIECE = 64 * 1024
DIRECT = b"$JS.API.DIRECT."
INBOX = b"<inbox>"
"""Stands in recorded answers for where the asker wants them."""


class Path(NamedTuple):
    """The network path of each connection."""

    round_trip: float = 0.0
    """Seconds."""
    window: int = 0
    """Bytes under way at most, 0: no limit."""


class Replay:
    """Use as a context manager: a process of its own. `url` is where to connect instead of `upstream`."""

    def __init__(self, upstream: str) -> None:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._pipe: Pipe = ours
        self._process = multiprocessing.get_context("spawn").Process(target=_run, args=(upstream, theirs), daemon=True)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def over(self, path: Path) -> None:
        """For connections made from now on."""
        self._pipe.send(path)
        self._pipe.recv()

    def __enter__(self) -> Replay:
        self._process.start()
        self.url: str = self._pipe.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.join(10)


def _run(upstream: str, pipe: Pipe) -> None:
    asyncio.run(_Server(upstream, pipe).serve())


class _Server:
    def __init__(self, upstream: str, pipe: Pipe) -> None:
        parts = urlsplit(upstream)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 4222
        self.known: dict[tuple[bytes, bytes], bytes] = {}
        self.path = Path()
        self._pipe = pipe

    async def serve(self) -> None:
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=READ_SIZE)
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._told)
        self._pipe.send(f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        await listener.serve_forever()

    def _told(self) -> None:
        self.path = self._pipe.recv()
        self._pipe.send(None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self.host, self.port, limit=READ_SIZE)
        await _Link(self, reader, writer, *there).run()


class _Link:
    """One connection and the one behind it."""

    def __init__(
        self, server: _Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        their_reader: asyncio.StreamReader, their_writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._known, self._path = server.known, server.path
        self._loop = asyncio.get_running_loop()
        self._free = 0.0
        """The moment when everything that was said so far has arrived."""
        self._reader, self._writer = reader, writer
        self._their_reader, self._their_writer = their_reader, their_writer
        self._recording: dict[bytes, tuple[tuple[bytes, bytes], list[bytes]]] = {}
        """Subject of an answer -> the question, and the answers to it."""

    async def run(self) -> None:
        pumps = [asyncio.ensure_future(self._questions()), asyncio.ensure_future(self._answers())]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._writer.close()
        self._their_writer.close()

    def _say(self, data: bytes) -> None:
        path = self._path
        if not path.round_trip:
            self._writer.write(data)
            return
        self._free = max(self._free, self._loop.time() + path.round_trip)
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            if path.window:
                self._free += len(piece) * path.round_trip / path.window
            self._loop.call_at(self._free, self._writer.write, piece)

    async def _questions(self) -> None:
        parser = Parser()
        while data := await self._reader.read(READ_SIZE):
            for kind, a, b, c, d in parser.feed(data):
                if kind == PUB and a.startswith(DIRECT) and (known := self._known.get((a, d))):
                    self._say(known.replace(INBOX, b))
                    continue
                if kind == PUB and a.startswith(DIRECT):
                    self._recording[b] = (a, d), []
                self._their_writer.write(_encode(kind, a, b, c, d))

    async def _answers(self) -> None:
        while line := await self._their_reader.readline():
            if not line.startswith((b"MSG ", b"HMSG ")):
                self._say(line)
                continue
            words = line.split()
            body = await self._their_reader.readexactly(int(words[-1]) + 2)
            self._say(line + body)
            if found := self._recording.get(words[1]):
                key, frames = found
                frames.append(line.replace(words[1], INBOX, 1) + body)
                if b"\nNats-Sequence: " not in body:  # the end of the answer
                    self._known[key] = b"".join(frames)
                    del self._recording[words[1]]


def _encode(kind: int, a: bytes, b: bytes, c: bytes, d: bytes) -> bytes:
    if kind == PUB and c:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (a, b, len(c), len(c) + len(d), c, d)
    if kind == PUB:
        return b"PUB %b %b %d\r\n%b\r\n" % (a, b, len(d), d)
    if kind == SUB:
        return b"SUB %b %b %b\r\n" % (a, b, c)
    return {CONNECT: b"CONNECT %b\r\n" % a, PING: b"PING\r\n", PONG: b"PONG\r\n"}[kind]
