"""The leafnode protocol. Lines of the transcripts were seen between two nats-servers (2.15.2)."""

from __future__ import annotations

import pytest

from jetcluster.protocol.leaf import (
    CONNECT,
    ERR,
    GONE,
    INFO,
    INTEREST,
    MESSAGE,
    PING,
    PONG,
    Command,
    LeafParser,
    interest,
    message_line,
)

TRANSCRIPT: list[tuple[bytes, Command]] = [
    (b'INFO {"server_id":"NA6"} \r\n', (INFO, b'{"server_id":"NA6"}', b"", [], b"", b"")),
    (b'CONNECT {"name":"L","protocol":3}\r\n', (CONNECT, b'{"name":"L","protocol":3}', b"", [], b"", b"")),
    (b"LS+ $JS.hub.API.STREAM.>\r\n", (INTEREST, b"$JS.hub.API.STREAM.>", b"", [b"1"], b"", b"")),
    (b"LS+ foo.bar q 1\r\n", (INTEREST, b"foo.bar", b"q", [b"1"], b"", b"")),
    (b"LS- foo.bar q\r\n", (GONE, b"foo.bar", b"q", [], b"", b"")),
    (b"LS- _INBOX.x.*\r\n", (GONE, b"_INBOX.x.*", b"", [], b"", b"")),
    (b"PING\r\n", (PING, b"", b"", [], b"", b"")),
    (b"PONG\r\n", (PONG, b"", b"", [], b"", b"")),
    (b"-ERR 'Authorization Violation'\r\n", (ERR, b"Authorization Violation", b"", [], b"", b"")),
    (b"LMSG a 0\r\n\r\n", (MESSAGE, b"a", b"", [], b"", b"")),
    (b"LMSG a re 2\r\nhi\r\n", (MESSAGE, b"a", b"re", [], b"", b"hi")),
    (b"LMSG a | q 2\r\nhi\r\n", (MESSAGE, b"a", b"", [b"q"], b"", b"hi")),
    (b"LMSG a + re q r 4\r\n\r\n\r\n\r\n", (MESSAGE, b"a", b"re", [b"q", b"r"], b"", b"\r\n\r\n")),
    (
        b"HMSG foo.bar + _INBOX.t q 18 23\r\nNATS/1.0\r\na: b\r\n\r\nhello\r\n",
        (MESSAGE, b"foo.bar", b"_INBOX.t", [b"q"], b"NATS/1.0\r\na: b\r\n\r\n", b"hello"),
    ),
    (b"HMSG a 12 12\r\nNATS/1.0\r\n\r\n\r\n", (MESSAGE, b"a", b"", [], b"NATS/1.0\r\n\r\n", b"")),
]


@pytest.mark.parametrize("step", [1, 3, 7, 64, 100_000])
def test_commands_do_not_depend_on_how_the_input_is_split(step: int) -> None:
    text = b"".join(line for line, _ in TRANSCRIPT)
    parser = LeafParser()
    found = [c for at in range(0, len(text), step) for c in parser.feed(text[at : at + step])]
    assert parser.error is None
    assert found == [command for _, command in TRANSCRIPT]


@pytest.mark.parametrize("step", [1, 100_000])
def test_a_subject_that_no_client_can_be_told_is_dropped_and_not_split(step: int) -> None:
    """nats-server takes these bytes for a part of the subject, and asks the sender's permissions about all of it."""
    text = b"LMSG x.secret\x0bq 1\r\na\r\nLMSG x.secret\x0cq re 1\r\na\r\nLMSG a\tre 1\r\nb\r\n"
    parser = LeafParser()
    found = [c for at in range(0, len(text), step) for c in parser.feed(text[at : at + step])]
    assert parser.error is None and found == [(MESSAGE, b"a", b"re", [], b"", b"b")]


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        (b"LMSG a 9999\r\n", "Maximum Payload Violation", "Maximum Message Payload Exceeded"),
        (b"LMSG a +5\r\n", None, "Parse Error"),
        (b"LMSG 5\r\n", None, "Parse Error"),
        (b"LMSG a + re 5\r\n", None, "Parse Error"),
        (b"LMSG a b c 5\r\n", None, "Parse Error"),
        (b"LMSG a 1\r\nxyz", None, "Parse Error"),
        (b"HMSG a 5 4\r\n", None, "Parse Error"),
        (b"LS+ a q\r\n", None, "Parse Error"),
        (b"LS+\r\n", None, "Parse Error"),
        (b"LS- a b c\r\n", None, "Parse Error"),
        (b"PUB a 1\r\n", "Unknown Protocol Operation", "Protocol Violation"),
        (b"x" * 70_000, "maximum control line exceeded", "Maximum Control Line Exceeded"),
    ],
)
def test_what_is_no_command_ends_the_parse(line: bytes, text: str | None, reason: str) -> None:
    parser = LeafParser(max_payload=1000)
    assert parser.feed(b"PING\r\n" + line) == [(PING, b"", b"", [], b"", b"")]
    assert parser.error is not None
    assert (parser.error.text, parser.error.reason) == (text, reason)
    assert parser.feed(b"PING\r\n") == []


@pytest.mark.parametrize("reply", [b"", b"re"])
@pytest.mark.parametrize("queues", [[], [b"q"], [b"q", b"r"]])
@pytest.mark.parametrize("headers", [b"", b"NATS/1.0\r\na: b\r\n\r\n"])
def test_a_message_written_is_read_back(reply: bytes, queues: list[bytes], headers: bytes) -> None:
    payload = b"some\r\nbytes"
    line = message_line(b"a.b", reply, queues, len(headers), len(headers) + len(payload))
    found = LeafParser().feed(line + headers + payload + b"\r\n")
    assert found == [(MESSAGE, b"a.b", reply, queues, headers, payload)]


def test_interest_lines() -> None:
    assert interest(b"a", None, 3) == b"LS+ a\r\n"
    assert interest(b"a", b"q", 3) == b"LS+ a q 3\r\n"
    assert interest(b"a", None, 0) == b"LS- a\r\n"
    assert interest(b"a", b"q", 0) == b"LS- a q\r\n"
