"""The parser: commands, errors, and that neither depends on how the input was cut."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.protocol.parser import (
    CONNECT,
    MAX_CONTROL_LINE,
    MAX_PAYLOAD,
    PING,
    PONG,
    PUB,
    SUB,
    UNKNOWN_OPERATION,
    UNSUB,
    Command,
    Parser,
    PortionParser,
    ProtocolError,
)


def parse(data: bytes, **limits: int) -> tuple[list[Command], Parser]:
    parser = Parser(**limits)
    return parser.feed(data), parser


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (b"PUB a 2\r\nhi\r\n", (PUB, b"a", b"", b"", b"hi")),
        (b"PUB a r 0\r\n\r\n", (PUB, b"a", b"r", b"", b"")),
        (b"pub\ta \t 2\nh\n\r\n", (PUB, b"a", b"", b"", b"h\n")),
        (b"PUB a 007\r\n1234567\r\n", (PUB, b"a", b"", b"", b"1234567")),
        (b"HPUB a 3 5\r\nHHHhi\r\n", (PUB, b"a", b"", b"HHH", b"hi")),
        (b"hpub a r 0 2\r\nhi\r\n", (PUB, b"a", b"r", b"", b"hi")),
        (b"SUB a 1\r\n", (SUB, b"a", b"", b"1", b"")),
        (b"sub a q x-1\n", (SUB, b"a", b"q", b"x-1", b"")),
        (b"UNSUB 1\r\n", (UNSUB, b"1", b"", b"", b"")),
        (b"UNSUB 1 5\r\n", (UNSUB, b"1", b"5", b"", b"")),
        (b"PING\r\n", (PING, b"", b"", b"", b"")),
        (b"PINGdom\r\n", (PING, b"", b"", b"", b"")),
        (b"PONG\r\n", (PONG, b"", b"", b"", b"")),
        (b'CONNECT {"a": 1}\r\n', (CONNECT, b'{"a": 1}', b"", b"", b"")),
        (b"connect{}\n", (CONNECT, b"{}", b"", b"", b"")),
    ],
)
def test_command(data: bytes, command: Command) -> None:
    commands, parser = parse(data)
    assert (commands, parser.error, parser.buffered) == ([command], None, 0)


def test_ignored_words() -> None:
    commands, parser = parse(b'+OK\r\nINFO {"x":1}\r\nPING\r\n')
    assert [c[0] for c in commands] == [PING]
    assert parser.error is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"FOO\r\n", UNKNOWN_OPERATION),
        (b"X", UNKNOWN_OPERATION),
        (b"\r\n", UNKNOWN_OPERATION),
        (b" PING\r\n", UNKNOWN_OPERATION),
        (b" PUB a 2\r\nhi\r\n", UNKNOWN_OPERATION),
        (b"MSG a 1 2\r\nhi\r\n", UNKNOWN_OPERATION),
        (b"UNSUB\r\n", UNKNOWN_OPERATION),
        (b"PUBX a 2\r\n", UNKNOWN_OPERATION),
        (b"PUB a 2\r\nhi\n", UNKNOWN_OPERATION),
        (b"PUB a 2\r\nhixx", UNKNOWN_OPERATION),
        (b"PUB a 2\r\nhi\rx", UNKNOWN_OPERATION),
        (b"\x16\x03\x01\x02", UNKNOWN_OPERATION),
        (b"PUB a 101\r\n", MAX_PAYLOAD),
        (b"HPUB a 10 101\r\n", MAX_PAYLOAD),
        (b"SUB " + b"a" * 200 + b" 1\r\n", MAX_CONTROL_LINE),
        (b"PUB " + b"a" * 200, MAX_CONTROL_LINE),
        (b"CONNECT " + b" " * 4000, MAX_CONTROL_LINE),
        (b"PUB a\r\n", None),
        (b"PUB a -1\r\n", None),
        (b"PUB a +1\r\n", None),
        (b"PUB a 1_0\r\n", None),
        (b"PUB a 1234567890\r\n", None),
        (b"PUB a b c 1\r\n", None),
        (b"HPUB a 5 3\r\n", None),
        (b"HPUB a 5\r\n", None),
        (b"HPUB a x 5\r\n", None),
        (b"SUB a\r\n", None),
        (b"SUB a b c d\r\n", None),
        (b"UNSUB \r\n", None),
        (b"-ERR 'no'\r\n", None),
        (b"INFO nonsense\r\n", None),
    ],
)
def test_error(data: bytes, text: str | None) -> None:
    commands, parser = parse(b"PING\r\n" + data, max_payload=100, max_control_line=100)
    assert [c[0] for c in commands] == [PING], "what came before the error still counts"
    assert parser.error is not None
    assert parser.error.text == text
    assert parser.feed(b"PING\r\n") == [], "nothing is parsed behind an error"


def test_control_line_counts_arguments_only() -> None:
    line = b"a" * 98 + b" 1"
    assert parse(b"SUB    " + line + b"\r\n", max_control_line=100)[1].error is None
    error = parse(b"SUB a" + line + b"\r\n", max_control_line=100)[1].error
    assert error is not None
    assert error.text == MAX_CONTROL_LINE


PIECES = st.sampled_from(
    [
        b"PUB foo 2\r\nhi\r\n",
        b"PUB foo.bar _INBOX.x.y 12\r\nPING\r\nPING\r\n\r\n",
        b"HPUB a 3 5\r\nabchi\r\n",
        b"SUB a.* q 1\r\n",
        b"UNSUB 1 3\n",
        b"PING\r\n",
        b"Pong\r\n",
        b'CONNECT {"verbose":false}\r\n',
        b"+OK\r\n",
        b"PUB big 300\r\n" + b"z" * 300 + b"\r\n",
        b"PUB empty 0\r\n\r\n",
        b"NOPE\r\n",
        b"PUB foo -2\r\n",
        b"PUB foo 2\r\nhi\n",
        b"PUB too.big 9999\r\n",
        b"SUB " + b"l" * 300 + b" 1\r\n",
        b"\xff\x00",
        b"\r",
        b"PU",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_any_split_gives_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    whole, reference = parse(data, max_payload=1000, max_control_line=200)
    parser = Parser(max_payload=1000, max_control_line=200)
    commands: list[Command] = []
    position = 0
    for cut in [*sorted(c for c in cuts if c <= len(data)), len(data)]:
        commands += parser.feed(data[position:cut])
        position = cut
    assert commands == whole
    assert (parser.error is None) == (reference.error is None)
    if parser.error is not None and reference.error is not None:
        assert parser.error.text == reference.error.text


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_survived(data: bytes) -> None:
    whole, reference = parse(data)
    parser = Parser()
    single = [command for byte in data for command in parser.feed(bytes([byte]))]
    assert single == whole
    assert (parser.error is None) == (reference.error is None)


def test_large_payload_in_small_pieces_is_not_quadratic() -> None:
    size = 4_000_000
    parser = Parser(max_payload=size)
    began = time.process_time()
    commands = parser.feed(b"PUB a %d\r\n" % size)
    chunk = b"x" * 100
    for _ in range(size // 100):
        commands += parser.feed(chunk)
    commands += parser.feed(b"\r\n")
    assert len(commands) == 1
    assert len(commands[0][4]) == size
    # 40,000 pieces: one copy takes 20 ms, copying what is there for each piece would take minutes.
    assert time.process_time() - began < 2.0


# Parsing in portions, with a line protocol in which each command is one line.


class Lines(PortionParser[bytes]):
    def _parse(self, data: bytes, position: int, stop: int, commands: list[bytes]) -> int:
        while position < stop:
            end = data.find(b"\n", position)
            if end < 0:
                return self._keep(data, position, 0)
            line = data[position:end]
            position = end + 1
            if line == b"bad":
                raise ProtocolError("bad", "Bad", "bad line")
            commands.append(line)
        return position


def test_commands_do_not_depend_on_how_bytes_came() -> None:
    rng = random.Random(4)
    wanted = [b"x" * rng.randrange(9) for _ in range(200)]
    data = b"".join(line + b"\n" for line in wanted)
    for _ in range(20):
        parser, found, at = Lines(), [], 0
        while at < len(data):
            size = rng.randrange(1, 30)
            found += parser.feed(data[at : at + size])
            at += size
        assert found == wanted and parser.buffered == 0


def test_what_was_pushed_is_taken_by_portions() -> None:
    parser = Lines()
    parser.push(b"aa\nbb\ncc\nd")
    assert parser.take(1) == [b"aa"], "a command that begins in the portion is whole"
    parser.push(b"d\nee\n")
    assert parser.take(3) == [b"bb"]
    assert parser.take(100) == [b"cc", b"dd", b"ee"]
    assert parser.waiting == b""


def test_what_was_pushed_and_not_taken_can_be_forgotten() -> None:
    parser = Lines()
    parser.push(b"aa\nbb\n")
    assert parser.take(1) == [b"aa"]
    parser.drop()
    assert parser.take(100) == [] and parser.feed(b"cc\n") == [b"cc"]


def test_nothing_is_parsed_after_an_error() -> None:
    parser = Lines()
    assert parser.feed(b"aa\nbad\nbb\n") == [b"aa"]
    assert parser.error is not None and (parser.error.text, parser.error.reason) == ("bad", "Bad")
    assert parser.feed(b"cc\n") == []


def test_half_a_command_is_kept() -> None:
    parser = Lines()
    assert parser.feed(b"aa\nbbb") == [b"aa"]
    assert parser.buffered == 3
    assert parser.feed(b"b\n") == [b"bbbb"]
