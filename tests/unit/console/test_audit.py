"""Changes by users of the console are told, and nothing else is (console/audit.py)."""

from __future__ import annotations

import pytest

from jetcluster.console.audit import MAX_LINES, MAX_SHOWN, SYSTEM_READS, WINDOW_SECONDS, ChangeAudit, change
from jetcluster.monitor.system.requests import COMMANDS, OF_ACCOUNT, VIEWS
from testkit.twins.time import ManualTime


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.INFO", "$JS.API.STREAM.INFO.S", "$JS.API.STREAM.LIST", "$JS.API.STREAM.MSG.GET.S",
        "$JS.API.DIRECT.GET.S",
        "$JS.API.DIRECT.GET.S.a.b", "$JS.hub.API.CONSUMER.INFO.S.C", "$JS.API.CONSUMER.LIST.S",
        "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING", "$JS.FC.a",
    ],
)  # fmt: skip
def test_what_reads_is_not_told(subject: str) -> None:
    assert change(subject, b"{}") is None


@pytest.mark.parametrize(
    ("subject", "payload", "told"),
    [
        ("$JS.API.STREAM.DELETE.S", b"", "STREAM.DELETE.S"),
        ("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":5}', 'STREAM.MSG.DELETE.S {"seq":5}'),
        ("$JS.hub.API.STREAM.PURGE.S", b'{"filter":"a"}', 'STREAM.PURGE.S {"filter":"a"}'),
        ("$JS.API.CONSUMER.PAUSE.S.C", b"{}", "CONSUMER.PAUSE.S.C {}"),
        ("$JS.API.INFO.x", b"", "INFO.x"),
        ("$JS.ACK.S.C.1.2.3.4.5", b"+TERM", "acks with $JS.ACK.S.C.1.2.3.4.5: +TERM"),
        ("$O.B.C.part", b"abc", "publishes to $O.B.C.part, 3 bytes"),
        ("_INBOX.a.b", b"abc", "publishes to _INBOX.a.b, 3 bytes"),
        ("$SYS.REQ.ACCOUNT.A.CLAIMS.UPDATE", b"eyJ", "$SYS.REQ.ACCOUNT.A.CLAIMS.UPDATE eyJ"),
        ("$SYS.REQ.SERVER.N1.KICK", b'{"cid":5}', '$SYS.REQ.SERVER.N1.KICK {"cid":5}'),
        ("orders.new", b"abc", "publishes to orders.new, 3 bytes"),
        ("$KV.B.key", b"", "publishes to $KV.B.key, 0 bytes"),
        ("$O.B.M.bmFtZQ==", b"{}", "publishes to $O.B.M.bmFtZQ==, 2 bytes"),
        ("$JS.API.STREAM.CREATE.S", b"\xff" * 300, "STREAM.CREATE.S " + "�" * MAX_SHOWN + "…"),
    ],
)
def test_what_changes_something_is_told(subject: str, payload: bytes, told: str) -> None:
    found = change(subject, payload)
    assert found is not None and found.text == told


def audited() -> tuple[ChangeAudit, ManualTime, list[str]]:
    clock, lines = ManualTime(), list[str]()
    return ChangeAudit(clock, lines.append), clock, lines


def test_lines_have_a_limit_and_the_rest_is_counted() -> None:
    audit, clock, lines = audited()
    for _ in range(MAX_LINES + 7):
        audit.published(b"orders.a", b"abc")
        audit.published(b"$JS.API.INFO", b"")
    assert lines == ["publishes to orders.a, 3 bytes"] * MAX_LINES
    clock.advance(WINDOW_SECONDS)
    audit.published(b"orders.a", b"abc")
    assert lines[MAX_LINES:] == ["and 7 publishes more in 10 s", "publishes to orders.a, 3 bytes"]
    audit.end()
    assert len(lines) == MAX_LINES + 2


@pytest.mark.parametrize(
    "junk", [b"junk", b"$JS.API.JUNK.A", b"$JS.API.CONSUMER.CREATE.S.C", b"$O.B.C.x", b"$JS.ACK.x"]
)
def test_many_of_one_kind_hide_none_of_another(junk: bytes) -> None:
    audit, _, lines = audited()
    for _ in range(MAX_LINES + 1):
        audit.published(junk, b"")
    audit.published(b"$JS.API.STREAM.DELETE.S", b"")
    assert lines[MAX_LINES:] == ["STREAM.DELETE.S"]


def test_what_is_told_of_reads_fits_what_the_server_answers() -> None:
    assert set(VIEWS) | set(OF_ACCOUNT) <= SYSTEM_READS
    assert not SYSTEM_READS & set(COMMANDS)
