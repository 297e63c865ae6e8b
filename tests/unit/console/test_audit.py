"""What the users of the console change is told, and nothing else (console/audit.py)."""

from __future__ import annotations

import pytest

from jetcluster.console.audit import MAX_LINES, MAX_SHOWN, WINDOW_SECONDS, ChangeAudit, change
from jetcluster.protocol.parser import Parser
from testkit.twins.time import ManualTime


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.INFO", "$JS.API.STREAM.INFO.S", "$JS.API.STREAM.LIST", "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.DIRECT.GET.S",
        "$JS.API.DIRECT.GET.S.a.b", "$JS.hub.API.CONSUMER.INFO.S.C", "$JS.API.CONSUMER.LIST.S", "$JS.ACK.S.C.1.2.3.4.5",
        "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.USER.INFO", "_INBOX.a.b", "$O.B.C.part",
    ],
)  # fmt: skip
def test_what_reads_is_not_told(subject: str) -> None:
    assert change(subject, b"{}") == ""


@pytest.mark.parametrize(
    ("subject", "payload", "told"),
    [
        ("$JS.API.STREAM.DELETE.S", b"", "STREAM.DELETE.S"),
        ("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":5}', 'STREAM.MSG.DELETE.S {"seq":5}'),
        ("$JS.hub.API.STREAM.PURGE.S", b'{"filter":"a"}', 'STREAM.PURGE.S {"filter":"a"}'),
        ("$JS.API.CONSUMER.PAUSE.S.C", b"{}", "CONSUMER.PAUSE.S.C {}"),
        ("$JS.API.INFO.x", b"", "INFO.x"),
        ("$SYS.REQ.SERVER.N1.KICK", b'{"cid":5}', '$SYS.REQ.SERVER.N1.KICK {"cid":5}'),
        ("orders.new", b"abc", "publishes to orders.new, 3 bytes"),
        ("$KV.B.key", b"", "publishes to $KV.B.key, 0 bytes"),
        ("$O.B.M.bmFtZQ==", b"{}", "publishes to $O.B.M.bmFtZQ==, 2 bytes"),
        ("$JS.API.STREAM.CREATE.S", b"\xff" * 300, "STREAM.CREATE.S " + "�" * MAX_SHOWN + "…"),
    ],
)
def test_what_changes_something_is_told(subject: str, payload: bytes, told: str) -> None:
    assert change(subject, payload) == told


def test_the_lines_do_not_depend_on_how_the_input_was_cut_and_have_a_limit() -> None:
    one = b"PUB orders.a 3\r\nabc\r\nSUB x 1\r\nPING\r\nPUB $JS.API.INFO _INBOX.1 0\r\n\r\n"
    whole: list[str] = []
    audit = ChangeAudit(Parser(1024, 1024), ManualTime(), whole.append)
    audit.received(one * 3)
    cut: list[str] = []
    audit = ChangeAudit(Parser(1024, 1024), ManualTime(), cut.append)
    for at in range(len(one) * 3):
        audit.received((one * 3)[at : at + 1])
    assert whole == cut == ["publishes to orders.a, 3 bytes"] * 3

    clock = ManualTime()
    lines: list[str] = []
    audit = ChangeAudit(Parser(1024, 1024), clock, lines.append)
    audit.received(one * (MAX_LINES + 7))
    assert len(lines) == MAX_LINES
    clock.advance(WINDOW_SECONDS)
    audit.received(one)
    assert lines[MAX_LINES:] == ["and 7 changes more in 10 s", "publishes to orders.a, 3 bytes"]
    audit.received(b"nonsense\r\n" + one)  # the client's own parser ends the connection
    assert len(lines) == MAX_LINES + 2
