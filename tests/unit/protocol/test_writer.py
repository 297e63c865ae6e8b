from __future__ import annotations

import json

from jetcluster.protocol import writer


def test_no_responders_bytes() -> None:
    assert writer.no_responders(b"_INBOX.p1", b"1", b"$JS.API") == (
        b"HMSG _INBOX.p1 1 39 39\r\nNATS/1.0 503\r\nNats-Subject: $JS.API\r\n\r\n\r\n"
    )


def test_frames() -> None:
    assert writer.err('Permissions Violation for Publish to "x"') == (
        b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    )
    assert writer.err(b"\xff".decode("utf-8", "surrogateescape")) == b"-ERR '\xff'\r\n"


def test_size_line_on_both_sides_of_the_table() -> None:
    for size in (0, 1, 4095, 4096, 1_000_000):
        assert writer.size_line(size) == f"{size}\r\n".encode()


def test_info_ends_with_a_blank() -> None:
    line = writer.info({"a": "é", "b": True})
    assert line.startswith(b"INFO {")
    assert line.endswith(b"} \r\n")
    assert json.loads(line[5:]) == {"a": "é", "b": True}
