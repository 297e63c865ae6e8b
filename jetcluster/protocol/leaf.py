"""Sans-I/O leafnode protocol: the commands of both ends of a leaf link.

INFO {json}            CONNECT {json}          PING   PONG   +OK   -ERR 'text' LS+ subject [queue weight]
LS- subject [queue] LMSG subject [reply] size                      HMSG subject [reply] header-size size LMSG subject +
reply q1 [q2 ...] size          LMSG subject | q1 [q2 ...] size      (HMSG likewise)
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.protocol.parser import MAX_CONTROL_LINE, MAX_PAYLOAD, UNKNOWN_OPERATION, PortionParser, ProtocolError

INFO, CONNECT, PING, PONG, ERR, INTEREST, GONE, MESSAGE = range(8)
"""Kinds of commands."""

Command = tuple[int, bytes, bytes, list[bytes], bytes, bytes]
"""(kind, a, b, queues, header block, payload): INFO, CONNECT: JSON text.   ERR: the text without quotes.   PING, PONG:
nothing. INTEREST: subject, queue or b"", [weight].   GONE: subject, queue or b"". MESSAGE: subject, reply or b"", names
of the queue groups that must get it, header block or b"", payload."""

LINE_FACTOR = 16
"""The limit of a link's lines, in multiples of max_control_line."""

_NOTHING: list[bytes] = []


class LeafParser(PortionParser[Command]):
    """Parses what one end of a link reads."""

    __slots__ = ("max_control_line", "max_payload")

    def __init__(self, max_payload: int = 1024 * 1024, max_control_line: int = 4096) -> None:
        super().__init__()
        self.max_payload = max_payload
        self.max_control_line = max_control_line * LINE_FACTOR

    def _parse(self, data: bytes, position: int, stop: int, commands: list[Command]) -> int:
        total = len(data)
        while position < stop:
            newline = data.find(b"\n", position)
            if newline < 0 or newline - position > self.max_control_line:
                if total - position > self.max_control_line:
                    raise ProtocolError(MAX_CONTROL_LINE, "Maximum Control Line Exceeded", "line without an end")
                return self._keep(data, position, 0)
            verb, _, rest = data[position:newline].strip().partition(b" ")
            if verb == b"LMSG" or verb == b"HMSG":
                if b"\v" in rest or b"\f" in rest:
                    end = self._message(_plain_words(rest), verb == b"HMSG", data, newline + 1, [])
                else:
                    end = self._message(rest.split(), verb == b"HMSG", data, newline + 1, commands)
                if end > total:
                    return self._keep(data, position, end - position)
                position = end
            else:
                if verb:
                    commands.append(_line(verb.upper(), rest.strip()))
                position = newline + 1
        return position

    def _message(self, args: list[bytes], with_headers: bool, data: bytes, start: int, commands: list[Command]) -> int:
        """Returns the end of the message: beyond `data`, with nothing appended, when it is not complete."""
        sizes = 2 if with_headers else 1
        place = args[:-sizes]
        if not place:
            raise _malformed("message without a subject or size")
        size = _size(args[-1])
        header = _size(args[-2]) if with_headers else 0
        if header > size:
            raise _malformed(f"header of {header} bytes in a message of {size}")
        if size > self.max_payload:
            raise ProtocolError(MAX_PAYLOAD, "Maximum Message Payload Exceeded", f"{size} bytes")
        reply, queues = _destination(place)
        body = start + size
        if len(data) < body + 2:
            return body + 2
        if data[body : body + 2] != b"\r\n":
            raise _malformed("payload not ended by CRLF")
        commands.append((MESSAGE, place[0], reply, queues, data[start : start + header], data[start + header : body]))
        return body + 2


def _plain_words(rest: bytes) -> list[bytes]:
    """Returns the words of a line with other blanks in it than space and tab, at which alone nats-server splits.

    Such a message is dropped: no line to a client can hold its subject. Split at them, it would come on another subject
    than the one that its sender may publish to.
    """
    return list(filter(None, rest.replace(b"\t", b" ").split(b" ")))


def _destination(place: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Returns (reply, queue names) from a message's words between its verb and its sizes."""
    count = len(place)
    if count == 1:
        return b"", _NOTHING
    if place[1] == b"+" and count >= 4:
        return place[2], place[3:]
    if place[1] == b"|" and count >= 3:
        return b"", place[2:]
    if count == 2 and place[1] not in (b"+", b"|"):
        return place[1], _NOTHING
    raise _malformed("message with a bad destination")


def _line(verb: bytes, rest: bytes) -> Command:
    """Parses a command of one line."""
    if verb == b"LS+":
        args = rest.split()
        if len(args) == 1:
            return INTEREST, args[0], b"", [b"1"], b"", b""
        if len(args) == 3:
            _size(args[2])
            return INTEREST, args[0], args[1], [args[2]], b"", b""
        raise _malformed(f"LS+ with {len(args)} arguments")
    if verb == b"LS-":
        args = rest.split()
        if not 1 <= len(args) <= 2:
            raise _malformed(f"LS- with {len(args)} arguments")
        return GONE, args[0], args[1] if len(args) == 2 else b"", _NOTHING, b"", b""
    if verb == b"PING":
        return PING, b"", b"", _NOTHING, b"", b""
    if verb == b"PONG" or verb == b"+OK":
        return PONG, b"", b"", _NOTHING, b"", b""
    if verb == b"INFO" or verb == b"CONNECT":
        return INFO if verb == b"INFO" else CONNECT, rest, b"", _NOTHING, b"", b""
    if verb == b"-ERR":
        return ERR, rest.strip(b"'"), b"", _NOTHING, b"", b""
    raise ProtocolError(UNKNOWN_OPERATION, "Protocol Violation", "unknown verb")


def _size(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 9:
        raise _malformed("bad number")
    return int(digits)


def _malformed(detail: str) -> ProtocolError:
    return ProtocolError(None, "Parse Error", detail)


def interest(subject: bytes, queue: bytes | None, weight: int) -> bytes:
    """LS+ for `weight` members of a queue group, or plain interest; LS- when `weight` is 0."""
    if not weight:
        return b"LS- %b\r\n" % subject if queue is None else b"LS- %b %b\r\n" % (subject, queue)
    return b"LS+ %b\r\n" % subject if queue is None else b"LS+ %b %b %d\r\n" % (subject, queue, weight)


def message_line(subject: bytes, reply: bytes, queues: Sequence[bytes], header: int, size: int) -> bytes:
    """The line in front of a message's headers and payload. `header` and `size` (both together) are in bytes."""
    if queues:
        names = b" ".join(queues)
        middle = b"+ %b %b " % (reply, names) if reply else b"| %b " % names
    else:
        middle = b"%b " % reply if reply else b""
    if header:
        return b"HMSG %b %b%d %d\r\n" % (subject, middle, header, size)
    return b"LMSG %b %b%d\r\n" % (subject, middle, size)
