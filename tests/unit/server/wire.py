"""A client that shows every byte: one raw connection, and the frames that came on it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 10.0


@dataclass(slots=True)
class Frame:
    """`verb` is MSG, HMSG, -ERR, +OK, INFO, PING or PONG; `text` the rest of the line, of -ERR without its quotes."""

    verb: str
    text: str = ""
    subject: str = ""
    sid: str = ""
    reply: str = ""
    payload: bytes = b""


@dataclass(slots=True)
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    info: dict[str, Any] = field(default_factory=dict)
    inbox: str = ""
    """Subject of the answers to its requests, for tests that make some."""
    over: bool = False
    """The server has closed the connection."""

    @classmethod
    async def open(
        cls, port: int, *, tls: ssl.SSLContext | None = None, first: bool = False, name: str = "localhost"
    ) -> Wire:
        """`tls` begins after the INFO, or at once with `first`."""
        direct = {"ssl": tls, "server_hostname": name} if tls is not None and first else {}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **direct)
        wire = cls(reader, writer)
        _opened.append(wire)
        frame = await wire.frame()
        if frame is not None and frame.verb == "INFO":
            wire.info = json.loads(frame.text)
        if tls is not None and not first:
            await writer.start_tls(tls, server_hostname=name)
        return wire

    async def log_in(self, **connect: Any) -> list[Frame]:
        """Sends CONNECT and PING; returns all that came up to the PONG, or to the end of the connection."""
        told = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 0, **connect}
        self.send(f"CONNECT {json.dumps(told)}")
        return await self.settle()

    def send(self, *lines: str | bytes) -> None:
        for line in lines:
            self.writer.write(line.encode() + b"\r\n" if isinstance(line, str) else line + b"\r\n")

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        self.send(f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}", payload)

    async def frame(self) -> Frame | None:
        """None at the end of the connection."""
        try:
            line = await asyncio.wait_for(self.reader.readline(), PATIENCE)
        except (ConnectionError, ssl.SSLError):
            line = b""
        if not line.endswith(b"\n"):
            self.over = True
            return None
        verb, _, rest = line.decode("utf-8", "surrogateescape").strip().partition(" ")
        rest = rest.strip()
        if verb in ("MSG", "HMSG"):
            parts = rest.split(" ")
            size = int(parts[-1])
            parts = parts[: -2 if verb == "HMSG" else -1]
            payload = (await self.reader.readexactly(size + 2))[:-2]
            return Frame(verb, rest, parts[0], parts[1], parts[2] if len(parts) > 2 else "", payload)
        if verb == "PING":
            self.send("PONG")
        return Frame(verb, rest.strip("'") if verb == "-ERR" else rest)

    async def settle(self) -> list[Frame]:
        """All frames up to the PONG of a PING that is sent now, or to the end."""
        found: list[Frame] = []
        try:
            self.send("PING")
        except ConnectionError:
            self.over = True
        while (frame := await self.frame()) is not None and frame.verb != "PONG":
            if frame.verb != "PING":
                found.append(frame)
        return found

    async def ask(self, *lines: str | bytes) -> list[Frame]:
        self.send(*lines)
        return await self.settle()

    async def to_the_end(self) -> list[Frame]:
        """All frames until the server closes the connection."""
        found: list[Frame] = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass


def errors(frames: Iterable[Frame]) -> list[str]:
    """Texts of -ERR."""
    return [frame.text for frame in frames if frame.verb == "-ERR"]


def messages(frames: Iterable[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.verb in ("MSG", "HMSG")]


_opened: list[Wire] = []


async def until_end(wire: Wire) -> list[str]:
    """Errors up to the end of the connection."""
    frames = []
    while (frame := await wire.frame()) is not None:
        frames.append(frame)
    return errors(frames)


async def close_all() -> None:
    """Closes the connections that a test has opened: to be called at its end."""
    while _opened:
        await _opened.pop().close()
