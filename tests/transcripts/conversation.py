r"""Golden transcripts: what a client writes and what it must read, as text files that run against any NATS server.

    @ max_payload 1024          server option
    # comment
    > PUB foo 2                 client line, CRLF is added
    >> PING\n                   the same with Python escapes and no CRLF added
    < MSG foo 1 2               expected line, byte for byte without its CRLF
    << +OK\r\n                  expected bytes, with Python escapes
    <~ INFO .*"headers":true.*  expected line as a regular expression
    = closed                    the server closes, and writes nothing before it does
    b> SUB foo 1                a second connection, opened when its name first occurs
    b< MSG foo 1 2

Every connection gets the server's first INFO, which is read and dropped unless the transcript expects it. A PING that a
server sends of its own accord is skipped.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

_LINE = re.compile(r"^(?P<who>[a-z]?)(?P<what>>>|>|<<|<~|<|=)(?: (?P<text>.*))?$")
PATIENCE = 5.0


@dataclass
class Step:
    number: int
    who: str
    what: str
    text: str


@dataclass
class Transcript:
    name: str
    options: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def load(path: Path) -> Transcript:
    transcript = Transcript(path.stem)
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("@"):
            key, _, value = line[1:].strip().partition(" ")
            transcript.options[key] = value.strip()
            continue
        match = _LINE.match(line)
        assert match, f"{path.name}:{number}: not a transcript line: {line}"
        transcript.steps.append(Step(number, match["who"], match["what"], match["text"] or ""))
    assert transcript.steps, f"{path.name} is empty"
    return transcript


def _unescape(text: str) -> bytes:
    return text.encode().decode("unicode_escape").encode("latin-1")


class Line:
    """One connection of a conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._pushed: bytes | None = None

    def push(self, line: bytes) -> None:
        self._pushed = line

    async def line(self) -> bytes:
        if self._pushed is not None:
            line, self._pushed = self._pushed, None
            return line
        while True:
            line = await asyncio.wait_for(self._reader.readline(), PATIENCE)
            if line != b"PING\r\n":
                return line

    async def exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(size), PATIENCE)

    async def rest(self) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""


async def play(transcript: Transcript, host: str, port: int) -> None:
    """Runs the conversation; raises AssertionError at the first line that differs."""
    lines: dict[str, Line] = {}
    try:
        for step in transcript.steps:
            where = f"{transcript.name}:{step.number}"
            if step.who not in lines:
                reader, writer = await asyncio.open_connection(host, port)
                line = lines[step.who] = Line(reader, writer)
                info = await line.line()
                assert info.startswith(b"INFO {"), where
                if step.what.startswith("<") and step.text.startswith("INFO"):
                    line.push(info)
            await _step(lines[step.who], step, where)
    finally:
        for line in lines.values():
            line.writer.close()


async def _step(line: Line, step: Step, where: str) -> None:
    text = step.text
    if step.what == ">":
        line.writer.write(text.encode() + b"\r\n")
    elif step.what == ">>":
        line.writer.write(_unescape(text))
    elif step.what == "<<":
        wanted = _unescape(text)
        try:
            got = await line.exactly(len(wanted))
        except asyncio.IncompleteReadError as error:
            got = error.partial
        assert got == wanted, f"{where}: {got!r} != {wanted!r}"
    elif step.what == "=":
        assert text == "closed", f"{where}: = {text}"
        rest = await line.rest()
        assert rest == b"", f"{where}: expected the end, got {rest!r}"
    else:
        try:
            got = await line.line()
        except TimeoutError:
            raise AssertionError(f"{where}: nothing came, expected {text}") from None
        shown = got.removesuffix(b"\r\n").decode()
        if step.what == "<~":
            assert re.fullmatch(text, shown), f"{where}: {shown!r} does not match {text!r}"
        else:
            assert got == text.encode() + b"\r\n", f"{where}: {got!r}, expected {text!r}"
