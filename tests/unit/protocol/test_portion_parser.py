"""Parsing in portions, with a line protocol in which each command is one line."""

from __future__ import annotations

import random

from jetcluster.protocol.parser import PortionParser, ProtocolError


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
