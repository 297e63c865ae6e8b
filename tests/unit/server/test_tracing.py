"""The protocol trace. Lines are those of nats-server 2.15.2 with `-V` for the same conversation."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.logs import TRACE
from testkit.server_rig import Peer, ServerRig

HEAD = '127.0.0.1:5000 - cid:1 - "v1.45.0:go:my app" - '
CONNECT = {"verbose": False, "name": "my app", "lang": "go", "version": "1.45.0", "headers": True, "protocol": 0}


def connect(**more: Any) -> bytes:
    return b"CONNECT " + json.dumps({**CONNECT, **more}).encode()


def traced(caplog: pytest.LogCaptureFixture, *lines: bytes, **options: Any) -> list[str]:
    """Trace of a client that sends `lines` behind its CONNECT."""
    caplog.set_level(TRACE, logger="jetcluster.server")
    rig = ServerRig(trace=True, **options)
    peer = rig.client(connect=connect())
    caplog.clear()
    peer.ask(*lines)
    return [record.getMessage().removeprefix(HEAD) for record in caplog.records if record.levelno == TRACE]


def test_a_conversation(caplog: pytest.LogCaptureFixture) -> None:
    found = traced(caplog, b"SUB foo.* 1", b"SUB bar q 2", b"PUB foo.x _INBOX.1 5", b"hello", b"PING", b"UNSUB 1 4")
    assert found == [
        "<<- [SUB foo.* 1]",
        "<<- [SUB bar q 2]",
        "<<- [PUB foo.x _INBOX.1 5]",
        '<<- MSG_PAYLOAD: ["hello"]',
        "<<- [PING]",
        "<<- [UNSUB 1 4]",
        "->> [MSG foo.x 1 _INBOX.1 5]",
        '->> MSG_PAYLOAD: ["hello"]',
        "->> [PONG]",
    ]


def test_headers(caplog: pytest.LogCaptureFixture) -> None:
    lines = (b"SUB foo 1", b"HPUB foo 18 23", b"NATS/1.0\r\nA: B\r\n\r\nhello")
    found = traced(caplog, *lines)
    assert found[1:] == [
        "<<- [HPUB foo 18 23]",
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: B\\r\\n\\r\\nhello"]',
        "->> [HMSG foo 1 18 23]",
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: B\\r\\n\\r\\nhello"]',
    ]
    found = traced(caplog, *lines, b"PUB foo 2", b"no", trace_headers=True)
    assert [line for line in found if "PAYLOAD" in line] == [
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: B"]',
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: B"]',
    ]


def test_payloads_are_quoted_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        traced(caplog, b"PUB foo 9", b'"\\\t\x01\xff\xc3\xa9\r\n\r\n')[-1]
        == '<<- MSG_PAYLOAD: ["\\"\\\\\\t\\x01\\xff\u00e9\\r\\n"]'
    )
    assert traced(caplog, b"PUB foo 5", b"hello", max_traced_msg_len=3)[-1] == '<<- MSG_PAYLOAD: ["hel..."]'
    assert traced(caplog, b"PUB foo 3", b"hel", max_traced_msg_len=3)[-1] == '<<- MSG_PAYLOAD: ["hel"]'
    assert traced(caplog, b"PUB foo 0", b"") == ["<<- [PUB foo 0]"]


def test_errors_are_shown_also_as_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    assert traced(caplog, b"PUB foo 99999", max_payload=100)[-1] == "->> [-ERR Maximum Payload Violation]"


@pytest.mark.parametrize(
    "secret",
    [
        b'{"user":"u","pass":"geheim"}',
        b'{"auth_token":"geheim"}',
        b'{"user":"u","password":"geheim","authToken":"geheim","my_secret":"geheim"}',
        b'{"PASS":"geheim","Auth_Token":"geheim"}',
        b'{"p\\u0061ss":"geheim"}',
        b'{"pass":"geheim","pass":"geheim"}',
        b'{"jwt":"geheim","sig":"geheim","nkey":"U"}',
        b'{"pass":["geheim"]}',
        b'{"pass":"geheim"',
        b'["geheim"]',
        b"geheim",
    ],
)
def test_no_secret_is_traced(secret: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, logger="jetcluster.server")
    Peer(ServerRig(trace=True), b"CONNECT " + secret)
    assert "<<- [CONNECT " in caplog.text
    assert "geheim" not in caplog.text


def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, logger="jetcluster.server")
    ServerRig(trace=True).client(b"PING", connect=connect(name="a\n[1] [INF] Server is ready\u2028"))
    assert all("\n" not in record.getMessage() and "\u2028" not in record.getMessage() for record in caplog.records)


def test_a_reload_turns_it_on_and_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, logger="jetcluster.server")
    rig = ServerRig()
    peer = rig.client(b"PING")
    assert rig.server.state.tracer is None
    assert all(record.levelno > TRACE for record in caplog.records)
    for trace, lines in ((True, 2), (False, 0)):
        rig.server.reconfigure(replace(rig.server.options, trace=trace), rig.server.authenticator)
        caplog.clear()
        peer.ask(b"PING")
        assert [record.levelno for record in caplog.records] == [TRACE] * lines


def test_connections_that_come_and_go_are_debug_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="jetcluster.server")
    ServerRig().client(connect=connect())
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, logger="jetcluster.server")
    ServerRig().client(connect=connect()).connection.close("Client Closed")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "127.0.0.1:5000 - cid:1 - Client connection created"),
        ("DEBUG", HEAD + "Client connection closed: Client Closed"),
    ]
