"""Sans-I/O parser of a client's commands: bytes in, a list of commands out. Its base is shared with the parser of leaf
links.

One pass over the complete commands of a read, or of a portion of it, on `bytes.find`, `split` and slices.
The result does not depend on where the input was split. Errors are nats-server's: with a text, or a silent close.

A command that is not complete stays in a buffer until enough bytes are there, so that a payload in many pieces costs
one copy. Parsing a whole read of short commands takes long: a caller that must not block takes it in portions.
"""

from __future__ import annotations

import json
from typing import Generic, TypeVar

from jetcluster.errors import PeerError

C = TypeVar("C")


PUB, SUB, UNSUB, PING, PONG, CONNECT = range(6)
"""Kinds of commands."""

Command = tuple[int, bytes, bytes, bytes, bytes]
"""(kind, a, b, c, d): PUB (PUB and HPUB): subject, reply or b"", header block or b"", payload. An HPUB with an empty
header block is a PUB. SUB: subject, queue or b"", sid, b"".   UNSUB: sid, max or b"", b"", b"".   CONNECT: JSON text,
b"", b"", b"". PING, PONG: four times b""."""

UNKNOWN_OPERATION = "Unknown Protocol Operation"
MAX_PAYLOAD = "Maximum Payload Violation"
MAX_CONTROL_LINE = "maximum control line exceeded"

_CRLF = b"\r\n"
_VERBS = (b"CONNECT", b"HPUB", b"INFO", b"PING", b"PONG", b"PUB", b"SUB", b"UNSUB", b"+OK", b"-ERR")
_SEPARATED = frozenset((b"PUB", b"HPUB", b"SUB", b"UNSUB", b"-ERR"))
_SIZES = {b"%d" % n: n for n in range(4096)}
"""Sizes that skip the checks of `_size`; anything else, "+5" or "1_0" or "007" included, takes them."""

_MAX_BLANKS = 1024
"""Blanks and ignored text a line may hold beyond max_control_line; nats-server has no such bound, nor a buffer."""


class ProtocolError(PeerError):
    """The other end broke the protocol and must be closed. `text` is the -ERR to send first, None for a silent close;
    `reason` is the close reason that monitoring shows."""

    def __init__(self, text: str | None, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.text = text
        self.reason = reason


class PortionParser(Generic[C]):
    """Parses one connection into commands `C`.

    After an error `error` is set and nothing more is parsed; the commands before the error are still returned.
    """

    __slots__ = ("_buffer", "_need", "at", "error", "waiting")

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        """An incomplete command."""
        self._need = 0
        self.waiting = b""
        """Pushed bytes that `take` has yet to look at, from `at` on, though they may be no whole command; `_buffer` is
        empty then."""
        self.at = 0

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete command."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[C]:
        """Takes the bytes of a read; returns the commands they complete. Never raises: see `error`."""
        self.push(data)
        return self.take(len(self.waiting))

    def push(self, data: bytes) -> None:
        """Takes the bytes of a read, for `take` to parse."""
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._need:
                return
            data = bytes(buffer)
            buffer.clear()
        elif self.waiting:
            data = self.waiting[self.at :] + data
        if self.error is None:
            self.waiting = data
            self.at = 0

    def take(self, size: int) -> list[C]:
        """Returns the commands that begin in the next `size` pushed bytes. Never raises: see `error`."""
        commands: list[C] = []
        data = self.waiting
        try:
            self.at = self._parse(data, self.at, min(self.at + size, len(data)), commands)
        except ProtocolError as error:
            self.error = error
            self.at = len(data)
        if self.at >= len(data):  # `drop`
            self.waiting = b""
            self.at = 0
        return commands

    def skip(self, position: int) -> None:
        """Passes over the pushed bytes before `position`, whose commands have been run."""
        self.at = position
        if position >= len(self.waiting):
            self.drop()

    def drop(self) -> None:
        """Forgets pushed bytes that were not taken."""
        self.waiting = b""
        self.at = 0

    def _parse(self, data: bytes, position: int, stop: int, commands: list[C]) -> int:
        """Parses the commands that begin from `position` on, before `stop`; returns where the next one does. Raises
        ProtocolError."""
        raise NotImplementedError

    def _keep(self, data: bytes, position: int, need: int) -> int:
        """Buffers data[position:], to be parsed again when `need` bytes of it are there (more than now); returns the
        end of `data`."""
        self._buffer += memoryview(data)[position:]
        self._need = max(need, len(self._buffer) + 1)
        return len(data)


def _unknown(detail: str) -> ProtocolError:
    return ProtocolError(UNKNOWN_OPERATION, "Protocol Violation", detail)


def _malformed(detail: str) -> ProtocolError:
    return ProtocolError(None, "Parse Error", detail)


class Parser(PortionParser[Command]):
    """Parses one client connection."""

    __slots__ = ("max_control_line", "max_payload")

    def __init__(self, max_payload: int = 1024 * 1024, max_control_line: int = 4096) -> None:
        super().__init__()
        self.max_payload = max_payload
        self.max_control_line = max_control_line

    def _parse(self, data: bytes, position: int, stop: int, commands: list[Command]) -> int:
        append = commands.append
        find = data.find
        sizes = _SIZES
        crlf = _CRLF
        limit = self.max_control_line
        max_payload = self.max_payload
        while position < stop:
            newline = find(b"\n", position)
            if newline < 0:
                self._check_partial_line(data[position:])
                return self._keep(data, position, 1)
            args = data[position:newline].split()
            count = len(args)
            # The loop's speed is this branch: a PUB that is complete and within limits. All else is out of line.
            if (count == 3 or count == 4) and data[position] == 80 and args[0] == b"PUB":
                digits = args[-1]
                size = sizes.get(digits, -1)
                if size < 0:
                    size = _size(digits)
                if size <= max_payload and newline - position <= limit:
                    start = newline + 1
                    end = start + size
                    if data[end : end + 2] == crlf:
                        append((PUB, args[1], b"" if count == 3 else args[2], b"", data[start:end]))
                        position = end + 2
                        continue
            elif (count == 4 or count == 5) and data[position] == 72 and args[0] == b"HPUB":
                header = _size(args[-2])
                digits = args[-1]
                size = sizes.get(digits, -1)
                if size < 0:
                    size = _size(digits)
                if header <= size <= max_payload and newline - position <= limit:
                    start = newline + 1
                    body = start + header
                    end = start + size
                    if data[end : end + 2] == crlf:
                        reply = b"" if count == 4 else args[2]
                        append((PUB, args[1], reply, data[start:body], data[body:end]))
                        position = end + 2
                        continue
            consumed = self._parse_one(data, position, newline, commands)
            if consumed < 0:
                return len(data)
            position = consumed
        return position

    def _parse_one(self, data: bytes, position: int, newline: int, commands: list[Command]) -> int:
        """Parses any one line; returns the position after its command, -1 when its payload is not complete."""
        line = data[position:newline]
        verb, rest = _split_verb(line)
        if len(rest) > self.max_control_line:
            raise ProtocolError(MAX_CONTROL_LINE, "Maximum Control Line Exceeded", f"{len(rest)} bytes")
        args = rest.split()
        count = len(args)
        if verb == b"PUB" or verb == b"HPUB":
            return self._parse_publish(verb, args, data, position, newline, commands)
        if verb == b"PING":
            commands.append((PING, b"", b"", b"", b""))
        elif verb == b"PONG":
            commands.append((PONG, b"", b"", b"", b""))
        elif verb == b"SUB":
            if count == 2:
                commands.append((SUB, args[0], b"", args[1], b""))
            elif count == 3:
                commands.append((SUB, args[0], args[1], args[2], b""))
            else:
                raise _malformed(f"SUB with {count} arguments")
        elif verb == b"UNSUB":
            if count != 1 and count != 2:
                raise _malformed(f"UNSUB with {count} arguments")
            commands.append((UNSUB, args[0], args[1] if count == 2 else b"", b"", b""))
        elif verb == b"CONNECT":
            commands.append((CONNECT, rest, b"", b"", b""))
        elif verb == b"-ERR":
            raise _malformed("the client sent -ERR")
        elif verb == b"INFO" and not _is_json(rest):
            raise _malformed("INFO without JSON")
        return newline + 1

    def _parse_publish(
        self, verb: bytes, args: list[bytes], data: bytes, position: int, newline: int, commands: list[Command]
    ) -> int:
        sizes = 1 if verb == b"PUB" else 2
        count = len(args) - sizes
        if count != 1 and count != 2:
            raise _malformed(f"{verb.decode()} with {len(args)} arguments")
        size = _size(args[-1])
        header = _size(args[-2]) if sizes == 2 else 0
        if header > size:
            raise _malformed(f"header of {header} bytes in a message of {size}")
        # Checked on the line alone, before the payload is read: it may never come.
        if size > self.max_payload:
            raise ProtocolError(MAX_PAYLOAD, "Maximum Message Payload Exceeded", f"{size} bytes")
        start = newline + 1
        end = start + size
        tail = data[end : end + 2]
        if tail == _CRLF:
            reply = args[1] if count == 2 else b""
            commands.append((PUB, args[0], reply, data[start : start + header], data[start + header : end]))
            return end + 2
        if tail != b"" and tail != b"\r":
            raise _unknown("payload not ended by CRLF")
        # Wake at the byte after the payload: a bare LF there is an error at once, not when one more byte comes.
        self._keep(data, position, (end + 1 if tail == b"" else end + 2) - position)
        return -1

    def _check_partial_line(self, line: bytes) -> None:
        """Refuses a line that cannot become a command, without waiting for an end that may never come."""
        upper = line[:8].upper()
        for verb in _VERBS:
            if verb.startswith(upper[: len(verb)]):
                break
        else:
            raise _unknown("unknown verb")
        if len(line) > len(verb):
            _, rest = _split_verb(line)
            if len(rest) > self.max_control_line or len(line) > self.max_control_line + _MAX_BLANKS:
                raise ProtocolError(MAX_CONTROL_LINE, "Maximum Control Line Exceeded", f"{len(line)} bytes")


def _split_verb(line: bytes) -> tuple[bytes, bytes]:
    """(verb in upper case, what follows without the blanks around it). Raises for what is no verb of a client."""
    upper = line[:8].upper()
    for verb in _VERBS:
        if upper.startswith(verb):
            length = len(verb)
            # nats-server takes `CONNECT{}` and ignores what follows PING, but wants a blank after these.
            if verb in _SEPARATED and line[length : length + 1] not in (b" ", b"\t"):
                break
            if verb == b"PING" or verb == b"PONG" or verb == b"+OK":
                return verb, b""
            return verb, line[length:].lstrip(b" \t").rstrip(b"\r")
    raise _unknown("unknown verb")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _size(digits: bytes) -> int:
    """A decimal size of at most 9 digits; anything else closes the connection silently."""
    if not digits.isdigit() or len(digits) > 9:
        raise _malformed("bad size")
    return int(digits)
